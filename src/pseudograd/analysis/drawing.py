"""Draw a backward rule: forward, loss, and the gradient for both signs of grad, with the values exactly at the bounds as dots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..errors import must, unknown_name
from ..ops.bounds import picture_of
from ..rule import OPS, Op, Picture, RuleObject, make_call
from .palette import FORWARD, LOSS, colour, darker
from .slopes import gradient, slope

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Drawable = str | RuleObject | Callable[..., Tensor]
_STYLES = ("-", "--", ":", "-.")
_OFF, _JUMP = 1e-9, 1e-6  # how far beside a jump to look, and what is a jump


class Curve(NamedTuple):
    """A function to draw: what to call it, how to compute it, its colour, and the x where its gradient jumps."""

    label: str
    f: Callable[[Tensor], Tensor]
    colour: str
    jumps: tuple[float, ...] = ()


def plot(
    f_or_rules: Drawable | Sequence[Drawable],
    min: float | None = None,
    max: float | None = None,
    *,
    op: str = "clamp",
    loss: Callable[[Tensor], Tensor] | None = None,
    grad: Sequence[float] = (1.0, -1.0),
    ax: Axes | None = None,
) -> Axes:
    """Draw what a rule, several rules or any function give forward and backward.

    Forward:  y in grey.
    Backward: without `loss`, dL/dx for each number in `grad` as dL/dy, solid for the first and dashed for the second; with `loss`,
        dL/dx of loss(y), and for a single curve also dL/dy and dy/dx. Values exactly at a bound or a jump are dots.

    Args:
        f_or_rules: a rule of `op` by name ("inward", or "zero/open" with an edge), a rule object, a function, or a sequence of these.
            A function is called as f(x, min, max) if a bound is given, else as f(x).
        min, max: numbers in the unit of x; for rules of `clamp` they default to -1 and 1. The other ops bring their own.
        op: whose rules these are, by its name in `pseudograd rules`.
        loss: element-wise function of y.
        grad: the values of dL/dy to draw without a loss.
        ax: matplotlib axes; None for the current ones.
    Returns: the axes, with one line per curve; x runs over the range and half of it to both sides.
    Raises: TypeError if there is nothing to draw; ValueError for an unknown op, rule or edge, or bounds for an op that is not clamp;
        ImportError without matplotlib.
    Example:
        >>> ax = plot(["zero", "inward"], -1, 1)  # doctest: +SKIP
        >>> ax = plot(["window", "triangle"], op="sign")  # doctest: +SKIP
    Source: the plots of An analysis of clamp_with_grad (J. Halliwell, 2022), with both signs of grad.
    """
    if isinstance(f_or_rules, (str, RuleObject)) or not isinstance(f_or_rules, Sequence):
        wanted: list[Any] = [f_or_rules]
    else:
        wanted = list(f_or_rules)
    if not wanted:
        raise TypeError(must("plot", "f_or_rules", "name at least one rule or function", f_or_rules))
    has_rules = any(isinstance(one, (str, RuleObject)) for one in wanted)
    picture = _picture(op, min, max, has_rules)
    curves = [_curve(one, OPS[op], picture, position) for position, one in enumerate(wanted)]
    axes = _axes() if ax is None else ax
    painter = _Painter(axes, picture, curves)
    painter.draw(curves[0].f, "y" if len(curves) > 1 else f"y = {curves[0].label}", FORWARD, width=4, alpha=0.5)
    painter.dot(curves[0].f, _where_it_jumps(curves[0].f, picture.jumps), FORWARD)
    if loss is None:
        _draw_gradients(painter, curves, grad)
    else:
        _draw_loss(painter, curves, loss)
    axes.set_xlabel("x")
    axes.set_ylabel("y and dL/dx" if loss is None else "y, loss and dL/dx")
    axes.axhline(0, color="#d0d0d0", linewidth=0.8, zorder=0)
    axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.14), ncol=2, frameon=False)
    return axes


def _draw_gradients(painter: _Painter, curves: list[Curve], grads: Sequence[float]) -> None:
    for width, curve in _widest_first(curves):
        for position, (style, value) in enumerate(zip(_STYLES, grads, strict=False)):
            found = _gradient_of(curve.f, value)
            # The later sign is thinner and darker, so that both show where they coincide.
            shade, thickness = (curve.colour, width + 1.6) if position == 0 else (darker(curve.colour), width)
            painter.draw(found, f"dL/dx {curve.label}, grad = {value:+g}", shade, style, thickness, dots=curve.jumps)


def _draw_loss(painter: _Painter, curves: list[Curve], loss: Callable[[Tensor], Tensor]) -> None:
    first = curves[0]
    painter.draw(lambda x: loss(first.f(x)), "loss", LOSS, ":", 1.4)
    if len(curves) == 1:
        painter.draw(lambda x: gradient(loss, first.f(x)), "dL/dy", LOSS, "--", 1.2)
        painter.draw(
            lambda x: slope(first.f, x, gradient(loss, first.f(x))), "dy/dx for the sign of dL/dy", "#b0b0b0", "-.", 1.4
        )
    for width, curve in _widest_first(curves):
        whole = _gradient_of(lambda x, f=curve.f: loss(f(x)), 1.0)  # type: ignore[misc]
        painter.draw(whole, f"dL/dx {curve.label}", curve.colour, "-", width, dots=curve.jumps)


def _widest_first(curves: list[Curve]) -> list[tuple[float, Curve]]:
    """Line widths that shrink from curve to curve, so that one which coincides with an earlier one leaves its rim visible."""
    return [(1.6 + 1.6 * (len(curves) - 1 - position), curve) for position, curve in enumerate(curves)]


def _gradient_of(f: Callable[[Tensor], Tensor], grad: float) -> Callable[[Tensor], Tensor]:
    return lambda x: gradient(f, x, grad)


def _picture(op: str, min: float | None, max: float | None, has_rules: bool) -> Picture:
    """Where to draw, and with which inputs behind x."""
    if op not in OPS:
        raise unknown_name("plot", "op", tuple(OPS), op)
    if op != "clamp":
        if min is not None or max is not None:
            raise ValueError(
                must("plot", "min and max", f"be None for {op}", (min, max), "Give a function of x instead")
            )
        return OPS[op].picture
    if min is None and max is None:
        return OPS["clamp"].picture if has_rules else Picture()
    return picture_of(min, max)


def _curve(one: Drawable, op: Op, picture: Picture, position: int) -> Curve:
    if isinstance(one, (str, RuleObject)):
        return _curve_of_rule(one, op, picture, position)
    if not callable(one):
        raise TypeError(must("plot", "f_or_rules", "be rules or functions", one))
    label = "torch.clamp" if one is torch.clamp else getattr(one, "__name__", type(one).__name__)
    f = (lambda x: one(x, *picture.others)) if op.name == "clamp" and picture.others else one
    return Curve(label, f, colour(label, position), picture.edges)


def _curve_of_rule(one: str | RuleObject, op: Op, picture: Picture, position: int) -> Curve:
    name, _, edge = one.partition("/") if isinstance(one, str) else (one, "", "")
    asked = next((e for e in op.edges if str(e) == edge), edge or op.default_edge)
    call = make_call(op, name, asked)  # the errors of an unknown rule or edge, before anything is drawn
    how: dict[str, Any] = {"rule": name} if len(op.rules) > 1 else {}
    if op.edges:
        how["edge"] = asked
    inputs = picture.of or (lambda x: (x, *picture.others))
    jumps = (*picture.edges, *call.rule.jumps(**call.parameters))
    return Curve(str(one), lambda x: op.public(*inputs(x), **how), colour(one, position), jumps)


class _Painter:
    """Draws a function piece by piece, so that a jump is not a slope, and its values at the jumps as dots."""

    def __init__(self, axes: Any, picture: Picture, curves: Iterable[Curve]) -> None:
        self.axes = axes
        self.pieces = _pieces(picture, {jump for curve in curves for jump in curve.jumps})

    def draw(
        self,
        f: Callable[[Tensor], Tensor],
        label: str,
        colour: str,
        style: str = "-",
        width: float = 1.6,
        *,
        alpha: float = 1.0,
        dots: tuple[float, ...] = (),
    ) -> None:
        x, y = _joined(self.pieces, [f(piece).detach() for piece in self.pieces])
        look = {"color": colour, "linewidth": width, "alpha": alpha, "solid_capstyle": "butt"}
        self.axes.plot(x.numpy(), y.numpy(), style, label=label, **look)
        self.dot(f, dots, colour, hollow=style != "-")

    def dot(self, f: Callable[[Tensor], Tensor], at: tuple[float, ...], colour: str, hollow: bool = False) -> None:
        """Hollow ones are smaller, so that a full one below shows its rim."""
        if at:
            x = torch.tensor(at, dtype=torch.float64)
            y = f(x).detach().numpy()
            look = {"markerfacecolor": "white", "markersize": 4} if hollow else {"markersize": 6.5}
            self.axes.plot(x.numpy(), y, "o", color=colour, label="_at the jumps", **look)


def _pieces(picture: Picture, jumps: Iterable[float]) -> list[Tensor]:
    """The x to draw at: open pieces between the jumps, just off them."""
    inner = {jump for jump in (*picture.edges, *picture.jumps, *jumps) if picture.low < jump < picture.high}
    off = _OFF * (picture.high - picture.low)
    starts = [picture.low, *(jump + off for jump in sorted(inner))]
    ends = [*(jump - off for jump in sorted(inner)), picture.high]
    points = max(201, 801 // len(starts))
    return [torch.linspace(a, b, points, dtype=torch.float64) for a, b in zip(starts, ends, strict=True)]


def _joined(pieces: list[Tensor], values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """One line, with a gap between two pieces where the value jumps."""
    gap = torch.full((1,), torch.nan, dtype=torch.float64)
    x, y = [pieces[0]], [values[0]]
    for piece, value in zip(pieces[1:], values[1:], strict=True):
        if (value[0] - y[-1][-1]).abs() > _JUMP:
            x.append(gap)
            y.append(gap)
        x.append(piece)
        y.append(value)
    return torch.cat(x), torch.cat(y)


def _where_it_jumps(f: Callable[[Tensor], Tensor], at: tuple[float, ...]) -> tuple[float, ...]:
    x = torch.tensor(at, dtype=torch.float64)
    return tuple(x[(f(x + _OFF) - f(x - _OFF)).abs() > _JUMP].tolist())


def _axes() -> Axes:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plot: matplotlib must be installed, got none. Run pip install '.[report]'.") from error
    pyplot.gcf().set_layout_engine("constrained")  # room for the legend below
    return pyplot.gca()
