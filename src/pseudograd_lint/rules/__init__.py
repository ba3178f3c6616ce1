"""The rules of `lint`: every `Rule` that a file of this folder makes. No list names them."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from ..walk import Rule

_MODULES = [import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)]
RULES: tuple[Rule, ...] = tuple(
    sorted(
        (value for module in _MODULES for value in vars(module).values() if isinstance(value, Rule)),
        key=lambda rule: rule.code.number,
    )
)
CODES = tuple(rule.code for rule in RULES)
