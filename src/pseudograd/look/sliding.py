"""A slider in a plot: a rule whose parameter runs along a range, as an animation of matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import must
from ..rule import Op
from ..rule_ranges import Range, range_of
from .panels import Panels, Rows, Stroke, drawn, redrawn, widened

FRAMES = 25
_MILLISECONDS = 120


def sliding(wanted: Sequence[object], op: Op, descend: object) -> Range | None:
    """The one range among the rules, checked; None where there is none."""
    found = [one for text in wanted if isinstance(text, str) and (one := range_of("plot", text, op, "f_or_rules"))]
    if not found:
        return None
    if len(found) > 1 or len(found[0].ends) > 1:
        remedy = "One slider moves one parameter"
        raise ValueError(must("plot", "f_or_rules", "have one range at most", [str(one) for one in wanted], remedy))
    if descend is not None:
        raise ValueError(must("plot", "descend", f"be left out where {found[0].text} slides", descend))
    return found[0]


def values_of(one: Range) -> list[float]:
    """From the low end to the high one by a constant factor: parameters of rules are above 0."""
    ((_, low, high),) = one.ends
    return [low * (high / low) ** (at / (FRAMES - 1)) for at in range(FRAMES)]


def shown_at(one: Range, value: float) -> str:
    """What a title says."""
    ((name, _, _),) = one.ends
    return f"{name} = {value:.3g}"


def slides(
    one: Range,
    wanted: Sequence[Any],
    rows_of: Callable[[list[object]], Rows],
    span: tuple[float, float],
    above: str,
    ax: Any,
) -> Panels:
    """The panels at the low end of the range, and in `animation` a FuncAnimation that draws them along it. rows_of: of what is drawn."""
    values = values_of(one)
    texts = [[one.at([value]) if text == one.text else text for text in wanted] for value in values]
    frames = [rows_of(some) for some in texts]
    if len(wanted) > 1:  # then no panel has the rule's name above it
        frames = [_titled(rows, shown_at(one, value)) for rows, value in zip(frames, values, strict=True)]
    frames = [
        _with_entry(rows, some[wanted.index(one.text)], one.text) for rows, some in zip(frames, texts, strict=True)
    ]
    panels = drawn(frames[0], span, above, ax)
    widened(panels, frames)
    return panels._replace(animation=_animated(panels, frames, span))


def _titled(rows: Rows, title: str) -> Rows:
    first, *others = rows
    return [[panel and panel._replace(title=panel.title or title) for panel in first], *others]


def _with_entry(rows: Rows, text: str, stays: str) -> Rows:
    """What the legend says of the rule is the same in every frame."""
    return [
        [panel and panel._replace(strokes=[_renamed(stroke, text, stays) for stroke in panel.strokes]) for panel in row]
        for row in rows
    ]


def _renamed(stroke: Stroke, text: str, stays: str) -> Stroke:
    return stroke._replace(entry=stroke.entry.replace(text, stays))


def _animated(panels: Panels, frames: Sequence[Rows], span: tuple[float, float]) -> object:
    from matplotlib.animation import FuncAnimation

    def update(at: int) -> list[Any]:
        return redrawn(panels, frames[at], span)

    return FuncAnimation(panels.figure, update, frames=len(frames), interval=_MILLISECONDS)
