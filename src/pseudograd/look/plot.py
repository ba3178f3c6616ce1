"""Draw a backward rule: forward above, dL/dx below for both signs of grad, with the values exactly at the bounds as dots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..arguments import as_number, is_number
from ..errors import must, unknown_name
from ..ops.bounds import picture_of
from ..rule import OPS, Edge, Picture, RuleObject
from .curves import (
    Curve,
    Function,
    Grid,
    check_element_wise,
    curve_of,
    gradient_of,
    grid_of,
    jumps_in,
    line_of,
    told_apart,
)
from .gradient import gradient
from .palette import FORWARD, LOSS, darker
from .panels import Panel, Panels, Rows, Stroke, drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Drawable = str | RuleObject | Callable[..., Tensor]
_STYLES: tuple[Any, ...] = ("-", (0, (3.2, 1.4)), (0, (1, 1.1)), (0, (5, 1.2, 1, 1.2)))
_TOGETHER = len(_STYLES)  # so many curves can be told apart in one panel
_COLUMNS = 4


def plot(
    f_or_rules: Drawable | Sequence[Drawable],
    min: float | None = None,
    max: float | None = None,
    *,
    op: str = "clamp",
    loss: Function | None = None,
    grad: Sequence[float] = (1.0, -1.0),
    panels: str | None = None,
    title: str | Sequence[str] | None = None,
    xlim: tuple[float, float] | None = None,
    edge: Edge | None = None,
    maximize: bool = False,
    ax: Axes | None = None,
) -> Panels:
    """Draw what a rule, several rules or any function give forward and backward.

    Forward:  y, and loss(y) if there is a loss, in the upper panel.
    Backward: below, on the same x axis, dL/dx for each number in `grad` as dL/dy; with `loss`, dL/dx of loss(y) over the dL/dy that
        arrives. Several curves that share a panel have one for each number in `grad`. The range is shaded. At a bound or a jump a full
        dot is the value exactly there, and a ring a value just beside it that is not taken there.

    Args:
        f_or_rules: a rule of `op` by name ("sign", or "zero/open" with an edge), a rule object, an element-wise
            function, or a list of these. A function is called as f(x, min, max) if a bound is given, else as f(x).
        min, max: numbers in the unit of x; for rules of `clamp` they default to -1 and 1. The other ops bring their own.
        op: whose rules these are, by its name in `pseudograd rules`.
        loss: element-wise function of y.
        grad: the values of dL/dy to draw without a loss, at most four.
        panels: "rules" for a column of its own for each rule or function; None for one column, up to four of them in a panel.
        title: a text above the panels, or a list with one text for each column. By default a column is titled by its rule.
        xlim: the x to draw, as (low, high); None for the range and half of it to both sides.
        edge: what rules give at a bound, unless they name it themselves; None for the default of `op`.
        maximize: draw the rules as for gradient ascent.
        ax: axes whose place the panels take, themselves the first panel; None for the current figure if it is empty, else a new one.
    Returns: `figure`, and the axes `forward` and `backward` as tuples, with one line per curve. Text shrinks with a small figure, so
        that all of it and the legend stay inside.
    Raises: TypeError for what is no rule, function, number or axes; ValueError for an unknown op, rule or edge, more than four curves
        for one panel, bounds for an op that is not clamp, and a function or loss that is not element-wise; ImportError without
        matplotlib.
    Example:
        >>> drawn = plot("sign", -1, 1)  # doctest: +SKIP
        >>> drawn = plot(["zero", "sign"], -1, 1, panels="rules", loss=torch.square)  # doctest: +SKIP
        >>> drawn = plot(["trust", "identity"], op="round")  # doctest: +SKIP
    Source: the plots of An analysis of clamp_with_grad (J. Halliwell, 2022), with both signs of grad.
    """
    wanted: list[Any] = [f_or_rules] if _is_one(f_or_rules) else list(f_or_rules)  # type: ignore[arg-type]
    min, max = as_number(min), as_number(max)
    _check(wanted, min, max, loss, panels)
    grads = _checked_grads(grad)
    picture = _picture(op, min, max, any(isinstance(drawable, (str, RuleObject)) for drawable in wanted), xlim)
    curves = told_apart([curve_of(drawable, OPS[op], picture, edge, maximize, i) for i, drawable in enumerate(wanted)])
    rows = _rows(wanted, curves, picture, grads, loss, panels == "rules", title)
    above = title if isinstance(title, str) and panels == "rules" and len(wanted) > 1 else ""
    return drawn(rows, (picture.low, picture.high), above, ax)


def _rows(
    wanted: list[object],
    curves: list[Curve],
    picture: Picture,
    grads: list[float],
    loss: Function | None,
    is_column_each: bool,
    title: object,
) -> Rows:
    """Every panel, with what is drawn in it."""
    grid = grid_of(picture, curves)
    for curve in curves:
        check_element_wise("f_or_rules", curve.f, torch.cat(grid.pieces))
        if loss is not None:
            check_element_wise("loss", loss, curve.f(torch.cat(grid.pieces)).detach())
    grid = grid_of(picture, curves, _jumps(wanted, curves, grads, loss, picture))
    painter = _Painter(grid, curves, grads, loss)
    columns = [[curve] for curve in curves] if is_column_each or len(curves) == 1 else [curves]
    titles = _titles(title, columns)
    made = [painter.column(column, text) for column, text in zip(columns, titles, strict=True)]
    return _wrapped(made, painter.is_one_forward)


def _jumps(wanted: list[object], curves: list[Curve], grads: list[float], loss: Any, picture: Picture) -> set[float]:
    """Of functions, which do not say where they or their gradients jump, as rules do; and of every loss."""
    drawn: list[Function] = []
    for one, curve in zip(wanted, curves, strict=True):
        if loss is not None:
            drawn += [_chained(loss, curve), gradient_of(_chained(loss, curve), 1.0)]
            drawn.append(lambda x, f=curve.f: gradient(loss, f(x).detach()))  # type: ignore[misc]
        if not isinstance(one, (str, RuleObject)):
            drawn += [curve.f, *(gradient_of(curve.f, grad) for grad in grads)]
    return jumps_in(drawn, picture.low, picture.high)


# --- arguments --------------------------------------------------------------------------------------------------------


def _is_one(f_or_rules: object) -> bool:
    return isinstance(f_or_rules, (str, RuleObject)) or not isinstance(f_or_rules, Sequence)


def _check(wanted: list[Any], min: Any, max: Any, loss: object, panels: object) -> None:
    if not wanted:
        raise TypeError(must("plot", "f_or_rules", "name at least one rule or function", wanted))
    for name, bound in (("min", min), ("max", max)):
        if isinstance(bound, (str, RuleObject)) or callable(bound):
            remedy = "Write several rules or functions as one list"
            raise TypeError(must("plot", name, "be a number or None", bound, remedy))
        if bound is not None and not is_number(bound):
            raise TypeError(must("plot", name, "be a number or None", bound))
        if bound is not None and not math.isfinite(bound):
            raise ValueError(must("plot", name, "be finite", bound, "Use None for no bound"))
    if min is not None and max is not None and min > max:
        raise ValueError(must("plot", "min and max", "be in this order", (min, max), "Swap them or drop one"))
    if loss is not None and not callable(loss):
        raise TypeError(must("plot", "loss", "be an element-wise function of y, or None", loss))
    if panels not in (None, "rules"):
        raise ValueError(must("plot", "panels", "be 'rules' or None", panels))
    if panels is None and len(wanted) > _TOGETHER:
        remedy = "Give each a column of its own with panels='rules'"
        raise ValueError(must("plot", "f_or_rules", f"be at most {_TOGETHER} for one panel", len(wanted), remedy))


def _checked_grads(grad: object) -> list[float]:
    if not isinstance(grad, Sequence) or isinstance(grad, str):
        remedy = f"Write grad=({shown},)" if isinstance(shown := as_number(grad), (int, float)) else None
        raise TypeError(must("plot", "grad", "be a list of numbers", grad, remedy))
    found = [as_number(value) for value in grad]
    if not all(is_number(value) and math.isfinite(value) for value in found):
        raise TypeError(must("plot", "grad", "be a list of finite numbers", grad))
    if not 1 <= len(found) <= _TOGETHER:
        raise ValueError(must("plot", "grad", f"have 1 to {_TOGETHER} numbers", grad))
    return found


def _picture(op: str, min: float | None, max: float | None, has_rules: bool, xlim: object) -> Picture:
    """Where to draw, and with which inputs behind x."""
    if op not in OPS:
        raise unknown_name("plot", "op", tuple(OPS), op)
    picture = OPS[op].picture
    if op == "clamp" and (min is not None or max is not None):
        picture = picture_of(min, max)
    elif op == "clamp" and not has_rules:
        picture = Picture()
    elif min is not None or max is not None:
        raise ValueError(must("plot", "min and max", f"be None for {op}", (min, max), "Give a function of x instead"))
    if xlim is None:
        return picture
    limits = [as_number(limit) for limit in xlim] if isinstance(xlim, Sequence) else []
    if not (len(limits) == 2 and all(is_number(x) and math.isfinite(x) for x in limits) and limits[0] < limits[1]):
        raise ValueError(must("plot", "xlim", "be two finite numbers, the lower one first", xlim))
    return picture.replaced(low=float(limits[0]), high=float(limits[1]))


def _titles(title: object, columns: list[list[Curve]]) -> list[str]:
    """One text for each column."""
    own = [column[0].label if len(column) == 1 else "" for column in columns]
    if title is None:
        return own
    if isinstance(title, str):
        return [title] if len(columns) == 1 else own
    if not isinstance(title, Sequence) or not all(isinstance(text, str) for text in title):
        raise TypeError(must("plot", "title", "be a text or a list of texts", title))
    if len(title) != len(columns):
        raise ValueError(must("plot", "title", f"have a text for each of the {len(columns)} columns", title))
    return list(title)


# --- panels -----------------------------------------------------------------------------------------------------------


class _Painter:
    """Makes the panels of a column."""

    def __init__(self, grid: Grid, curves: list[Curve], grads: list[float], loss: Function | None) -> None:
        self.grid, self.grads, self.loss = grid, grads, loss
        values = [line_of(curve.f, grid).y.nan_to_num() for curve in curves]
        self.is_one_forward = all(value.equal(values[0]) for value in values)
        self.y = curves[0].y if self.is_one_forward else "y"

    def column(self, curves: list[Curve], title: str) -> list[Panel]:
        """Forward, and what is below it."""
        is_one = self.is_one_forward or len(curves) == 1
        above = self._one_forward(curves[0]) if is_one else self._forwards(curves)
        below = self._gradients(curves) if self.loss is None else [self._chain(curves, self.loss)]
        inside = curves[0].inside if is_one else None
        panels = [panel._replace(inside=inside) for panel in (*above, *below)]
        return [panels[0]._replace(title=title), *panels[1:]]

    def _one_forward(self, curve: Curve) -> list[Panel]:
        strokes = [Stroke(line_of(curve.f, self.grid), self.y, FORWARD, width=4, alpha=0.55)]
        if self.loss is not None:
            strokes.append(Stroke(line_of(_chained(self.loss, curve), self.grid), "loss", LOSS, _STYLES[2]))
        return [Panel("forward", "y" if self.loss is None else "y and loss", strokes)]

    def _forwards(self, curves: list[Curve]) -> list[Panel]:
        """Of functions with different values: those of the loss have a panel of their own."""
        values = [Stroke(line_of(curve.f, self.grid), curve.label, *look) for curve, look in _looks(curves)]
        if self.loss is None:
            return [Panel("forward", "y", values)]
        loss = self.loss
        losses = [line_of(_chained(loss, curve), self.grid) for curve in curves]
        strokes = [stroke._replace(line=line) for stroke, line in zip(values, losses, strict=True)]
        return [Panel("forward", "y", values), Panel("forward", "loss", strokes)]

    def _gradients(self, curves: list[Curve]) -> list[Panel]:
        """dL/dx for each dL/dy: of one curve in one panel, of several in a panel for each dL/dy."""
        holds = (0.0, *self.grads)
        if len(curves) == 1:
            (curve,) = curves
            entries = [f"dL/dx where dL/dy = {_signed(grad)}" for grad in self.grads]
            lines = [line_of(gradient_of(curve.f, grad), self.grid, curve.jumps) for grad in self.grads]
            shades = [curve.colour, *[darker(curve.colour)] * (len(lines) - 1)]
            widths = _widths(len(lines))
            strokes = [Stroke(*look) for look in zip(lines, entries, shades, _STYLES, widths, strict=False)]
            return [Panel("backward", "dL/dx", strokes, holds=holds)]
        panels = []
        for grad in self.grads:
            strokes = [
                Stroke(line_of(gradient_of(curve.f, grad), self.grid, curve.jumps), curve.label, *look)
                for curve, look in _looks(curves)
            ]
            panels.append(Panel("backward", f"dL/dx where\ndL/dy = {_signed(grad)}", strokes, holds=holds))
        return panels

    def _chain(self, curves: list[Curve], loss: Function) -> Panel:
        """dL/dx of the loss, over the dL/dy that arrives where that is the same for all."""
        strokes = []
        if self.is_one_forward or len(curves) == 1:
            arriving = line_of(lambda x: gradient(loss, curves[0].f(x).detach()), self.grid)
            strokes.append(Stroke(arriving, "dL/dy", FORWARD, (0, (0.9, 0.45)), width=4, alpha=0.55))
        for curve, look in _looks(curves):
            whole = line_of(gradient_of(_chained(loss, curve), 1.0), self.grid, curve.jumps)
            strokes.append(Stroke(whole, "dL/dx" if len(curves) == 1 else f"dL/dx {curve.label}", *look))
        return Panel("backward", "dL/dx", strokes)


def _chained(loss: Function, curve: Curve) -> Function:
    return lambda x: loss(curve.f(x))


def _looks(curves: list[Curve]) -> list[tuple[Curve, tuple[str, object, float]]]:
    """Colour, style and width: each curve is thinner than the one below it, which shows at its rim where the two coincide."""
    widths = _widths(len(curves))
    return [(curve, (curve.colour, *look)) for curve, *look in zip(curves, _STYLES, widths, strict=False)]


def _widths(count: int) -> list[float]:
    return [1.8 + 1.5 * (count - 1 - position) for position in range(count)]


def _signed(value: float) -> str:
    return f"{value:+g}".replace("-", "\N{MINUS SIGN}")


def _wrapped(columns: list[list[Panel]], is_one_forward: bool) -> Rows:
    """Rows of at most four columns. Below a forward that all share stands no other."""
    count = len(columns)
    across = count if count <= _COLUMNS else min((_COLUMNS, 3), key=lambda n: (-count % n, -n))
    rows: list[list[Panel | None]] = []
    for start in range(0, count, across):
        block = columns[start : start + across]
        above = list(zip(*block, strict=True))
        if rows and is_one_forward:
            # Its title names the rule, which the panel below has to say now.
            titled = [panel._replace(title=top.title) for top, panel in zip(above[0], above[1], strict=True)]
            above = [tuple(titled), *above[2:]]
        rows += [[*row, *[None] * (across - len(row))] for row in above]
    return rows
