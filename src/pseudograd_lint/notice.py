"""A finding as formats, baselines and selections see it, whoever made it: `lint` or `diagnose`."""

from __future__ import annotations

from typing import NamedTuple


class Notice(NamedTuple):
    """Of a code, at a place. Lines and columns count from 1, columns in characters, and `end_column` is the first behind the expression;
    0 for a place that nobody knows. cell: of a notebook, its number among the cells of code; lines are then those of the cell.
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

    @property
    def where(self) -> str:
        if not self.line:
            return self.path
        inside = "" if self.cell is None else f"cell {self.cell}:"
        return f"{self.path}:{inside}{self.line}:{self.column}"


class Problem(NamedTuple):
    """A file that could not be read, and why."""

    path: str
    line: int
    message: str

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}" if self.line else self.path
