"""A pin of some lines alone, or of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pseudograd.rewrite.context import Rewriting
from pseudograd.rewrite.mode import Replacement
from pseudograd.rewrite.pin_edge import pin_edge
from pseudograd.rewrite.sites import RuleBySite, Site


def contexts(pin: str | None, lines: Sequence[str] | None) -> list[Rewriting]:
    """lines: as `frames.format_location` names them; None: everywhere."""
    if pin is None:
        return []
    context = pin_edge(pin)
    if lines is None or not context.replacements:
        return [context]
    asked = frozenset(lines)
    changed = {
        switch: Replacement(RuleBySite(_at(asked, one.rule)), one.op) for switch, one in context.replacements.items()
    }
    return [Rewriting(repr(context), changed)]


def _at(lines: frozenset[str], rule: object) -> Any:
    def chosen(site: Site) -> object:
        return rule if any(site.is_at(line) for line in lines) else None

    return chosen
