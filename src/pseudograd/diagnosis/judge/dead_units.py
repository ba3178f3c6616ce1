"""Parameters with units that get no gradient: which of these parameters are a finding, and what the report says about the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..records import Partly

# A share of the units. Ten linear layers with torch's initialisation, each followed by a relu and no norm, have up to 0.72 dead units in
# the first ten steps, and still learn. With He's initialisation or a norm the share is at most 0.35.
DEAD_SHARE = 0.75
_LEAST_UNITS = 8  # if there are fewer units, most of them may be dead by chance
_LEAST_BACKWARDS = 3
_LEAST_CHANCES = 128  # the number of gradients that could have reached each unit
_LISTED = 4  # parameters in a line
_LISTED_SHARE = 0.5  # of the entries of a parameter; the report is silent if fewer got no gradient
# Families whose slope is 0 over a range, so a unit can stay there. A mask or a choice of rows does not hold a unit in this way.
_SATURATE = ("relu", "clamp", "sign", "heaviside", "jumprelu", "round")


def are_dead(partly: Partly) -> bool:
    """Are most units dead, after enough chances to get a gradient, because of an op whose slope is 0 over a range?"""
    site = partly.cause
    if partly.is_looked_up or site is None or partly.share < DEAD_SHARE:
        return False
    if partly.units < _LEAST_UNITS or partly.backwards < _LEAST_BACKWARDS:
        return False
    is_function = site.is_own or not site.op[:1].islower()  # a custom Function has the name of its class
    saturates = is_function or (site.family in _SATURATE and site.cut_share >= DEAD_SHARE * partly.share)
    return saturates and site.elements / partly.units >= _LEAST_CHANCES


def group_dead(partly: Iterable[Partly]) -> list[list[Partly]]:
    """The parameters with dead units, grouped by the op that cuts their gradient: weight and bias of a layer are together."""
    groups: dict[object, list[Partly]] = {}
    for row in partly:
        if are_dead(row) and row.cause is not None:
            key = (row.cause.where, row.cause.expression, row.cause.module, row.dead_units, row.units)
            groups.setdefault(key, []).append(row)
    return list(groups.values())


def calm_lines(partly: Sequence[Partly]) -> list[str]:
    """At most two lines: rows of tables that were not looked up or got zeros; other entries without a gradient."""
    tables = [row for row in partly if row.is_looked_up]
    others = [row for row in partly if not (row.is_looked_up or are_dead(row))]
    others = [row for row in others if row.without / row.entries >= _LISTED_SHARE]
    lines = []
    if tables:
        or_padding = " or padding" if any(row.padding is not None for row in tables) else ""
        lines.append(f"not looked up{or_padding} or 0 by value, and without a gradient: {_list(tables, True)}")
    if others:
        lines.append(f"without a gradient in part, no finding: {_list(others, False)}")
    return lines


def _list(partly: Sequence[Partly], are_rows: bool) -> str:
    texts = []
    for row in sorted(partly, key=lambda row: -row.without / row.entries)[:_LISTED]:
        without, total, noun = row.without, row.entries, "entries"
        if are_rows and row.dead_units:
            without, total, noun = row.dead_units, row.units, "rows"
        why = "" if row.padding is None else f" (row {row.padding} is its padding)"
        if row.cause is not None and not are_rows:
            why += f" (the nearest cut is {row.cause.op} at {row.cause.where})"
        texts.append(f"{without:,} of {total:,} {noun} of {row.parameter}{why}")
    more = f" and of {len(partly) - _LISTED} more" if len(partly) > _LISTED else ""
    return ", ".join(texts) + more
