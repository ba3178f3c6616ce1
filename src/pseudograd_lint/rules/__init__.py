"""The rules of `lint`: every `Rule` that a file of this folder makes. No list names them.

The rules of one kind are one file, since `lint` imports all of them at every start.
"""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from pseudograd_notices.code import Code

from ..names import Module


class Rule(NamedTuple):
    """code: with a program that shows it and a program in which it is silent. kinds: the nodes that it judges. words: a file without any
    of these words holds nothing for it. find: returns the message about a node, a sentence or two; None for nothing.
    """

    code: Code
    kinds: tuple[type, ...]
    words: tuple[str, ...]
    find: Callable[[Module, ast.AST], str | None]


_MODULES = [import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
RULES: tuple[Rule, ...] = tuple(
    sorted(
        (value for module in _MODULES for value in vars(module).values() if isinstance(value, Rule)),
        key=lambda rule: rule.code.number,
    )
)
CODES = tuple(rule.code for rule in RULES)
