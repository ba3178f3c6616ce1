"""Draw a backward rule: forward, loss, and the gradient for both signs of grad, with the values exactly at the bounds as dots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..errors import must
from ..ops.bounds import CLAMP, clamp
from ..rule import RuleChoice, choose
from .gradient import gradient, slope
from .palette import FORWARD, LOSS, colour, darker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Drawable = str | RuleChoice | Callable[..., Tensor]
_STYLES = ("-", "--", ":", "-.")


class Curve(NamedTuple):
    """A function to draw: what to call it, how to compute it, and its colour."""

    label: str
    f: Callable[[Tensor], Tensor]
    colour: str


def plot(
    f_or_rules: Drawable | Sequence[Drawable],
    min: float | None = None,
    max: float | None = None,
    *,
    loss: Callable[[Tensor], Tensor] | None = None,
    grad: Sequence[float] = (1.0, -1.0),
    ax: Axes | None = None,
) -> Axes:
    """Draw what a rule, several rules or any function give forward and backward.

    Forward:  y in grey.
    Backward: without `loss`, dL/dx for each number in `grad` as dL/dy, solid for the first and dashed for the second; with `loss`,
        dL/dx of loss(y), and for a single curve also dL/dy and dy/dx. Values exactly at a bound are dots.

    Args:
        f_or_rules: a rule of `clamp` by name ("inward", or "zero/open" with an edge), a rule object, a function, or a sequence of these.
            A function is called as f(x, min, max) if a bound is given, else as f(x).
        min, max: numbers in the unit of x; for rules they default to -1 and 1.
        loss: element-wise function of y.
        grad: the values of dL/dy to draw without a loss.
        ax: matplotlib axes; None for the current ones.
    Returns: the axes, with one line per curve; x runs over the range and half of it to both sides.
    Raises: TypeError if there is nothing to draw; ValueError for an unknown rule or edge; ImportError without matplotlib.
    Example:
        >>> ax = plot(["zero", "inward"], -1, 1)  # doctest: +SKIP
    Source: the plots of An analysis of clamp_with_grad (J. Halliwell, 2022), with both signs of grad.
    """
    if isinstance(f_or_rules, (str, RuleChoice)) or not isinstance(f_or_rules, Sequence):
        wanted: list[Any] = [f_or_rules]
    else:
        wanted = list(f_or_rules)
    if not wanted:
        raise TypeError(must("plot", "f_or_rules", "name at least one rule or function", f_or_rules))
    if min is None and max is None and any(isinstance(one, (str, RuleChoice)) for one in wanted):
        min, max = -1.0, 1.0
    curves = [_curve(one, min, max, position) for position, one in enumerate(wanted)]
    axes = _axes() if ax is None else ax
    pieces, bounds = _points(min, max)
    painter = _Painter(axes, pieces, bounds)
    painter.draw(curves[0].f, "y" if len(curves) > 1 else f"y = {curves[0].label}", FORWARD, width=4, alpha=0.5)
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
            painter.draw(found, f"dL/dx {curve.label}, grad = {value:+g}", shade, style, thickness, dots=True)


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
        painter.draw(whole, f"dL/dx {curve.label}", curve.colour, "-", width, dots=True)


def _widest_first(curves: list[Curve]) -> list[tuple[float, Curve]]:
    """Line widths that shrink from curve to curve, so that one which coincides with an earlier one leaves its rim visible."""
    return [(1.6 + 1.6 * (len(curves) - 1 - position), curve) for position, curve in enumerate(curves)]


def _gradient_of(f: Callable[[Tensor], Tensor], grad: float) -> Callable[[Tensor], Tensor]:
    return lambda x: gradient(f, x, grad)


def _curve(one: Drawable, min: float | None, max: float | None, position: int) -> Curve:
    if isinstance(one, (str, RuleChoice)):
        name, _, edge = one.partition("/") if isinstance(one, str) else (one, "", "")
        how: dict[str, Any] = {"rule": name, "edge": edge or "closed"}
        choose(CLAMP, **how)  # the errors of an unknown rule or edge, before anything is drawn
        return Curve(str(one), lambda x: clamp(x, min, max, **how), colour(one, position))
    if not callable(one):
        raise TypeError(must("plot", "f_or_rules", "be rules or functions", one))
    label = "torch.clamp" if one is torch.clamp else getattr(one, "__name__", type(one).__name__)
    f = one if min is None and max is None else lambda x: one(x, min, max)
    return Curve(label, f, colour(label, position))


def _points(min: float | None, max: float | None) -> tuple[list[Tensor], Tensor]:
    """The x to draw at: open pieces between the bounds, because a gradient may jump there, and the bounds themselves."""
    edges = [bound for bound in (min, max) if bound is not None]
    if not edges:
        return [torch.linspace(-2.0, 2.0, 801, dtype=torch.float64)], torch.empty(0, dtype=torch.float64)
    span = (max - min) if min is not None and max is not None and max > min else 2.0
    stops = [edges[0] - span / 2, *edges, edges[-1] + span / 2]
    pieces = [torch.linspace(a, b, 201, dtype=torch.float64) for a, b in pairwise(stops) if b > a]
    inner = 1e-9 * span  # just off the bound
    return [piece.clamp(piece[0] + inner, piece[-1] - inner) for piece in pieces], torch.tensor(
        edges, dtype=torch.float64
    )


class _Painter:
    """Draws a function piece by piece, so that a jump is not a slope, and its values at the bounds as dots."""

    def __init__(self, axes: Any, pieces: Iterable[Tensor], bounds: Tensor) -> None:
        self.axes = axes
        gap = torch.full((1,), torch.nan, dtype=torch.float64)
        self.pieces = list(pieces)
        self.x = torch.cat([part for piece in self.pieces for part in (piece, gap)])[:-1]
        self.bounds = bounds

    def draw(
        self,
        f: Callable[[Tensor], Tensor],
        label: str,
        colour: str,
        style: str = "-",
        width: float = 1.6,
        *,
        alpha: float = 1.0,
        dots: bool = False,
    ) -> None:
        gap = torch.full((1,), torch.nan, dtype=torch.float64)
        values = torch.cat([part for piece in self.pieces for part in (f(piece).detach(), gap)])[:-1]
        self.axes.plot(self.x.numpy(), values.numpy(), style, color=colour, linewidth=width, alpha=alpha, label=label)
        if dots and len(self.bounds):
            face = colour if style == "-" else "white"
            at_bounds = f(self.bounds).detach().numpy()
            self.axes.plot(
                self.bounds.numpy(),
                at_bounds,
                "o",
                color=colour,
                markerfacecolor=face,
                markersize=5,
                label="_at the bounds",
            )


def _axes() -> Axes:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            "plot: matplotlib must be installed, got none. Run pip install 'pseudograd[report]'."
        ) from error
    pyplot.gcf().set_layout_engine("constrained")  # room for the legend below
    return pyplot.gca()
