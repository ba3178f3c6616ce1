"""Parameters that get a gradient in part: units that are dead, and rows that nobody asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..records import Partly

# Of the units. Ten linear layers as torch initialises them, each with a relu and no norm behind it, have up to 0.72 dead in the first ten
# steps and learn all the same; with He's initialisation or a norm it is at most 0.35.
MOST = 0.75
_FEW = 8  # units: of fewer, most of them is chance
_SHORT = 3  # backward passes
_CHANCES = 128  # gradients that could have come to each unit
# Their slope is 0 over a range, so a unit can stay there. A mask or a choice of rows is no such op.
_SATURATE = ("relu", "clamp", "sign", "heaviside", "jumprelu", "round")


def are_dead(one: Partly) -> bool:
    """Is it a finding? Most of the units, behind an op that can hold them where its slope is 0, after enough chances."""
    site = one.cause
    if one.is_looked_up or site is None or one.units < _FEW or one.backwards < _SHORT or one.share < MOST:
        return False
    is_function = site.is_own or not site.op[:1].islower()  # a custom Function keeps the name of its class
    saturates = is_function or (site.family in _SATURATE and site.cut_share >= MOST * one.share)
    return saturates and site.elements / one.units >= _CHANCES


def calm_of(some: Sequence[Partly]) -> list[str]:
    """One line for the rows that no batch asked for, one for what else got nothing in part."""
    lines = []
    asked = [one for one in some if one.is_looked_up]
    others = [one for one in some if not one.is_looked_up and not are_dead(one) and one.without / one.entries >= 0.5]
    if asked:
        or_padding = " or padding" if any(one.padding is not None for one in asked) else ""
        lines.append(f"not looked up{or_padding}, so without a gradient: {_listed(asked, True)}")
    if others:
        lines.append(f"without a gradient in part, no finding: {_listed(others, False)}")
    return lines


def _listed(some: Sequence[Partly], are_rows: bool) -> str:
    def says(one: Partly) -> str:
        without, of = (one.dead_units, one.units) if are_rows and one.dead_units else (one.without, one.entries)
        what = "rows" if are_rows and one.dead_units else "entries"
        padding = "" if one.padding is None else f" (row {one.padding} is its padding)"
        return f"{without:,} of {of:,} {what} of {one.parameter}{padding}"

    shown = sorted(some, key=lambda one: -one.without / one.entries)
    return ", ".join(map(says, shown[:4])) + (f" and of {len(some) - 4} more" if len(some) > 4 else "")


def grouped(some: Iterable[Partly]) -> list[list[Partly]]:
    """Those that one op holds, together: weight and bias of a layer."""
    groups: dict[object, list[Partly]] = {}
    for one in some:
        if are_dead(one) and one.cause is not None:
            key = (one.cause.where, one.cause.expression, one.cause.module, one.dead_units, one.units)
            groups.setdefault(key, []).append(one)
    return list(groups.values())
