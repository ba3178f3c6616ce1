"""A notice of `lint` or `diagnose`, and baselines: files of known notices, so that only new ones count.

A baseline knows a notice by its file, its code and the text of its expression, so a notice whose line moves stays known. It counts equal
notices; a further equal notice is new.
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
    """A code at a location. Lines and columns count from 1, columns in characters. The number 0 means: unknown."""

    code: str
    name: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int  # the column after the expression
    message: str
    expression: str
    cell: int | None = None  # in a notebook, the number of the code cell; lines then count in this cell
    source: str = ""  # the text of the line

    @property
    def inside(self) -> str:
        """The beginning of a message, for formats that have no field for the cell of a notebook."""
        return "" if self.cell is None else f"Cell {self.cell}, line {self.line}: "

    @property
    def where(self) -> str:
        if not self.line:
            return self.path
        inside = "" if self.cell is None else f"cell {self.cell}:"
        return f"{self.path}:{inside}{self.line}:{self.column}"

    @property
    def key(self) -> Key:
        """The key by which a baseline knows the notice: the same on every system, and for every layout of the expression."""
        return PurePath(self.path).as_posix().removeprefix("./"), self.code, " ".join(self.expression.split())

    def rebase(self, root: Path | None) -> Notice:
        """The notice with a path relative to this folder, if the file is in it. So the path is the same in every working folder."""
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
    """The text for a baseline in `file`. Its findings of other codes stay, because commands may share the file.

    numbers: the codes of the command.
    root: the folder from which paths count.
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
    """The notices of a baseline, counted. Raises ValueError for a file that is no baseline.

    argument: the option or setting that names the file.
    """
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
    """The notices that are not known. If the baseline counts n equal notices, the first n of them are known."""
    unused = Counter(known)
    new = []
    for notice in notices:
        key = notice.rebase(root).key
        if unused[key] > 0:
            unused[key] -= 1
        else:
            new.append(notice)
    return new
