"""Which calls of this library could an unknown function be? `what_is` and `audit` compare the function with each of these calls.

The values suggest the op and its inputs after x (bounds, a scale). The gradients suggest the parameters of a rule.
Each parameter is estimated at a single point. `m.positive` and `m.negative` are the measured slopes for a positive and a negative grad.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..geometry import Reversal, Shape, Slope, Symbol
from ..rule import OPS, Edge, Op, Rule
from ..testing.contract.cases import Case
from .measure import Measured

GRADS = (1.0, -1.0, 2.0, -2.0, *(sign * size for size in (1e-3, 1e3, 1e-9, 1e9) for sign in (1, -1)))
CLOSE = 1e-6  # two computations with a relative difference up to this may be the same: a number in them was estimated
_TRIED_FIRST = ("relu", "relu6", "clamp")  # no other clamp is tried: hardtanh and the others compute the same
_TRIED_LAST = ("fake_quantize",)  # with a fine grid it has the values of `round`
_LARGEST_CODE = 2.0**31  # grids with more codes are not tried
# A call of these ops gives all inputs by position; other ops get the inputs after x by name.
_BY_POSITION = ("clamp", "lower_bound", "upper_bound", "scale_grad", "reverse_grad", "clip_grad")
_FIXED_BOUNDS = {"relu": (0.0, None), "relu6": (0.0, 6.0)}
Others = tuple[float | None, ...]  # the inputs of an op after x
Estimates = tuple[float, ...] | None


class Candidate(NamedTuple):
    """A call of this library. others: the inputs after x."""

    case: Case
    others: Others

    @property
    def function(self) -> Callable[[Tensor], Tensor]:
        function = self.case.function()
        return lambda x: function(x, *self.others)

    def pull(self, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """The value and grad_x, computed by the formulas alone, without a graph."""
        y = self.case.op.forward(x, *self.others)
        wants = (True,) + (False,) * len(self.others)
        grad_x = self.case.call().pull(grad, (x, *self.others), y, wants)[0]
        return y, torch.zeros_like(x) if grad_x is None else grad_x.to(x.dtype)

    def write(self, names: Sequence[str] = (), *, says_default_edge: bool = True) -> str:
        """The call as a user writes it. names: the variables for the inputs after x."""
        op, rule, edge = self.case.op, self.case.rule, self.case.edge
        others = [value for value in self.others if value is not None] if names else self.others
        texts: Sequence[str | None] = names or [None if value is None else repr(_to_int(value)) for value in others]
        written = ["x"]
        by_position = op.name in _BY_POSITION
        for key, value, text in zip(op.inputs[1:], others, texts, strict=False):
            if text is None:
                by_position = False
            elif op.name == "gelu":
                written += ['approximate="tanh"'] if value else []
            elif op.name not in _FIXED_BOUNDS and (op.name, value) != ("round", 0):
                written.append(text if by_position else f"{key}={text}")
        if len(op.rules) > 1:
            changed = [f"{key}={value!r}" for key, value in self.case.parameters if value != rule.parameters[key]]
            written.append(f"rule=rules.{rule.name}({', '.join(changed)})" if changed else f'rule="{rule.name}"')
        if op.edges and not rule.ignores_edge and (says_default_edge or edge != op.default_edge):
            written.append(f'edge="{edge}"' if isinstance(edge, str) else f"edge={edge}")
        if self.case.maximize:
            written.append("maximize=True")
        return f"{op.name}({', '.join(written)})"


def _to_int(value: float) -> float:
    """The value as an int if it is a whole number that a float writes without an exponent."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


def candidates(op: Op, others: Others, m: Measured, gradients: Sequence[Tensor]) -> Iterator[Candidate]:
    """The rules of an op, with every edge and the parameters that the gradients suggest. Rules without parameters come first."""
    if op.name == "clip_grad":  # the largest gradient is its limit
        limit = tidy(max(gradient.abs().max().item() for gradient in gradients))
        if limit >= max(GRADS):  # no gradient reached it
            return
        others = (limit,)
    known = dict(zip(op.inputs[1:], others, strict=False))
    absent = {name for name, value in known.items() if value is None}
    for rule in sorted(op.rules.values(), key=lambda rule: bool(rule.parameters)):
        if not absent.isdisjoint(rule.requires):
            continue
        needs_window = rule.name != "zero"
        if op.name == "jumprelu" and needs_window != known["window_to_x"]:
            continue
        if None in rule.parameters.values():  # the parameter is a function of the user's
            continue
        parameters = _parameters(rule, m, known)
        edges: tuple[Edge | None, ...] = op.edges or (None,)
        for edge in edges[:1] if rule.ignores_edge else edges:
            for maximize in (False, True) if op.takes_maximize and not rule.is_linear_at(edge) else (False,):
                yield Candidate(Case(op, rule, parameters, edge, maximize), others)


def forwards(m: Measured, dtype: torch.dtype = torch.float64) -> Iterator[tuple[Op, Others, float]]:
    """The ops that have the measured values, up to rounding. Yields the op, its inputs after x and the largest difference of a value."""
    largest = m.y.abs().nan_to_num(posinf=0.0).max().item()  # of the finite values
    between = [name for name, op in OPS.items() if op.rule_set != "clamp" and name not in _TRIED_LAST]
    for name in (*_TRIED_FIRST, *between, *_TRIED_LAST):
        for others in _inputs_after_x(OPS[name], m):
            try:
                y = OPS[name].public(m.x.to(dtype), *others)
            except (ValueError, TypeError, RuntimeError, OverflowError):  # the op may refuse the suggested inputs
                continue
            if y.shape == m.y.shape and torch.allclose(y.double(), m.y, rtol=CLOSE, atol=CLOSE * min(1.0, largest)):
                yield OPS[name], others, (y.double() - m.y).abs().nan_to_num().max().item()


def _inputs_after_x(op: Op, m: Measured) -> list[Others]:
    """The inputs after x with which `op` may have the measured values. Empty if no inputs can give them."""
    first_x, first_y, last_y = m.x[0].item(), m.y[0].item(), m.y[-1].item()
    if not (math.isfinite(first_y) and math.isfinite(last_y)):
        return []
    is_first_flat, is_last_flat = _is_flat_at(m, 0), _is_flat_at(m, -1)
    if op.rule_set == "clamp":
        bounds = (first_y if is_first_flat else None, last_y if is_last_flat else None)
        if bounds == (None, None) or bounds[0] == bounds[1] or _FIXED_BOUNDS.get(op.name, bounds) != bounds:
            return []
        spellings: tuple[Callable[[float], float], ...] = (
            lambda bound: float(f"{bound:.7g}"),  # the digits of a float32 number
            tidy,
            float,
        )
        return list(dict.fromkeys(tuple(b if b is None else write(b) for b in bounds) for write in spellings))
    if op.rule_set == "step":
        at_zero = m.y[m.x == 0]
        return [(at_zero[0].item(),)] if len(at_zero) else []
    if op.rule_set == "rounding":
        return [(decimals,) for decimals in (0, 1, 2, -1)] if op.name == "round" else [()]
    if op.name == "fake_quantize":
        return _grids(m, first_y, last_y) if is_first_flat and is_last_flat else []
    if op.inputs == ("x",):
        return [] if torch.equal(m.x, m.y) else [()]  # all values equal x: no op shows, even if it is abs
    if op.name == "gelu":
        return [(0,), (1,)]
    if op.name == "leaky_relu":
        slope = tidy(first_y / first_x) if first_x < 0 else 1.0
        return [] if slope in (0.0, 1.0) else [(slope,)]  # slope 0 is relu, slope 1 is x itself
    if op.name == "jumprelu":
        return _thresholds(m)
    if len(op.inputs) == 2 and torch.equal(m.x, m.y):  # the op changes the gradient only
        factor = tidy(torch.cat([m.positive, m.negative]).abs().max().item())
        return [] if op.name == "scale_grad" and factor == 1 else [(factor,)]  # a scale of 1 changes nothing
    return []


def _thresholds(m: Measured) -> list[Others]:
    """The inputs of jumprelu: the only jump of the values, and widths of a window around it.

    The gradient jumps at the end of the window. Also, the slope at the jump of the values is peak * threshold / width. The peak depends on
    the rule, so this slope gives one width for each peak.
    """
    jumps = [at.x for at in m.breaks if at.is_jump]
    if len(jumps) != 1:
        return []
    (threshold,) = jumps
    distances = [abs(x - threshold) for pair in m.pairs for x in pair]
    slope = abs(m.positive[m.x == threshold].item()) if bool((m.x == threshold).any()) else 0.0
    widths = [2 * min(distances)] if slope and distances else []
    if slope:
        widths += [peak * abs(threshold) / slope for peak in (1.0, 0.5, 0.25, 1 / math.sqrt(2 * math.pi))]
    return [(threshold, 1.0, False), *((threshold, tidy(width), True) for width in widths)]


def _grids(m: Measured, low: float, high: float) -> list[Others]:
    """The inputs of fake_quantize: the step of the grid, zero point 0, and the codes at both ends."""
    levels = m.y.unique()
    if not 2 < len(levels) < len(m.y) / 2:
        return []
    step = levels.diff().min().item()
    steps = round((high - low) / step) if max(abs(low), abs(high)) <= _LARGEST_CODE * step else 0
    if steps < 2:
        return []
    mean = (high - low) / steps  # more exact than one step, because each value was rounded
    scales = dict.fromkeys((tidy(mean), float(f"{mean:.7g}"), tidy(step)))
    return [(scale, 0, round(low / scale), round(high / scale)) for scale in scales]


def tidy(value: float) -> float:
    """The number with at most nine digits that equals the measured value up to rounding; the value itself if there is none."""
    short = float(f"{value:.9g}")
    return short if abs(short - value) <= 1e-11 * abs(value) else value


def _is_flat_at(m: Measured, end: int) -> bool:
    return bool(m.slope[end].abs() <= 2 * m.error[end])


def _parameters(rule: Rule, m: Measured, known: Mapping[str, float | None]) -> tuple[tuple[str, float], ...]:
    """The parameters to try: estimates from the gradients, or else the defaults. known: the inputs after x."""
    estimates: Estimates = None
    if rule.parameters and rule.sides is not None:
        estimates = _estimate_factors(rule, m, known)
    elif rule.parameters and rule.curve is not None:
        estimates = _estimate_curve(m, rule)
    if estimates is None or any(not (math.isfinite(value) and value > 0) for value in estimates):
        return tuple(rule.parameters.items())
    return tuple(zip(rule.parameters, map(tidy, estimates), strict=True))


def _estimate_factors(rule: Rule, m: Measured, known: Mapping[str, float | None]) -> Estimates:
    """The parameters that are factors of grad, each as the slope at a flat end, for the sign of grad that it multiplies.

    None if the rule uses a parameter in another way than as a factor of grad.
    """
    assert rule.sides is not None
    try:
        sides = rule.sides(**{name: Symbol(name) for name in rule.parameters})
    except Exception:  # a user's row may refuse a Symbol
        return None
    estimates: dict[str, float | None] = {}
    symbols: set[str] = set()
    for end, side in ((0, sides[0]), (-1, sides[1])):
        slopes = m.positive[end].item(), m.negative[end].item()
        # If grad of one sign passes unchanged, the slope that is not 1 is the factor.
        if isinstance(side, Slope) and 1.0 in side:
            factor_slope = max(slopes, key=lambda slope: abs(slope - 1))
            slopes = factor_slope, factor_slope
        for factor, slope in zip(side, slopes, strict=False):
            symbol = factor.width if isinstance(factor, Reversal) else factor
            if not isinstance(symbol, Symbol):
                continue
            symbols.add(symbol.name)
            if isinstance(factor, Reversal):
                estimates[symbol.name] = _estimate_width(m, known)
            elif isinstance(side, Slope) and _is_flat_at(m, end):
                estimates.setdefault(symbol.name, abs(slope))
    # A side without a bound shows no factor. It takes the factor of the other side.
    other_side = next(iter(estimates.values()), None)
    numbers = [number for name in rule.parameters if (number := estimates.get(name, other_side)) is not None]
    return tuple(numbers) if symbols == rule.parameters.keys() and len(numbers) == len(symbols) else None


def _estimate_width(m: Measured, known: Mapping[str, float | None]) -> float | None:
    """The width of a rule that reverses a blocked gradient: grad_x = -share * grad, share = distance / (width * (max - min))."""
    low, high = (known.get(name, known.get(f"quant_{name}")) for name in ("min", "max"))
    slopes = torch.cat([m.positive, m.negative])
    shares = torch.where((slopes < 0) & (slopes > -1), -slopes, 0.0)
    index = int(shares.argmax())
    if low is None or high is None or not high > low or not shares[index] > 0:
        return None
    x, share, scale = torch.cat([m.x, m.x])[index].item(), shares[index].item(), known.get("scale")
    code = round(x / scale) if scale is not None else x
    return float((low - code if code < low else code - high) / (share * (high - low)))


def _estimate_curve(m: Measured, rule: Rule) -> Estimates:
    """The scale and the height of a slope around 0. A box has its scale where its slope ends. The scale of another shape follows from the
    point whose slope is nearest to half the height.
    """
    assert rule.curve is not None
    height = m.positive[int(m.x.abs().argmin())].item()
    shape = rule.curve(**rule.parameters).shape
    if shape == "box":
        inside = m.x[m.positive != 0]
        has_end = any(x > 0 for pair in m.pairs for x in pair)  # does the gradient jump at a positive x?
        return (inside.max().item(), height) if len(inside) and has_end else None
    share = m.positive / height if height > 0 else torch.zeros_like(m.positive)
    is_usable = (share > 0.2) & (share < 0.8)
    if not is_usable.any():
        return None
    index = int((share - 0.5).abs().where(is_usable, torch.inf).argmin())
    scale = tidy(m.x[index].abs().item() / _DISTANCE_IN_SCALES[shape](share[index].item()))
    return scale, height / rule.curve(scale=scale, height=1.0).height


# |x| / scale as a function of share = (slope at x) / (slope at 0)
_DISTANCE_IN_SCALES: dict[Shape, Callable[[float], float]] = {
    "tent": lambda share: 1 - share,
    "witch": lambda share: math.sqrt(1 / share - 1) / math.pi,
    # share = 4e / (1 + e)^2 with e = exp(-|x| / scale), solved for |x| / scale
    "bump": lambda share: -math.log((2 - share - 2 * math.sqrt(1 - share)) / share),
    "cusp": lambda share: math.sqrt(1 / share) - 1,
    "normal": lambda share: math.sqrt(-2 * math.log(share)),
}
