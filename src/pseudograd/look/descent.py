"""Descent in a plot: points that follow each rule's gradient, as an animation of matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..arguments import as_number, is_number
from ..errors import must
from .curves import Curve, Function
from .gradient import gradient
from .panels import Panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS = 80
_FAR = 0.03  # of the picture's width: how far the steepest slope of the loss moves a point in one step
_MILLISECONDS = 50


def starts(descend: object) -> Tensor | None:
    """Where points start, checked; None where there are none."""
    if descend is None:
        return None
    some = list(descend) if isinstance(descend, Sequence) and not isinstance(descend, str) else [descend]
    found = [as_number(one) for one in some]
    if not found or not all(is_number(one) and math.isfinite(one) for one in found):
        raise TypeError(must("plot", "descend", "be a finite number, a list of them, or None", descend))
    return torch.tensor(found, dtype=torch.float64)


def path(curve: Curve, loss: Function, x: Tensor, rate: float, steps: int = STEPS) -> Tensor:
    """The points after 0, 1, ... steps of x - rate * dL/dx, where L = loss(f(x)): of shape (steps + 1, points)."""
    found = [x]
    for _ in range(steps):
        found.append(found[-1] - rate * gradient(lambda at: loss(curve.f(at)), found[-1]))
    return torch.stack(found)


def animated(
    panels: Panels, curves: Sequence[Curve], loss: Function | None, grad: float, x: Tensor, span: tuple[float, float]
) -> Any:
    """A FuncAnimation of the figure. Without a loss L is grad * y. Points of one curve have its colour; they stand on the highest line."""
    from matplotlib.animation import FuncAnimation

    def descended(y: Tensor) -> Tensor:
        return grad * y if loss is None else loss(y)

    rate = _rate(curves, descended, span)
    shown = [_Points(*one, loss, path(one[1], descended, x, rate)) for one in _places(panels, curves)]

    def update(step: int) -> list[Any]:
        return [one.move(step) for one in shown]

    return FuncAnimation(panels.figure, update, frames=len(shown[0].path), interval=_MILLISECONDS)


def _rate(curves: Sequence[Curve], loss: Function, span: tuple[float, float]) -> float:
    """One for all, from the loss alone: rules that pass more go further."""
    low, high = span
    y = torch.cat([curve.f(torch.linspace(low, high, 201, dtype=torch.float64)).detach() for curve in curves])
    steepest = float(gradient(loss, y).nan_to_num(posinf=0.0, neginf=0.0).abs().max())
    return _FAR * (high - low) / steepest if steepest else 0.0


def _places(panels: Panels, curves: Sequence[Curve]) -> list[tuple[Axes, Curve]]:
    """A curve is in the last forward panel of its column; where all share one, in that."""
    columns = len(panels.forward) if len(panels.forward) == len(curves) else 1
    axes = panels.forward if columns == len(curves) else [panels.forward[-1]] * len(curves)
    return list(zip(axes, curves, strict=True))


class _Points:
    """Those of one curve."""

    def __init__(self, axes: Axes, curve: Curve, loss: Function | None, path: Tensor) -> None:
        self.path = path
        y = curve.f(path).detach()
        self.height = y if loss is None else loss(y)
        look: dict[str, Any] = {"color": curve.colour, "markeredgecolor": "white", "markersize": 9, "zorder": 4}
        (self.dots,) = axes.plot([], [], linestyle="", marker="o", label="_descending", **look)

    def move(self, step: int) -> Any:
        self.dots.set_data(self.path[step].tolist(), self.height[step].tolist())
        return self.dots
