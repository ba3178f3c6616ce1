"""Parameters of which some units get no gradient: which of them are a finding, and what the report says of the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..records import Partly

# As a share of the units. Ten linear layers as torch initialises them, each with a relu and no norm behind it, have up to 0.72 dead in the
# first ten steps and learn all the same; with He's initialisation or a norm it is at most 0.35.
DEAD_SHARE = 0.75
_LEAST_UNITS = 8  # of fewer units, most may be dead by chance
_LEAST_BACKWARDS = 3
_LEAST_CHANCES = 128  # gradients that could have come to each unit
_LISTED = 4  # parameters in a line
# Their slope is 0 over a range, so a unit can stay there. A mask or a choice of rows is no such op.
_SATURATE = ("relu", "clamp", "sign", "heaviside", "jumprelu", "round")


def are_dead(partly: Partly) -> bool:
    """Are most units dead, after enough chances, behind an op that can hold them where its slope is 0?"""
    site = partly.cause
    if partly.is_looked_up or site is None or partly.share < DEAD_SHARE:
        return False
    if partly.units < _LEAST_UNITS or partly.backwards < _LEAST_BACKWARDS:
        return False
    is_function = site.is_own or not site.op[:1].islower()  # a custom Function has the name of its class
    saturates = is_function or (site.family in _SATURATE and site.cut_share >= DEAD_SHARE * partly.share)
    return saturates and site.elements / partly.units >= _LEAST_CHANCES


def group_dead(partly: Iterable[Partly]) -> list[list[Partly]]:
    """The parameters with dead units by the op that holds them: weight and bias of a layer together."""
    groups: dict[object, list[Partly]] = {}
    for row in partly:
        if are_dead(row) and row.cause is not None:
            key = (row.cause.where, row.cause.expression, row.cause.module, row.dead_units, row.units)
            groups.setdefault(key, []).append(row)
    return list(groups.values())


def calm_lines(partly: Sequence[Partly]) -> list[str]:
    """A line for the rows that no batch looked up, and a line for other entries without a gradient."""
    looked_up = [row for row in partly if row.is_looked_up]
    others = [row for row in partly if not row.is_looked_up and not are_dead(row) and row.without / row.entries >= 0.5]
    lines = []
    if looked_up:
        or_padding = " or padding" if any(row.padding is not None for row in looked_up) else ""
        lines.append(f"not looked up{or_padding}, so without a gradient: {_list(looked_up, True)}")
    if others:
        lines.append(f"without a gradient in part, no finding: {_list(others, False)}")
    return lines


def _list(partly: Sequence[Partly], are_rows: bool) -> str:
    texts = []
    for row in sorted(partly, key=lambda row: -row.without / row.entries)[:_LISTED]:
        without, total, noun = row.without, row.entries, "entries"
        if are_rows and row.dead_units:
            without, total, noun = row.dead_units, row.units, "rows"
        padding = "" if row.padding is None else f" (row {row.padding} is its padding)"
        texts.append(f"{without:,} of {total:,} {noun} of {row.parameter}{padding}")
    more = f" and of {len(partly) - _LISTED} more" if len(partly) > _LISTED else ""
    return ", ".join(texts) + more
