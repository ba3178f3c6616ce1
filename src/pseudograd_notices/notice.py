"""A notice of `lint` or `diagnose`, and baselines: files of notices that are known, so that only new ones count.

A baseline knows a notice by its file, its code and the text of its expression, never by its line, and as often as it stood there. A notice
whose line moves stays known; a copy of it is new.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

_KIND = "pseudograd baseline"
Key = tuple[str, ...]
_KEY = ("path", "code", "expression")


class Notice(NamedTuple):
    """A code at a location. Lines and columns count from 1, columns in characters; `end_column` is the first behind the expression. 0
    stands for an unknown line or column. cell: in a notebook, the number among the cells of code; then lines are those of the cell.
    source: the line as the file has it, for people to read.
    """

    code: str
    name: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    message: str
    expression: str
    cell: int | None = None
    source: str = ""

    @property
    def inside(self) -> str:
        """The beginning of a message where a format has no place for the cell of a notebook."""
        return "" if self.cell is None else f"Cell {self.cell}, line {self.line}: "

    @property
    def where(self) -> str:
        if not self.line:
            return self.path
        inside = "" if self.cell is None else f"cell {self.cell}:"
        return f"{self.path}:{inside}{self.line}:{self.column}"

    @property
    def key(self) -> Key:
        """What a baseline knows the notice by. The path has the slashes of every system, and layout does not count."""
        return PurePath(self.path).as_posix().removeprefix("./"), self.code, " ".join(self.expression.split())

    def rebase(self, root: Path | None) -> Notice:
        """With the path from this folder on, if the file lies in it: the same in every working folder."""
        if root is None or not os.path.exists(self.path):
            return self
        path = Path(os.path.abspath(self.path))
        return self._replace(path=str(path.relative_to(root))) if path.is_relative_to(root) else self


class Problem(NamedTuple):
    """A file that could not be read, and why."""

    path: str
    line: int
    message: str

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path


def baseline_text(notices: Iterable[Notice], numbers: Collection[str], file: Path, root: Path | None = None) -> str:
    """The text for a baseline in `file`. The findings of other codes that the file knows stay, as commands may share it.

    numbers: the codes of the command. root: the folder from which paths count.
    """
    try:
        before = read_baseline("", "", file)
    except ValueError:  # there is none yet
        before = Counter()
    counts = Counter({key: count for key, count in before.items() if key[1] not in numbers})
    counts.update(notice.rebase(root).key for notice in notices)
    rows = [{**dict(zip(_KEY, key, strict=True)), "count": count} for key, count in sorted(counts.items())]
    return json.dumps({"kind": _KIND, "version": 1, "findings": rows}, indent=1, ensure_ascii=False) + "\n"


def read_baseline(where: str, argument: str, file: Path) -> Counter[Key]:
    """Raises ValueError for a file that is no baseline. argument: what names it."""
    remedy = f"Write one with --write-baseline {file}."
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["kind"] != _KIND or stored["version"] != 1:
            raise KeyError("kind")
        return Counter({tuple(row[name] for name in _KEY): int(row["count"]) for row in stored["findings"]})
    except (OSError, KeyError, TypeError, ValueError) as error:
        file_kind = "can be read" if isinstance(error, OSError) else "--write-baseline wrote"
        raise ValueError(f"{where}: {argument} must be a file that {file_kind}, got {str(file)!r}. {remedy}") from error


def new_notices(notices: Sequence[Notice], known: Counter[Key], root: Path | None = None) -> list[Notice]:
    """The notices that are not known. Of equal notices the first are known, as many as the baseline counts."""
    left = Counter(known)
    new = []
    for notice in notices:
        key = notice.rebase(root).key
        if left[key] > 0:
            left[key] -= 1
        else:
            new.append(notice)
    return new
