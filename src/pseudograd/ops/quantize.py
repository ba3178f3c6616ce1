"""Fake quantisation: round to an integer grid and back, with the rule and the edge of a clamp on that grid, and a scale that can learn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .. import engine
from ..arguments import (
    as_number,
    check_broadcast,
    check_device,
    check_floating,
    check_integer,
    check_tensor,
    is_finite,
    is_number,
    is_true,
    rounded_to,
)
from ..errors import must
from ..geometry import Formula
from ..reference import elementwise as reference
from ..rule import EdgeAtBound, Gradients, Op, Picture, Rule, RuleLike, Sample, Wants, call_for, register
from . import bound_rules
from .bound_rules import Value
from .samples import around
from .shared_rules import widened

__all__ = ["fake_quantize"]


@engine.unscriptable
def fake_quantize(
    x: Tensor,
    scale: Value,
    zero_point: Value = 0,
    quant_min: int = -128,
    quant_max: int = 127,
    *,
    axis: int | None = None,
    rule: RuleLike = bound_rules.TRUE_RULE,
    edge: EdgeAtBound = "closed",
    maximize: bool = False,
) -> Tensor:
    """Round `x` to the grid of an integer type and back; choose what passes outside the grid and at its ends.

    Forward:  z = round(x * (1 / scale)) + zero_point; code = clamp(z, quant_min, quant_max); y = (code - zero_point) * scale. Half
        precision is computed in float32. Even for a float64 x, 1 / scale and the last product are computed in float32, unless scale is
        a float64 tensor. Without such a scale, y of a finite x equals that of torch.fake_quantize_per_tensor_affine on the CPU bit
        for bit; only torch 2.8 gives another y for float64 x, for grids beyond 2^24 and where |x / scale| >= 2^63. Infinities go to
        the ends of the grid and NaN stays NaN.
    Backward: grad_x is the gradient that `clamp` with this `rule` and `edge` gives z; inside the grid, grad. This is a pseudo-gradient,
        because rounding counts as the identity. A tensor scale gets
        grad * (code - zero_point) - grad_x * x / scale, a tensor zero_point (grad_x - grad) * scale, summed to their shapes. Saves x
        and tensor scales; "identity" saves nothing while only x learns. Linear in grad as in `clamp`.

    Args:
        x: any shape, floating point.
        scale: size of one step in the unit of x; a number above 0, or a tensor that broadcasts with x, above 0 (not checked).
        zero_point: the code of 0; a number between quant_min and quant_max, as in torch, or a tensor that broadcasts with x (not
            checked, as in torch). Rounded to an integer.
        quant_min, quant_max: the ends of the grid, integers.
        axis: the dimension of x that a 1-d scale and zero_point belong to, for one scale per channel; None to broadcast.
        rule, edge, maximize: as in `clamp`; the defaults are torch's own.
    Returns: shape of x broadcast with scale, dtype and device of x.
    Raises: TypeError for arguments that are no tensors or numbers; ValueError if scale is not above 0, quant_min is not below quant_max,
        a number as zero_point lies outside the grid, a shape or an axis does not fit, or rule or edge is unknown; NotImplementedError
        in forward mode with a rule that is not linear.
    Example:
        >>> x = torch.tensor([0.3, 0.6, 9.0], requires_grad=True)
        >>> scale = torch.tensor(0.25, requires_grad=True)
        >>> y = fake_quantize(x, scale, quant_min=-4, quant_max=3); y.sum().backward(); y.tolist(), x.grad, scale.grad
        ([0.25, 0.5, 0.75], tensor([1., 1., 0.]), tensor(2.4000))
    Source: quantisation-aware training (Jacob et al., 2018); LSQ (Esser et al., 2020); LSQ+ (Bhalgat et al., 2020).
    """
    is_of_numbers = type(scale) is float and type(quant_min) is type(quant_max) is type(zero_point) is int
    if is_of_numbers and axis is None:
        numbers = scale, zero_point, quant_min, quant_max
        y = engine.run_prepared("fake_quantize", x, rule, edge, maximize, *numbers)
        if y is not None:
            return y
    call = call_for(FAKE_QUANTIZE, rule, edge, maximize)
    _check(x, quant_min, quant_max, axis)
    scale = _fit_to_x("scale", scale, x, axis)
    zero_point = _fit_to_x("zero_point", zero_point, x, axis)
    if is_number(scale) and (is_true(scale <= 0) or not is_finite(scale)):
        raise ValueError(must("fake_quantize", "scale", "be finite and above 0", scale))
    if isinstance(zero_point, float):
        if not abs(zero_point) < torch.inf:
            raise ValueError(must("fake_quantize", "zero_point", "be finite", zero_point))
        zero_point = round(zero_point)
    if is_number(zero_point) and (is_true(zero_point < quant_min) or is_true(zero_point > quant_max)):
        requirement = f"be between quant_min={quant_min} and quant_max={quant_max}"
        raise ValueError(must("fake_quantize", "zero_point", requirement, zero_point, "For one outside, give a tensor"))
    engine.prepare(x, call, rule, edge, scale, zero_point, quant_min, quant_max)
    return engine.run(call, x, scale, zero_point, quant_min, quant_max)


def _check(x: Tensor, quant_min: int, quant_max: int, axis: int | None) -> None:
    check_floating("fake_quantize", "x", x, "Integers are quantised already; call .float() first")
    integers = {"quant_min": quant_min, "quant_max": quant_max} | ({} if axis is None else {"axis": axis})
    for name, value in integers.items():
        check_integer("fake_quantize", name, value)
    if quant_min >= quant_max:
        raise ValueError(must("fake_quantize", "quant_min", f"be below quant_max={quant_max}", quant_min))


def _fit_to_x(name: str, value: object, x: Tensor, axis: int | None) -> Value:
    """Check a scale or zero point. Returns a number as it is, and a tensor in a shape that broadcasts with x along `axis`."""
    if not isinstance(value, Tensor):
        value = as_number(value)
        if isinstance(value, bool) or not is_number(value):
            raise TypeError(must("fake_quantize", name, "be a number or a tensor", value))
        return value
    check_tensor("fake_quantize", name, value)
    check_device("fake_quantize", name, value, x.device, "x")
    if axis is not None and value.dim() == 1:
        if not -x.dim() <= axis < x.dim():
            raise ValueError(must("fake_quantize", "axis", f"be a dimension of x, which has {x.dim()}", axis))
        size, channels = value.shape[0], x.shape[axis]
        # Not `size not in (1, channels)`, which would compare the symbols of a compiler by identity.
        if size != 1 and size != channels:
            requirement = f"have {channels} elements, the size of x along axis {axis}"
            raise ValueError(must("fake_quantize", name, requirement, tuple(value.shape)))
        value = value.reshape(-1, *[1] * (x.dim() - 1 - axis % x.dim()))
    check_broadcast("fake_quantize", name, value, x.shape, "x", grows=False)
    return value


# --- the formula ------------------------------------------------------------------------------------------------------

_LARGEST_EXACT = 2**23  # float32 holds the difference of two codes exactly if both are at most this


def _round_unrecorded(position: Tensor) -> Tensor:
    """The rounded position. It is not recorded: its gradient would be 0, and no report of `override(round=...)` should count this call.

    Compiled code does not detach: torch's older vmap (`is_grads_batched`) may run it, and cannot detach.
    """
    return torch.round(position if is_compiling() else position.detach())


def _single_scale(scale: float) -> tuple[float, float]:
    """The scale and its reciprocal in float32; a reciprocal that is too large for float32 becomes infinite."""
    scale = rounded_to(scale, torch.float32)
    return scale, rounded_to(1 / scale, torch.float32) if scale else torch.inf


def _find_grid(
    scale: Value, zero_point: Value, quant_min: int, quant_max: int
) -> tuple[float, float, float, float, float] | None:
    """1 / scale, zero_point, quant_min, quant_max, scale; None if one of them is a tensor, or if float32 cannot hold them all."""
    if isinstance(scale, Tensor) or isinstance(zero_point, Tensor) or max(-quant_min, quant_max) > _LARGEST_EXACT:
        return None
    scale, inverse = _single_scale(scale)
    if not min(scale, inverse) >= torch.finfo(torch.float32).tiny:  # it may be NaN
        return None
    return inverse, float(zero_point), float(quant_min), float(quant_max), scale


def _place_on_grid(x: Tensor, scale: Value, zero_point: Value) -> tuple[Tensor, Tensor, Value, Value]:
    """(x / scale, z, zero_point, scale), as torch computes them. z is the code before it is clamped; a z of 0 may have either sign.

    The scale and its reciprocal are computed in float32 whatever x is, the rest in float32 or float64. Only a scale that is a float64
    tensor stays float64 for a float64 x: a scale that learns in float64 should not move in float32's steps.
    """
    wide, inverse = widened(x), 0.0
    if not isinstance(scale, Tensor) and is_compiling():
        scale = torch.full((), scale, dtype=torch.float32, device=x.device)
    if not isinstance(scale, Tensor):
        scale, inverse = _single_scale(scale)
    elif scale.dtype is not torch.float64 or wide.dtype is not torch.float64:
        scale = scale.float()
    zero = _round_unrecorded(zero_point.to(wide.dtype)) if isinstance(zero_point, Tensor) else float(zero_point)
    position = wide * (scale.reciprocal().to(wide.dtype) if isinstance(scale, Tensor) else inverse)
    z = _round_unrecorded(position)
    if is_compiling() or isinstance(zero, Tensor) or zero:
        z = z + zero
    return position, z, zero, scale


def _forward(x: Tensor, scale: Value, zero_point: Value, quant_min: int, quant_max: int) -> Tensor:
    _, z, zero, scale = _place_on_grid(x, scale, zero_point)
    if max(-quant_min, quant_max) > _LARGEST_EXACT:  # torch clamps and subtracts in integers
        z = z.double()
        zero = _round_unrecorded(zero_point.double()) if isinstance(zero_point, Tensor) else zero
    code = torch.clamp(z, quant_min, quant_max)
    steps = code - zero if isinstance(zero, Tensor) or zero else code + 0.0  # the sum makes 0 of -0
    return (steps.to(scale.dtype if isinstance(scale, Tensor) else torch.float32) * scale).to(x.dtype)


def _pull_on_grid(
    outside: Rule,
    grad: Tensor,
    x: Tensor,
    scale: Value,
    zero_point: Value,
    quant_min: int,
    quant_max: int,
    *,
    wants: Wants,
    find_z: Callable[[Tensor, Value, Value], Tensor] | None = None,
    **parameters: object,
) -> Gradients:
    """Apply the rule `outside` of clamp, with its parameters, to z: the code before it is clamped to the grid.

    find_z(x, scale, zero_point): computes z, for a function of torch whose formula for it is not that of `_place_on_grid`.
    """
    if not outside.inputs_read(wants):  # x gets grad as it is, and neither scale nor zero_point learns
        return grad, None, None, None, None
    low, high, grad = float(quant_min), float(quant_max), widened(grad)
    position, z, zero, computed_scale = _place_on_grid(x, scale, zero_point)
    z = z if find_z is None else find_z(x, scale, zero_point)
    code = torch.where(z < low, low, torch.where(z > high, high, z))
    (grad_x, *_) = outside.pull(grad, z, low, high, y=code, wants=(True, False, False), **parameters)
    assert grad_x is not None
    to_scale = to_zero_point = None
    _, wants_scale, wants_zero_point, *_ = wants
    if wants_scale:
        # Where the rule gives an infinite x nothing, 0 * inf would be NaN.
        blocked = (grad_x == 0) & (position.abs() == torch.inf)
        to_scale = grad * (code - zero) - grad_x * torch.where(blocked, 0.0, position)
    if wants_zero_point:
        # Where x gets all of an infinite grad, zero_point gets nothing, but inf - inf would be NaN.
        same = (grad_x == grad) & (grad.abs() == torch.inf)
        to_zero_point = (torch.where(same, 0.0, grad_x) - torch.where(same, 0.0, grad)) * computed_scale
    return grad_x, to_scale, to_zero_point, None, None


_INPUTS = ("x", "scale", "zero_point", "quant_min", "quant_max")


def _inputs_for_parameters(wants: Wants) -> tuple[str, ...]:
    """The inputs that are saved for a rule that reads none: all if the scale or the zero point learns."""
    return _INPUTS if wants[1] or wants[2] else ()


def _find_formula(scale: Value, zero_point: Value, quant_min: int, quant_max: int, **_: object) -> Formula | None:
    """What C computes if the scale is a tensor. None for other scales, and if float32 does not hold all codes exactly."""
    if not isinstance(scale, Tensor) or max(-quant_min, quant_max) > _LARGEST_EXACT:
        return None
    return Formula("grid", quant_min, quant_max, () if isinstance(zero_point, Tensor) else (zero_point,))


def _grid_rule(rule: Rule) -> Rule:
    """The rule of `fake_quantize` that a rule of `clamp` gives."""
    return rule.replaced(
        pull=partial(_pull_on_grid, rule),
        reference=partial(reference.fake_quantize, rule.reference),
        keeps=_INPUTS if isinstance(rule.keeps, tuple) else _inputs_for_parameters,
        requires=(),
        compares=False,
        is_long=False,
        find_formula=_find_formula,
    )


def _build_per_channel(dtype: torch.dtype, *zero_points: float) -> tuple[object, ...]:
    """A sample with one grid for each channel: x lies on the points of the grid, between them, at both ends and beyond."""
    scale = torch.tensor([[0.25], [0.5], [1.0]], dtype=torch.float64)
    zero_point = torch.tensor([zero_points], dtype=torch.float64).mT
    ends = (torch.tensor([[-4.0, 3.0]]) - zero_point) * scale
    x = torch.cat([ends, torch.linspace(-2.0, 2.0, 27, dtype=torch.float64).reshape(3, 9)[:, 2:]], 1)
    return x.to(dtype), scale.to(dtype), zero_point.to(dtype), -4, 3


FAKE_QUANTIZE = register(
    Op(
        name="fake_quantize",
        rule_set="fake_quantize",
        forward=_forward,
        find_grid=_find_grid,
        inputs=_INPUTS,
        rules={rule.name: _grid_rule(rule) for rule in bound_rules.RULES.values()},
        default_rule=bound_rules.TRUE_RULE,
        edges=bound_rules.EDGES,
        default_edge="closed",
        takes_maximize=True,
        has_outside=True,
        adapter=bound_rules.ADAPTER._replace(
            make_rule=lambda *arguments, **row: _grid_rule(bound_rules.adapt(*arguments, **row))
        ),
        public=fake_quantize,
        samples=(
            around("numbers", -1.0, 0.75, 0.125, others=(0.25, 0, -4, 3)),
            around("zero point", -1.0, 0.5, others=(0.5, 3, 0, 7)),
            Sample("per channel", lambda dtype: _build_per_channel(dtype, 0.0, 1.0, -1.0)),
            Sample("learned scale", lambda dtype: (*_build_per_channel(dtype, 0.0, 0.0, 0.0)[:2], 0, -4, 3)),
        ),
        picture=Picture(others=(0.5, 0, -2, 2), jumps=(-1.75, -1.25, -0.75, -0.25, 0.25, 0.75, 1.25, 1.75)),
    )
)
