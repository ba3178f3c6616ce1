"""Matches lines that moved: two versions of a package can have the same line at different numbers."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pseudograd.listen.frames import format_location

from .recording import Recording, align


class MovedLines:
    """Finds the older line of a line that moved. old_folders, new_folders: where the two interpreters look for modules."""

    def __init__(self, old_folders: Sequence[str], new_folders: Sequence[str]) -> None:
        # A folder may be inside another one, so longer paths come first.
        self._old_folders = sorted(old_folders, key=len, reverse=True)
        self._new_folders = sorted(new_folders, key=len, reverse=True)

    def align(self, run: Recording) -> Recording:
        """The run of the newer environment, whose events get the lines of the older environment."""
        wheres = {event.origin.where for events in run.steps.values() for event in events}
        lines = {where: line for where in wheres if (line := self._find_old_line(where)) != where}
        return align(run, lines) if lines else run

    def _find_old_line(self, where: str) -> str:
        file, _, number = where.rpartition(":")
        folders = (folder for folder in self._new_folders if file.startswith(folder + os.sep))
        name = next((file[len(folder) + 1 :] for folder in folders), file)
        is_of_program = os.path.isfile(name)  # in the current folder
        if is_of_program or not number.isdigit():
            return where
        old_file, new_file = _find_file(name, self._old_folders), _find_file(name, self._new_folders)
        if old_file is None or new_file is None:
            return where
        lines = match_lines(old_file, new_file)
        old_number = int(number) if lines is None else lines.get(int(number))
        return f"{where}, new" if old_number is None else format_location(old_file, old_number)


def _find_file(name: str, folders: Sequence[str]) -> str | None:
    return next((path for folder in folders if os.path.isfile(path := os.path.join(folder, name))), None)


@functools.cache
def match_lines(old_file: str, new_file: str) -> Mapping[int, int] | None:
    """For each line of the newer file that the older file has too: its number there. None if the texts are equal.

    Indentation does not count. If n lines replace n lines, they count as edited versions of these.
    """
    texts = [Path(file).read_text(encoding="utf-8", errors="replace") for file in (old_file, new_file)]
    if texts[0] == texts[1]:
        return None
    old, new = ([line.strip() for line in text.splitlines()] for text in texts)
    lines: dict[int, int] = {}
    for change, first, last, new_first, new_last in difflib.SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        if change == "equal" or (change == "replace" and last - first == new_last - new_first):
            lines.update(zip(range(new_first + 1, new_last + 1), range(first + 1, last + 1), strict=True))
    return lines
