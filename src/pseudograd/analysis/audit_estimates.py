"""What the parameters of a rule would be, if the gradients that were measured were those of that rule.

Each is estimated at one point; whether it fits is judged at all of them, by whoever asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..rule import Rule
from .audit_regions import Measured

Estimate = Callable[[Measured, dict[str, Any]], "tuple[float, ...] | None"]


def parameters_of(rule: Rule, m: Measured, known: dict[str, Any]) -> list[tuple[tuple[str, float], ...]]:
    """The choices of parameters worth a try; `known` are the inputs behind x."""
    if not rule.parameters:
        return [()]
    if None in rule.parameters.values():
        return []
    defaults = tuple(rule.parameters.items())
    estimate = _ESTIMATES.get(rule.name)
    found = estimate(m, known) if estimate else None
    if found is None or any(not (math.isfinite(v) and v > 0) for v in found):
        return [defaults]
    return [tuple(zip(rule.parameters, map(tidy, found), strict=True))]


def _of_leaky(m: Measured, known: dict[str, Any]) -> tuple[float, ...] | None:
    end = 0 if is_flat_at(m, 0) else -1
    return (abs(m.positive[end].item()),)


def _of_leaky_inward(m: Measured, known: dict[str, Any]) -> tuple[float, ...] | None:
    """At each flat end one sign of grad passes as it is, and the other one leaks."""
    ends = [end for end in (0, -1) if is_flat_at(m, end)]
    leaks = [max(m.positive[end].item(), m.negative[end].item(), key=lambda slope: abs(slope - 1)) for end in ends]
    return (leaks[0], leaks[-1]) if leaks else None  # a side without a bound has no leak to be seen


def _of_elastic(m: Measured, known: dict[str, Any]) -> tuple[float, ...] | None:
    """Where a blocked gradient comes back turned and weakened: -share * grad, share = distance / (width * span)."""
    low, high = (known.get(name, known.get(f"quant_{name}")) for name in ("min", "max"))
    scale, distances = known.get("scale", 1.0), []
    for slopes in (m.positive, m.negative):
        turned = (slopes < 0) & (slopes > -1)
        distances += [(x, -s) for x, s in zip(m.x[turned].tolist(), slopes[turned].tolist(), strict=True)]
    if not distances or low is None or high is None:
        return None
    x, share = max(distances, key=lambda pair: pair[1])
    code = round(x / scale) if "scale" in known else x
    distance = low - code if code < low else code - high
    return (distance / (share * (high - low)),) if high > low else None


def _at(m: Measured, x: float) -> float:
    return m.positive[int((m.x - x).abs().argmin())].item()


def _of_window(m: Measured, known: dict[str, Any]) -> tuple[float, ...] | None:
    inside = m.x[m.positive != 0]
    ends = [x for pair in m.pairs for x in pair if x > 0]
    if not len(inside) or not ends:
        return None
    return inside.max().item(), _at(m, 0.0)


def _of_slope(solve: Callable[[float], float], peak: Callable[[float], float]) -> Estimate:
    """Scale and height of a smooth surrogate: `solve` gives u = |x| / scale from slope / peak, `peak` the slope at 0 for height 1."""

    def estimate(m: Measured, known: dict[str, Any]) -> tuple[float, ...] | None:
        top = _at(m, 0.0)
        share = m.positive / top if top > 0 else torch.zeros_like(m.positive)
        usable = (share > 0.2) & (share < 0.8)
        if not usable.any():
            return None
        at = int((share - 0.5).abs().where(usable, torch.inf).argmin())
        u = solve(share[at].item())
        scale = m.x[at].abs().item() / u
        return tidy(scale), top / peak(tidy(scale))

    return estimate


def _u_of_sigmoid(share: float) -> float:
    """4 e / (1 + e)^2 = share for e = exp(-u)."""
    return -math.log((2 - share - 2 * math.sqrt(1 - share)) / share)


_ESTIMATES: dict[str, Estimate] = {
    "leaky": _of_leaky,
    "leaky_inward": _of_leaky_inward,
    "elastic": _of_elastic,
    "window": _of_window,
    "triangle": _of_slope(lambda share: 1 - share, lambda scale: 1.0),
    "arctan": _of_slope(lambda share: math.sqrt(1 / share - 1) / math.pi, lambda scale: 1 / scale),
    "sigmoid": _of_slope(_u_of_sigmoid, lambda scale: 0.25 / scale),
    "fast_sigmoid": _of_slope(lambda share: math.sqrt(1 / share) - 1, lambda scale: 1.0),
    "gaussian": _of_slope(
        lambda share: math.sqrt(-2 * math.log(share)), lambda scale: 1 / (scale * math.sqrt(2 * math.pi))
    ),
}


def tidy(value: float) -> float:
    """The number with nine digits, if that is the same but for rounding: somebody wrote it."""
    short = float(f"{value:.9g}")
    return short if abs(short - value) <= 1e-11 * abs(value) else value


def is_flat_at(m: Measured, end: int) -> bool:
    return bool(m.slope[end].abs() <= 2 * m.error[end])
