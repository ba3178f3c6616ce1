"""What the parameters of a rule would be, if the gradients that were measured were those of that rule.

Each is estimated at one point; whether it fits is judged at all of them, by whoever asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..geometry import Asked, Shape, Share, Side, Turned
from ..rule import Rule
from .audit_regions import Measured


def parameters_of(rule: Rule, m: Measured, known: dict[str, object]) -> list[tuple[tuple[str, float], ...]]:
    """The choices of parameters worth a try; `known` are the inputs behind x."""
    if not rule.parameters:
        return [()]
    if None in rule.parameters.values():
        return []
    found = _estimated(rule, m, known)
    if found is None or any(not (math.isfinite(v) and v > 0) for v in found):
        return [tuple(rule.parameters.items())]
    return [tuple(zip(rule.parameters, map(tidy, found), strict=True))]


def _estimated(rule: Rule, m: Measured, known: dict[str, object]) -> tuple[float, ...] | None:
    """From the geometry in its row."""
    if rule.sides is not None:
        return _of_sides(rule, m, known)
    if rule.curve is None:
        return None
    shape = rule.curve(**rule.parameters).shape
    return _of_box(m) if shape == "box" else _of_slope(m, rule, _U_OF_SHARE[shape])


# --- of what passes on both sides of a range --------------------------------------------------------------------------


def _of_sides(rule: Rule, m: Measured, known: dict[str, object]) -> tuple[float, ...] | None:
    """Each parameter from the factor that it is: at the flat end below the range or above it, for the sign of grad that it is for.

    None where the row does not put each of them in the place of a factor, as where it computes with one.
    """
    assert rule.sides is not None
    try:
        below, above = rule.sides(**{name: Asked(name) for name in rule.parameters})
    except Exception:  # the row of somebody else may refuse this number
        return None
    if _asked_in(below) | _asked_in(above) != rule.parameters.keys():
        return None
    found: dict[str, float | None] = {}
    for end, side in ((0, below), (-1, above)):
        for factor, slope in _seen_at(m, end, side):
            if isinstance(factor, Asked) and is_flat_at(m, end):
                found.setdefault(factor.name, abs(slope))
            elif isinstance(factor, Turned) and isinstance(factor.width, Asked):
                found[factor.width.name] = _width_of_what_turns(m, known)
    # A side without a bound has no factor to be seen: there the other one's will do.
    numbers = [found.get(name, next(iter(found.values()), None)) for name in rule.parameters]
    return None if None in numbers else tuple(numbers)  # type: ignore[arg-type]


def _asked_in(side: Side) -> set[str]:
    factors = side if isinstance(side, Share) else (side,)
    numbers = [factor.width if isinstance(factor, Turned) else factor for factor in factors]
    return {number.name for number in numbers if isinstance(number, Asked)}


def _seen_at(m: Measured, end: int, side: Side) -> Iterator[tuple[object, float]]:
    """The factors of a side with the slopes that were measured there. Which sign leaks depends on which way the loss is to go."""
    if not isinstance(side, Share):
        return
    slopes = m.positive[end].item(), m.negative[end].item()
    leaking = max(slopes, key=lambda slope: abs(slope - 1))
    yield from zip(side, (leaking, leaking) if 1.0 in side else slopes, strict=True)


def _width_of_what_turns(m: Measured, known: dict[str, Any]) -> float | None:
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
    return distance / (share * (high - low)) if high > low else None


# --- of a slope that falls with |x| -----------------------------------------------------------------------------------


def _at(m: Measured, x: float) -> float:
    return m.positive[int((m.x - x).abs().argmin())].item()


def _of_box(m: Measured) -> tuple[float, ...] | None:
    inside = m.x[m.positive != 0]
    ends = [x for pair in m.pairs for x in pair if x > 0]
    if not len(inside) or not ends:
        return None
    return inside.max().item(), _at(m, 0.0)


def _of_slope(m: Measured, rule: Rule, u_of: Callable[[float], float]) -> tuple[float, ...] | None:
    """Scale and height of a smooth surrogate: `u_of` gives u = |x| / scale from the slope's share of the one at 0."""
    assert rule.curve is not None
    top = _at(m, 0.0)
    share = m.positive / top if top > 0 else torch.zeros_like(m.positive)
    usable = (share > 0.2) & (share < 0.8)
    if not usable.any():
        return None
    at = int((share - 0.5).abs().where(usable, torch.inf).argmin())
    scale = tidy(m.x[at].abs().item() / u_of(share[at].item()))
    return scale, top / rule.curve(scale=scale, height=1.0).height


def _u_of_bump(share: float) -> float:
    """4 e / (1 + e)^2 = share for e = exp(-u)."""
    return -math.log((2 - share - 2 * math.sqrt(1 - share)) / share)


_U_OF_SHARE: dict[Shape, Callable[[float], float]] = {
    "tent": lambda share: 1 - share,
    "witch": lambda share: math.sqrt(1 / share - 1) / math.pi,
    "bump": _u_of_bump,
    "cusp": lambda share: math.sqrt(1 / share) - 1,
    "normal": lambda share: math.sqrt(-2 * math.log(share)),
}


def tidy(value: float) -> float:
    """The number with nine digits, if that is the same but for rounding: somebody wrote it."""
    short = float(f"{value:.9g}")
    return short if abs(short - value) <= 1e-11 * abs(value) else value


def is_flat_at(m: Measured, end: int) -> bool:
    return bool(m.slope[end].abs() <= 2 * m.error[end])
