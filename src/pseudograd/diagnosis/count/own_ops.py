"""Ops of this library in the program that is watched: what they are called, and what to do where they cut everything."""

from __future__ import annotations

from collections.abc import Collection

from ...ops.bound_rules import DEFAULT_RULE, TRUE_RULE
from ...rule import Call

_PINNED = ", pinned"


def called(calls: Collection[Call]) -> str:
    """By op and rule where all calls of a line have the same; else by the op."""
    names = {_primitive(call) for call in calls}
    told = {_told(call) for call in calls}
    return told.pop() if len(told) == 1 else " or ".join(sorted(names))


def remedy(calls: Collection[Call]) -> str:
    """Where nothing passes: who chose the rule there, and how to choose another. "" where the rule has no better one."""
    kinds = {_remedy(call) for call in calls}
    return kinds.pop() if len(kinds) == 1 else ""


def _primitive(call: Call) -> str:
    return call.primitive.name.partition(_PINNED)[0]


def _is_pinned(call: Call) -> bool:
    return _PINNED in call.primitive.name


def _told(call: Call) -> str:
    if _is_pinned(call):
        return f"{_primitive(call)} as pinned to {call.rule.name.removeprefix('zero/')}"
    edge = "" if call.edge is None or call.rule.ignores_edge else f"/{call.edge}"
    return f"{call.label}{edge}"


def _remedy(call: Call) -> str:
    if _is_pinned(call):
        return "pseudograd.pin_edge decides what passes here: leave its context, or pin another convention."
    if call.primitive.name.startswith("torch."):
        return f"pseudograd.override chose the rule {call.rule.name!r} here: choose another for this line."
    if call.rule.name == TRUE_RULE and DEFAULT_RULE in call.primitive.rules:
        return f"rule={DEFAULT_RULE!r}  # in this call, in place of {TRUE_RULE!r}: passes what leads back inside"
    return ""
