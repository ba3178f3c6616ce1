"""Parameters with units that get no gradient: which of these parameters are a finding, and what the report says about the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...wording import listed
from ..count.drops import READS_OTHERS
from ..records import Partly, Site

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
    is_function = site.is_own or not site.op[0].islower()  # a custom Function has the name of its class
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


def are_chosen_out(partly: Partly) -> bool:
    """Does an op drop most entries, chosen by the parameter's own values alone? These entries cannot come back."""
    if partly.own_choice is None or are_dead(partly) or not partly.drops:
        return False
    if partly.drops[0][0].family in _SATURATE and not isinstance(partly.own_choice, Site):
        return False
    is_most = partly.without / partly.entries >= _LISTED_SHARE
    return is_most and partly.units >= _LEAST_UNITS and partly.backwards >= _LEAST_BACKWARDS


def calm_lines(partly: Sequence[Partly]) -> list[str]:
    """At most three lines: rows that no batch looked up; rows that were not looked up or got zeros; other entries without a gradient."""
    tables = [row for row in partly if row.is_looked_up and not are_chosen_out(row)]
    measured = [row for row in tables if row.drops and row.drops[0][1] == READS_OTHERS]
    unsure = [row for row in tables if not row.drops]
    others = [row for row in partly if not (row in measured or row in unsure or are_dead(row) or are_chosen_out(row))]
    others = [row for row in others if row.without / row.entries >= _LISTED_SHARE]
    lines = []
    for rows, zero in ((measured, ""), (unsure, " or 0 by value")):
        if rows:
            or_padding = " or padding" if any(row.padding is not None for row in rows) else ""
            lines.append(f"not looked up{or_padding}{zero}, and without a gradient: {_list(rows, True)}")
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
        if row.drops and not are_rows:
            why += f" ({listed([f'{site.op} at {site.where} {how}' for site, how in row.drops[:2]])})"
        texts.append(f"{without:,} of {total:,} {noun} of {row.parameter}{why}")
    more = f" and of {len(partly) - _LISTED} more" if len(partly) > _LISTED else ""
    return ", ".join(texts) + more
