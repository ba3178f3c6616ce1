"""The rules of `lint`. Every file of this folder but `rule.py` is one: its `RULE`, a row. No list names them."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from .rule import Rule

__all__ = ["CODES", "RULES", "Rule"]


def _rows() -> tuple[Rule, ...]:
    names = [one.name for one in pkgutil.iter_modules(__path__) if one.name != "rule"]
    rows: list[Rule] = [import_module(f"{__name__}.{name}").RULE for name in names]
    return tuple(sorted(rows, key=lambda rule: rule.code.number))


RULES = _rows()
CODES = tuple(rule.code for rule in RULES)
