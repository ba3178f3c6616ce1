"""The rules of `lint` as a plugin of flake8. The options of flake8 choose the codes. Opinions are off by default there, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Protocol

from .check import check
from .rules import CODES


class _OptionManager(Protocol):
    def extend_default_ignore(self, error_codes: Sequence[str]) -> None: ...


class Plugin:
    name = "pseudograd"
    version = "1"
    # flake8 would leave out the whole plugin if this were called `off_by_default`.
    opinions = tuple(code.number for code in CODES if not code.is_default)

    def __init__(self, tree: ast.Module, lines: Sequence[str], filename: str = "") -> None:
        self.tree, self.lines, self.filename = tree, lines, filename

    @classmethod
    def add_options(cls, parser: _OptionManager) -> None:
        """Let flake8 report opinions only if `--extend-select PG15` asks for them."""
        parser.extend_default_ignore(list(cls.opinions))

    def run(self) -> Iterator[tuple[int, int, str, type]]:
        lines = [line.rstrip("\r\n") for line in self.lines]
        for notice in check(self.tree, lines, self.filename, {code.number for code in CODES}):
            yield notice.line, notice.column - 1, f"{notice.code} {notice.message}", type(self)
