"""The primitives that stand in for torch's own functions: forward torch's, bit for bit; backward a rule of an op, or an edge alone.

They save what torch's own op saves, in its order; where that is nothing of the input they save a copy of it, because a program may
change it afterwards. `PINNED` has those with the edge of an era: one for number bounds and one for tensors, as torch has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..rule import BOUNDED, OPS, PRIMITIVES, Gradients, Primitive, Pull, Rule, register
from ..torch_table import private as torch_private
from ..torch_table.forms import MAXIMUM, MINIMUM
from . import edges

_ONE_SIXTH = 1.0 / 6.0  # torch multiplies by it


def _hardsigmoid_pull(pull: Pull) -> Pull:
    """hardsigmoid(x) is clamp(x, -3, 3) / 6 + 1/2."""

    def pulled(grad: Tensor, x: Tensor, min: Any, max: Any, *, y: Tensor, **how: object) -> Gradients:
        return pull(grad * _ONE_SIXTH, x, min, max, y=torch.where(x < min, min, torch.where(x > max, max, x)), **how)

    return pulled


def _of_two(pull: Pull, is_min: bool) -> Pull:
    """minimum(x, other), where the constant comes first, or only backward tells which it is. If neither is, torch's own gradient.

    torch saves the second argument first, so the inputs keep their places.
    """

    def pulled(
        grad: Tensor, x: Tensor, other: Tensor, *, y: Tensor, wants: tuple[bool, ...], **how: object
    ) -> Gradients:
        wants_x, wants_other = wants
        if wants_x and wants_other:
            tied, half = x == other, 0.5 * grad
            loses = x > other if is_min else x < other
            wins = x < other if is_min else x > other
            return torch.where(tied, half, torch.where(loses, 0.0, grad)), torch.where(
                tied, half, torch.where(wins, 0.0, grad)
            )
        x, bound = (x, other) if wants_x else (other, x)
        bounds = (None, bound) if is_min else (bound, None)
        grad_x, *_ = pull(grad, x, *bounds, y=y, wants=(True, False, False), **how)
        return (grad_x, None) if wants_x else (None, grad_x)

    return pulled


def _per_channel(pull: Pull) -> Pull:
    """One scale for each index of `axis`, as torch.fake_quantize_per_channel_affine takes them."""

    def pulled(
        grad: Tensor, x: Tensor | None, scale: Tensor, zero_point: Tensor, axis: int, *grid: int, **how: object
    ) -> Gradients:
        if x is None:  # nothing was kept, because x gets grad as it is
            return grad, None, None, None, None, None
        shape = [1] * x.dim()
        shape[axis] = -1
        how["wants"] = (True, False, False, False, False)
        if zero_point.is_floating_point():
            how["code_of"] = _code_of_a_float_zero_point
        grad_x, *_ = pull(grad, x, scale.float().reshape(shape), zero_point.reshape(shape), *grid, **how)
        return grad_x, None, None, None, None, None

    return pulled


def _code_of_a_float_zero_point(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """round(x / scale + zero_point): torch adds it unrounded, and before it rounds.

    The sum is one of float32, and its product is not rounded before (a fused multiply-add), save with a float16 zero point.
    """
    inverse = scale.reciprocal()
    if zero_point.dtype is torch.float16 and x.dtype is not torch.float64:
        return torch.round(x.float() * inverse + zero_point.float())
    return torch.round((x.double() * inverse.double() + zero_point.double()).float())


def _of_x_alone(pull: Pull) -> Pull:
    """torch.fake_quantize_per_tensor_affine gives nothing to a scale; a tensor it reads as float32, or as an integer, cut off."""

    def pulled(
        grad: Tensor, x: Tensor, scale: object, zero_point: object, *grid: int, wants: tuple[bool, ...], **how: object
    ) -> Gradients:
        if isinstance(scale, Tensor):
            scale = scale.float()
        if isinstance(zero_point, Tensor):
            zero_point = zero_point.trunc()
        return pull(grad, x, scale, zero_point, *grid, wants=(True, False, False, False, False), **how)

    return pulled


_QUANTIZED = ("x", "scale", "zero_point", "quant_min", "quant_max")
_PER_CHANNEL = ("x", "scale", "zero_point", "axis", "quant_min", "quant_max")


def _stand_in(
    name: str,
    forward: Callable[..., Tensor],
    of: str,
    inputs: tuple[str, ...] = BOUNDED,
    through: Callable[[Pull], Pull] | None = None,
    saves: Literal["as torch", "a copy"] = "as torch",
    either_is: Literal["min", "max"] | None = None,
) -> None:
    """A primitive with the rules of the op `of`. Kernels know those of the clamp family that read the same inputs."""
    op = OPS[of]
    register(
        Primitive(
            name=name,
            inputs=inputs,
            forward=forward,
            rules=op.rules,
            rule_set=op.rule_set if through is None else "",
            edges=op.edges,
            default_edge=op.default_edge,
            through=through,
            saves=saves,
            either_is=either_is,
        )
    )


_stand_in("torch.clamp", torch.clamp, "clamp")
_stand_in("torch.clamp_min", lambda x, min, max: torch.clamp_min(x, min), "clamp")
_stand_in("torch.clamp_max", lambda x, min, max: torch.clamp_max(x, max), "clamp")
_stand_in(MINIMUM.bounded, lambda x, min, max: torch.minimum(x, max), "clamp")
_stand_in(MAXIMUM.bounded, lambda x, min, max: torch.maximum(x, min), "clamp")
for _which, _of_both in ((MINIMUM, torch.minimum), (MAXIMUM, torch.maximum)):
    _stand_in(
        _which.either,
        _of_both,
        "clamp",
        ("x", "other"),
        through=partial(_of_two, is_min=_which.bound == "max"),
        either_is=_which.bound,
    )
_stand_in("torch.relu", lambda x, min, max: torch.relu(x), "relu6", saves="a copy")
_stand_in("torch.relu6", lambda x, min, max: functional.relu6(x), "relu6")
_stand_in("torch.hardtanh", torch_private.hardtanh, "hardtanh")
_stand_in("torch.hardsigmoid", lambda x, min, max: functional.hardsigmoid(x), "relu6", through=_hardsigmoid_pull)
_stand_in("torch.round", OPS["round"].forward, "round", ("x", "decimals"), saves="a copy")
_stand_in("torch.sign", lambda x, at_zero: torch.sign(x), "sign", ("x", "at_zero"), saves="a copy")
_stand_in(
    "torch.fake_quantize_per_tensor_affine",
    torch.fake_quantize_per_tensor_affine,
    "fake_quantize",
    _QUANTIZED,
    through=_of_x_alone,
    saves="a copy",
)
_stand_in(
    "torch.fake_quantize_per_channel_affine",
    torch.fake_quantize_per_channel_affine,
    "fake_quantize",
    _PER_CHANNEL,
    through=_per_channel,
    saves="a copy",
)


class Pinned(NamedTuple):
    """The names of what stands in under a pinned edge: with number bounds, and with tensors."""

    of_numbers: str
    of_tensors: str


def _pin(name: str, kind: str, rules: Mapping[str, Rule]) -> str:
    """The same primitive with the rules of a pinned edge, under a name of its own."""
    plain = PRIMITIVES[name]
    pinned = plain.replaced(
        name=f"{name}, pinned edge of {kind}", rules=rules, edges=(), rule_set="", default_edge=None
    )
    return register(pinned).name


PINNED: dict[str, Pinned] = {  # by the name of what stands in otherwise
    name: Pinned(_pin(name, "numbers", edges.OF_NUMBERS), _pin(name, "tensors", edges.OF_TENSORS))
    for name in ("torch.clamp", "torch.clamp_min", "torch.clamp_max")
}
for _name, _forward, _rules in (("torch.fmin", torch.fmin, edges.OF_FMIN), ("torch.fmax", torch.fmax, edges.OF_FMAX)):
    _pinned = Primitive(
        name=f"{_name}, pinned edge", inputs=("x", "other"), forward=_forward, rules=_rules, saves="as torch"
    )
    PINNED[_name] = Pinned(of_numbers=register(_pinned).name, of_tensors=_pinned.name)
