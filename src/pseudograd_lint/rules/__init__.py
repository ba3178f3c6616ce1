"""The rules of `lint`: every `Rule` that a file of this folder makes. No list names them. codes.md explains their codes.

Rules of one kind share a file, because `lint` imports all of them at every start.
"""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from pseudograd_notices.code import Code

from ..names import Module

_SECTION = re.compile(
    r"# (PG\d+) (\S+)\n\n(.+?)\.( Off by default\.)?\n\n(.+?)\n\nInstead: (.+?)\n\n```python\n(.+?)```\n\n```python\n(.+?)```\n",
    re.S,
)


class Rule(NamedTuple):
    """kinds: types of nodes to judge. words: a file without any of these is not searched. find: returns a message about a node, or None."""

    number: str
    kinds: tuple[type, ...]
    words: tuple[str, ...]
    find: Callable[[Module, ast.AST], str | None]


def _parse_codes(page: str) -> tuple[Code, ...]:
    sections = [
        [" ".join(part.split("\n")) for part in groups[:6]] + [*groups[6:]] for groups in _SECTION.findall(page)
    ]
    return tuple(
        Code(number, name, meaning[0].lower() + meaning[1:], why, mend, bad, good, is_default=not off)
        for number, name, meaning, off, why, mend, bad, good in sections
    )


CODES = _parse_codes(Path(__file__).with_name("codes.md").read_text(encoding="utf-8"))
_MODULES = [import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
_RULES = (value for module in _MODULES for value in vars(module).values() if isinstance(value, Rule))
RULES: tuple[Rule, ...] = tuple(sorted(_RULES, key=lambda rule: rule.number))
