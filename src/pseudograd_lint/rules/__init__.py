"""The rules of `lint`: every `Rule` that a file of this folder makes. No list names them. codes.md explains their codes.

Rules of one kind share a file, because `lint` imports all of them at every start.
"""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from pseudograd_notices.code import read_codes

from ..names import Module


class Rule(NamedTuple):
    """A rule of `lint`."""

    number: str
    kinds: tuple[type, ...]  # the types of nodes to judge
    words: tuple[str, ...]  # a file without any of these words is not searched
    find: Callable[[Module, ast.AST], str | None]  # returns a message about a node, or None


CODES = read_codes(Path(__file__).with_name("codes.md"))
_MODULES = [import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
_RULES = (value for module in _MODULES for value in vars(module).values() if isinstance(value, Rule))
RULES: tuple[Rule, ...] = tuple(sorted(_RULES, key=lambda rule: rule.number))
