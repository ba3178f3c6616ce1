"""Which call of this library does the same as an unknown function? Judged from its behaviour alone.

Its values suggest what stands behind x (bounds, a scale); its gradients suggest the parameters of a rule. Every rule of the table is
then run beside it, with every edge, and must give the same at every point for grads of both signs and several sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..rule import OPS, Op
from ..testing.contract.cases import Case
from ..testing.measure.behaviour import gradient_of
from .audit_estimates import is_flat_at, parameters_of, tidy
from .audit_regions import Measured

Function = Callable[[Tensor], Tensor]
_GRADS = (1.0, -1.0, 2.0, -2.0, 1e-3, -1e-3, 1e3, -1e3)
_FIRST = ("relu", "relu6", "clamp")  # the other clamps do the same under names of their own
_LAST = ("fake_quantize",)  # which rounds, too, if its grid is wide enough
_CODES = 2.0**31  # of a grid
_WIDTHS = 1e-6  # relative: how far two computations of one rule may be apart, where a parameter was estimated


class Candidate(NamedTuple):
    case: Case
    others: tuple[object, ...]  # the inputs behind x

    @property
    def function(self) -> Function:
        """Of x alone."""
        f = self.case.function()
        return lambda x: f(x, *self.others)

    def __str__(self) -> str:
        """As a user writes it."""
        op, rule = self.case.op, self.case.rule
        written = ["x"]
        by_position = op.name in _BY_POSITION
        for key, value in zip(op.inputs[1:], map(_short, self.others), strict=True):
            if value is None:
                by_position = False
            elif op.name == "gelu":
                written += ['approximate="tanh"'] if value else []
            elif op.name not in _FIXED and (op.name, value) != ("round", 0):
                written.append(repr(value) if by_position else f"{key}={value!r}")
        if len(op.rules) > 1:
            changed = [f"{key}={value!r}" for key, value in self.case.parameters if value != rule.parameters[key]]
            written.append(f"rule=rules.{rule.name}({', '.join(changed)})" if changed else f'rule="{rule.name}"')
        if op.edges and not rule.ignores_edge:
            written.append(f'edge="{self.case.edge}"' if isinstance(self.case.edge, str) else f"edge={self.case.edge}")
        if self.case.maximize:
            written.append("maximize=True")
        return f"{op.name}({', '.join(written)})"


_BY_POSITION = ("clamp", "scale_grad", "reverse_grad", "clip_grad")
_FIXED = ("relu", "relu6")


def _short(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


def rule_of(f: Function, m: Measured, underflows: list[str]) -> tuple[str | None, str]:
    """The call that does the same, as it is written, and what it does otherwise where the name promises nothing; or None, and why."""
    found = _found(f, m)
    if found is None:
        return None, ""
    nearest, off = found
    if off > 0:
        return None, f"the gradients of {nearest}, but its values differ from y by up to {off:.2g}"
    if underflows:
        return None, f"as {nearest} in float64, but {'; '.join(underflows)}"
    return str(nearest), _differences(f, m, nearest)


def _found(f: Function, m: Measured) -> tuple[Candidate, float] | None:
    """The first call with the same gradients, and how far its values are off: by rounding at most."""
    expected = [gradient_of(f, m.x, grad) for grad in _GRADS]
    for op, others, off in sorted(_forwards(m), key=lambda forward: forward[2] > 0):
        for candidate in _candidates(op, others, m, expected):
            if all(
                _close(gradient_of(candidate.function, m.x, grad), theirs)
                for grad, theirs in zip(_GRADS, expected, strict=True)
            ):
                return candidate, off
    return None


def _close(ours: Tensor, theirs: Tensor) -> bool:
    near = (ours - theirs).abs() <= _WIDTHS * torch.maximum(ours.abs(), theirs.abs())
    return bool((near | (ours.isnan() & theirs.isnan())).all())


# --- what stands behind x -------------------------------------------------------------------------------------------


def _forwards(m: Measured) -> Iterator[tuple[Op, tuple[object, ...], float]]:
    """The ops that have the same values but for rounding, with what stands behind x, and how far they are off; the plainest first."""
    near = _WIDTHS * min(1.0, m.y.abs().nan_to_num(posinf=0.0).max().item())
    between = [name for name, op in OPS.items() if op.rule_set != "clamp" and name not in _LAST]
    for name in (*_FIRST, *between, *_LAST):
        for others in _others(OPS[name], m):
            try:
                y = OPS[name].public(m.x, *others)
            except (ValueError, TypeError, RuntimeError, OverflowError):  # what suggests itself may be no call at all
                continue
            if y.shape == m.y.shape and torch.allclose(y.double(), m.y, rtol=_WIDTHS, atol=near, equal_nan=True):
                yield OPS[name], others, (y.double() - m.y).abs().nan_to_num().max().item()


def _others(op: Op, m: Measured) -> list[tuple[object, ...]]:
    """What the inputs behind x would be, if the values of f were those of `op`."""
    low, high = m.y[0].item(), m.y[-1].item()
    if not (math.isfinite(low) and math.isfinite(high)):
        return []
    is_flat = [is_flat_at(m, 0), is_flat_at(m, -1)]
    if op.rule_set == "clamp":
        bounds = (low if is_flat[0] else None, high if is_flat[1] else None)
        fixed = {"relu": (0.0, None), "relu6": (0.0, 6.0)}.get(op.name)
        if bounds == (None, None) or bounds[0] == bounds[1] or fixed not in (None, bounds):
            return []
        written = tuple(None if bound is None else tidy(bound) for bound in bounds)
        return [bounds] if written == bounds else [written, bounds]
    if op.rule_set == "step":
        at_zero = m.y[m.x == 0]
        return [(at_zero[0].item(),)] if len(at_zero) else []
    if op.rule_set == "rounding":
        return [(decimals,) for decimals in (0, 1, 2, -1)] if op.name == "round" else [()]
    if op.name == "fake_quantize":
        return _grids(m, low, high) if all(is_flat) else []
    if op.inputs == ("x",):
        return [()]
    if op.name in _OF_ONE:
        return _OF_ONE[op.name](m)
    if len(op.inputs) == 2 and torch.equal(m.x, m.y):  # a transform of the gradient alone
        slope = tidy(torch.cat([m.positive, m.negative]).abs().max().item())
        return [] if op.name == "scale_grad" and slope == 1 else [(slope,)]  # which is x itself
    return []


def _slopes_below_zero(m: Measured) -> list[tuple[object, ...]]:
    x, y = m.x[0].item(), m.y[0].item()
    slope = tidy(y / x) if x < 0 else 1.0
    return [] if slope in (0.0, 1.0) else [(slope,)]  # which are relu and x itself


def _thresholds(m: Measured) -> list[tuple[object, ...]]:
    """The one jump of the values, and the widths that a window around it would have from what x gets there: K(0) of each density."""
    jumps = [one.x for one in m.breaks if one.is_jump]
    if len(jumps) != 1:
        return []
    (threshold,) = jumps
    found: list[tuple[object, ...]] = [(threshold, 1.0, False)]
    ends = [abs(x - threshold) for pair in m.pairs for x in pair]
    share = abs(m.positive[m.x == threshold].item()) if bool((m.x == threshold).any()) else 0.0
    if share and ends:
        found.append((threshold, tidy(2 * min(ends)), True))
    if share:
        found += [
            (threshold, tidy(abs(threshold) * k / share), True) for k in (1.0, 0.5, 0.25, 1 / math.sqrt(2 * math.pi))
        ]
    return found


# How to read off what stands behind x, for ops of their own kind.
_OF_ONE: dict[str, Callable[[Measured], list[tuple[object, ...]]]] = {
    "gelu": lambda m: [(0,), (1,)],
    "leaky_relu": _slopes_below_zero,
    "jumprelu": _thresholds,
}


def _grids(m: Measured, low: float, high: float) -> list[tuple[object, ...]]:
    """The step of a grid with its ends, with the zero point at 0."""
    levels = m.y.unique()
    if not 2 < len(levels) < len(m.y) / 2:
        return []
    step = (levels[1:] - levels[:-1]).min().item()
    if max(abs(low), abs(high)) > _CODES * step:
        return []
    steps = round((high - low) / step)
    if steps < 2:
        return []
    mean = (high - low) / steps  # of steps of which each was rounded by itself, perhaps in float32
    scales = dict.fromkeys((tidy(mean), float(f"{mean:.7g}"), tidy(step)))
    return [(scale, 0, round(low / scale), round(high / scale)) for scale in scales]


# --- the rules ------------------------------------------------------------------------------------------------------


def _candidates(op: Op, others: tuple[object, ...], m: Measured, expected: list[Tensor]) -> Iterator[Candidate]:
    if op.name == "clip_grad":  # its limit shows in the largest gradient
        others = (tidy(max(found.abs().max().item() for found in expected)),)
        if others[0] >= max(_GRADS):  # which it did not reach
            return
    known = dict(zip(op.inputs[1:], others, strict=False))
    # The plain ones first, in the table's order.
    for rule in sorted(op.rules.values(), key=lambda rule: bool(rule.parameters)):
        if any(known.get(name, 0.0) is None for name in rule.requires):
            continue
        if op.name == "jumprelu" and (rule.name == "zero") == known["window_to_x"]:
            continue  # a number as a threshold gets nothing, whatever the window; x gets its part of one, or none
        for parameters in parameters_of(rule, m, known):
            for edge in op.edges or (None,):
                for maximize in (False, True) if op.takes_maximize and not rule.is_linear_at(edge) else (False,):
                    yield Candidate(Case(op, rule, parameters, edge, maximize), others)
                if rule.ignores_edge:
                    break


# --- what the name does not promise -----------------------------------------------------------------------------------


def _differences(f: Function, m: Measured, candidate: Candidate) -> str:
    """Where x or grad is no finite number."""
    ours, told = candidate.function, []
    for value in (torch.nan, torch.inf, -torch.inf):
        x = torch.tensor([value], dtype=torch.float64)
        expected, found = gradient_of(ours, x, 1.0).item(), gradient_of(f, x, 1.0).item()
        if not _same(expected, found):
            told.append(f"at x = {value:g} the slope is {found:g} instead of {expected:g}")
    for grad in (torch.inf, -torch.inf, torch.nan):
        should, does = gradient_of(ours, m.x, grad), gradient_of(f, m.x, grad)
        wrong = (should != does) & ~(should.isnan() & does.isnan())
        if wrong.any():
            i = int(wrong.nonzero()[0])
            told.append(f"grad = {grad:g} gives {does[i]:g} instead of {should[i]:g} at x = {m.x[i].item():.4g}")
    return "; ".join(told)


def _same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= _WIDTHS * max(abs(a), abs(b))
