"""Draw a backward rule: forward above, dL/dx below for both signs of grad, with the values exactly at the bounds as dots."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

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
    number_names,
)
from .gradient import checked_function, gradient, in_dtype, name_of, on_copy
from .palette import FORWARD, LOSS, darker
from .panels import Panel, Panels, Rows, Stroke, draw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.typing import LineStyleType

Drawable = str | RuleObject | Callable[..., Tensor]
_STYLES: tuple[LineStyleType, ...] = ("-", (0, (3.2, 1.4)), (0, (1, 1.1)), (0, (5, 1.2, 1, 1.2)))
_MOST_CURVES = len(_STYLES)  # that can be told apart in one panel
_MOST_COLUMNS = 4


def plot(
    f_or_rules: Drawable | Sequence[Drawable],
    min: float | None = None,
    max: float | None = None,
    *,
    op: str = "clamp",
    loss: Function | None = None,
    grad: Sequence[float] = (1.0, -1.0),
    panels: Literal["rules"] | None = None,
    title: str | Sequence[str] | None = None,
    xlim: tuple[float, float] | None = None,
    edge: Edge | None = None,
    maximize: bool = False,
    ax: Axes | None = None,
) -> Panels:
    """Draw the forward and the backward of a rule, of several rules, or of any function.

    Forward:  the upper panel has y, and loss(y) if there is a loss.
    Backward: the panel below has dL/dx over the same x. Without a loss, dL/dy is each number in `grad`. With a loss, dL/dy comes from
        loss(y) and is drawn too. If several curves share a panel, each number in `grad` has a panel of its own. The range is shaded. At
        a bound or a jump, a full dot is the value exactly there, and a ring is the limit from one side, if it is another number.

    Args:
        f_or_rules: a rule of `op` by name ("sign", or "zero/open" with an edge), a rule object, an element-wise
            function, or a list of these. A function is called as f(x, min, max) if a bound is given and f takes both, else as f(x).
        min, max: the bounds of x; for rules of `clamp` they default to -1 and 1. Other ops have bounds of their own.
        op: the op that has these rules, by its name in `pseudograd rules`.
        loss: element-wise function of y.
        grad: the values of dL/dy to draw without a loss, at most four.
        panels: "rules" for a column of its own for each rule or function; None for one column, whose panels have up to four curves.
        title: a text above the panels, or a list with one text for each column. By default a column is titled by its rule.
        xlim: the x to draw, as (low, high); None for the range and half of its width on both sides.
        edge: the edge of rules that name none; None for the default of `op`.
        maximize: draw the rules as for gradient ascent.
        ax: axes that become the first panel; the other panels are drawn in the same cell of the figure. None for the current figure if
            it is empty, else for a new figure.
    Returns: `figure`, and the axes `forward` and `backward` as tuples, with one line per curve. The legend stays inside the figure.
    Raises: TypeError for an argument of another type; ValueError for an unknown op, rule or edge, more than four curves for one panel,
        bounds for an op that is not clamp, and a function or loss that is not element-wise; ImportError without matplotlib.
    Example:
        >>> drawn = plot("sign", -1, 1)  # doctest: +SKIP
        >>> drawn = plot(["zero", "sign"], -1, 1, panels="rules", loss=torch.square)  # doctest: +SKIP
        >>> drawn = plot(["trust", "identity"], op="round")  # doctest: +SKIP
    Source: the plots of An analysis of clamp_with_grad (J. Halliwell, 2022), with both signs of grad.
    """
    drawables = (
        [f_or_rules]
        if isinstance(f_or_rules, (str, RuleObject)) or not isinstance(f_or_rules, Sequence)
        else [*f_or_rules]
    )
    min, max = as_number(min), as_number(max)
    _check(drawables, min, max, panels)
    loss_name = name_of(loss)
    if loss is not None:
        loss = checked_function("plot", "loss", loss, "an element-wise function of y, or None")
        loss = on_copy(in_dtype(loss, torch.float64), torch.float64)
    grads = _check_grads(grad)
    is_rule = [isinstance(drawable, (str, RuleObject)) for drawable in drawables]
    picture = _picture(op, min, max, any(is_rule), xlim)
    curves = number_names([curve_of(part, OPS[op], picture, edge, maximize, i) for i, part in enumerate(drawables)])
    points = torch.cat(grid_of(picture, curves).pieces)
    for curve in curves:
        check_element_wise("f_or_rules", curve.label, curve.f, points)
        if loss is not None:
            check_element_wise("loss", loss_name, loss, curve.f(points).detach())
    functions = [curve for curve, is_of_rule in zip(curves, is_rule, strict=True) if not is_of_rule]
    grid = grid_of(picture, curves, _jumps(functions, curves, grads, loss, picture))
    columns = [[curve] for curve in curves] if panels == "rules" or len(curves) == 1 else [curves]
    values = [line_of(curve.f, grid).y.nan_to_num() for curve in curves]
    has_same_y = all(value.equal(values[0]) for value in values)
    stacks = [_stack(column, grid, grads, loss, has_same_y, curves[0].y) for column in columns]
    for stack, text in zip(stacks, _titles(title, columns), strict=True):
        stack[0] = stack[0]._replace(title=text)
    title_above = title if isinstance(title, str) and panels == "rules" and len(drawables) > 1 else ""
    return draw(_wrap(stacks, has_same_y), (picture.low, picture.high), title_above, ax)


def _jumps(
    functions: list[Curve], curves: list[Curve], grads: list[float], loss: Function | None, picture: Picture
) -> set[float]:
    """Measure where the functions, their gradients and every loss jump. functions: the curves that are no rules; rules know their jumps."""
    lines: list[Function] = [curve.f for curve in functions]
    lines += [gradient_of(curve.f, grad) for curve in functions for grad in grads]
    for curve in curves:
        if loss is not None:
            lines += [_chain(loss, curve), gradient_of(_chain(loss, curve), 1.0), _arriving(loss, curve)]
    return jumps_in(lines, picture.low, picture.high)


def _check(drawables: Sequence[object], min: object, max: object, panels: object) -> None:
    if not drawables:
        raise TypeError(must("plot", "f_or_rules", "name at least one rule or function", drawables))
    for name, bound in (("min", min), ("max", max)):
        if bound is not None and not is_number(bound):
            is_rule = isinstance(bound, (str, RuleObject)) or callable(bound)
            remedy = "Write several rules or functions as one list" if is_rule else None
            raise TypeError(must("plot", name, "be a number or None", bound, remedy))
        if isinstance(bound, (int, float)) and not math.isfinite(bound):
            raise ValueError(must("plot", name, "be finite", bound, "Use None for no bound"))
    if isinstance(min, (int, float)) and isinstance(max, (int, float)) and min > max:
        raise ValueError(must("plot", "min and max", "be in this order", (min, max), "Swap them or drop one"))
    if panels not in (None, "rules"):
        raise ValueError(must("plot", "panels", "be 'rules' or None", panels))
    if panels is None and len(drawables) > _MOST_CURVES:
        remedy = "Give each a column of its own with panels='rules'"
        raise ValueError(must("plot", "f_or_rules", f"be at most {_MOST_CURVES} for one panel", len(drawables), remedy))


def _check_grads(grad: object) -> list[float]:
    if not isinstance(grad, Sequence) or isinstance(grad, str):
        remedy = f"Write grad=({shown},)" if isinstance(shown := as_number(grad), (int, float)) else None
        raise TypeError(must("plot", "grad", "be a list of numbers", grad, remedy))
    values = [as_number(value) for value in grad]
    if not all(is_number(value) and math.isfinite(value) for value in values):
        raise TypeError(must("plot", "grad", "be a list of finite numbers", grad))
    if not 1 <= len(values) <= _MOST_CURVES:
        raise ValueError(must("plot", "grad", f"have 1 to {_MOST_CURVES} numbers", grad))
    return values


def _picture(op: str, min: float | None, max: float | None, has_rules: bool, xlim: object) -> Picture:
    """The range to draw, and the inputs after x."""
    if op not in OPS:
        raise unknown_name("plot", "op", tuple(OPS), op)
    picture, has_bounds = OPS[op].picture, min is not None or max is not None
    if has_bounds and op != "clamp":
        raise ValueError(must("plot", "min and max", f"be None for {op}", (min, max), "Give a function of x instead"))
    if op == "clamp" and (has_bounds or not has_rules):
        picture = picture_of(min, max) if has_bounds else Picture()
    if xlim is None:
        return picture
    limits = [as_number(limit) for limit in xlim] if isinstance(xlim, Sequence) else []
    if not (len(limits) == 2 and all(is_number(x) and math.isfinite(x) for x in limits) and limits[0] < limits[1]):
        raise ValueError(must("plot", "xlim", "be two finite numbers, the lower one first", xlim))
    return picture.replaced(low=float(limits[0]), high=float(limits[1]))


def _titles(title: object, columns: list[list[Curve]]) -> list[str]:
    """One text for each column."""
    if title is None or (isinstance(title, str) and len(columns) > 1):
        return [column[0].label if len(column) == 1 else "" for column in columns]
    titles = [title] if isinstance(title, str) else title
    if not isinstance(titles, Sequence) or not all(isinstance(text, str) for text in titles):
        raise TypeError(must("plot", "title", "be a text or a list of texts", title))
    if len(titles) != len(columns):
        raise ValueError(must("plot", "title", f"have a text for each of the {len(columns)} columns", title))
    return list(titles)


def _stack(
    curves: list[Curve], grid: Grid, grads: list[float], loss: Function | None, has_same_y: bool, y: str
) -> list[Panel]:
    """The panels of a column: forward, perhaps the losses, gradients. The losses have a panel if the curves have different values."""
    first, is_single = curves[0], has_same_y or len(curves) == 1
    if is_single:
        strokes = [Stroke(line_of(first.f, grid), y if has_same_y else "y", FORWARD, width=4, alpha=0.55)]
        if loss is not None:
            strokes.append(Stroke(line_of(_chain(loss, first), grid), "loss", LOSS, _STYLES[2]))
        panels = [Panel("forward", "y" if loss is None else "y and loss", strokes)]
    else:
        panels = [Panel("forward", "y", _strokes(grid, [c._replace(jumps=()) for c in curves]))]
        if loss is not None:
            losses = [c._replace(f=_chain(loss, c), jumps=()) for c in curves]
            panels.append(Panel("forward", "loss", _strokes(grid, losses)))
    panels += _gradients(curves, grid, grads) if loss is None else [_loss_gradients(curves, grid, loss, is_single)]
    return [panel._replace(inside=first.inside if is_single else None) for panel in panels]


def _strokes(grid: Grid, curves: list[Curve]) -> list[Stroke]:
    """A line for each curve, with dots at its jumps. A line is thinner than the lines below it, so all are visible where they coincide."""
    widths = (1.8 + 1.5 * above for above in reversed(range(len(curves))))
    return [
        Stroke(line_of(curve.f, grid, curve.jumps), curve.label, curve.colour, style, width)
        for curve, style, width in zip(curves, _STYLES, widths, strict=False)
    ]


def _gradients(curves: list[Curve], grid: Grid, grads: list[float]) -> list[Panel]:
    """dL/dx for each dL/dy: a single curve in one panel, several curves in a panel for each dL/dy."""
    texts = {grad: f"dL/dy = {grad:+g}".replace("-", "\N{MINUS SIGN}") for grad in grads}
    first, y_values = curves[0], (0.0, *grads)
    if len(curves) == 1:
        shades = [first.colour, *[darker(first.colour)] * len(grads)]
        gradients = [
            first._replace(label=f"dL/dx where {text}", colour=shade, f=gradient_of(first.f, grad))
            for (grad, text), shade in zip(texts.items(), shades, strict=False)
        ]
        return [Panel("backward", "dL/dx", _strokes(grid, gradients), y_values=y_values)]
    panels = []
    for grad, text in texts.items():
        strokes = _strokes(grid, [c._replace(f=gradient_of(c.f, grad)) for c in curves])
        panels.append(Panel("backward", f"dL/dx where\n{text}", strokes, y_values=y_values))
    return panels


def _loss_gradients(curves: list[Curve], grid: Grid, loss: Function, is_single: bool) -> Panel:
    """dL/dx of the loss. If all curves have the same values, also the dL/dy that arrives."""
    texts = [f"dL/dx {curve.label}" for curve in curves] if len(curves) > 1 else ["dL/dx"]
    gradients = [
        c._replace(label=text, f=gradient_of(_chain(loss, c), 1.0)) for text, c in zip(texts, curves, strict=True)
    ]
    strokes = _strokes(grid, gradients)
    if is_single:
        arriving = line_of(_arriving(loss, curves[0]), grid)
        strokes = [Stroke(arriving, "dL/dy", FORWARD, (0, (0.9, 0.45)), width=4, alpha=0.55), *strokes]
    return Panel("backward", "dL/dx", strokes)


def _chain(loss: Function, curve: Curve) -> Function:
    return lambda x: loss(curve.f(x))


def _arriving(loss: Function, curve: Curve) -> Function:
    """dL/dy as a function of x."""
    return lambda x: gradient(loss, curve.f(x).detach())


def _wrap(stacks: list[list[Panel]], has_same_y: bool) -> Rows:
    """Rows of at most four columns. A forward that all columns share is drawn once."""
    count = len(stacks)
    # More than four columns are drawn in rows of four or three, whichever leaves fewer cells empty.
    across = count if count <= _MOST_COLUMNS else min((_MOST_COLUMNS, 3), key=lambda n: (-count % n, -n))
    rows: list[list[Panel | None]] = []
    for start in range(0, count, across):
        block = [list(row) for row in zip(*stacks[start : start + across], strict=True)]
        if rows and has_same_y:  # the forward is not drawn again, so its title goes to the panel below
            forwards, below, *others = block
            titled = [panel._replace(title=forward.title) for forward, panel in zip(forwards, below, strict=True)]
            block = [titled, *others]
        rows += [[*row, *[None] * (across - len(row))] for row in block]
    return rows
