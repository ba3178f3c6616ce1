"""The ops that stand in for torch's own functions: forward torch's, bit for bit; backward a rule of the clamp family, or an edge alone.

They are rows like those of `ops/`, found by name and listed nowhere. They save what torch's own op saves, in its order; where that is
nothing of the input (`copies`), they save a copy of it, because a program may change it afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..rule import OPS, STAND_INS, Gradients, Op, Rule, register
from . import edges

_ONE_SIXTH = 1.0 / 6.0  # torch multiplies by it


def _hardsigmoid_pull(pull: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """hardsigmoid(x) is clamp(x, -3, 3) / 6 + 1/2."""

    def pulled(grad: Tensor, x: Tensor, min: Any, max: Any, *, y: Tensor, **how: Any) -> Gradients:
        return pull(grad * _ONE_SIXTH, x, min, max, y=torch.where(x < min, min, torch.where(x > max, max, x)), **how)

    return pulled


def _of_two(pull: Callable[..., Gradients], is_min: bool) -> Callable[..., Gradients]:
    """minimum(x, other), where the constant comes first, or only backward tells which it is. If neither is, torch's own gradient.

    torch saves the second argument first, so the inputs keep their places.
    """

    def pulled(grad: Tensor, x: Tensor, other: Tensor, *, y: Tensor, wants: tuple[bool, ...], **how: Any) -> Gradients:
        if wants[0] and wants[1]:
            tied, half = x == other, 0.5 * grad
            loses = x > other if is_min else x < other
            wins = x < other if is_min else x > other
            return torch.where(tied, half, torch.where(loses, 0.0, grad)), torch.where(
                tied, half, torch.where(wins, 0.0, grad)
            )
        x, bound = (x, other) if wants[0] else (other, x)
        bounds = (None, bound) if is_min else (bound, None)
        grad_x, *_ = pull(grad, x, *bounds, y=y, wants=(True, False, False), **how)
        return (grad_x, None) if wants[0] else (None, grad_x)

    return pulled


def _per_channel(pull: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """One scale for each index of `axis`, as torch.fake_quantize_per_channel_affine takes them."""

    def pulled(
        grad: Tensor, x: Tensor | None, scale: Tensor, zero_point: Tensor, axis: int, *grid: int, **how: Any
    ) -> Gradients:
        if x is None:  # nothing was kept, because x gets grad as it is
            return (grad,) + (None,) * 5
        shape = [1] * x.dim()
        shape[axis] = -1
        how["wants"] = (True, False, False, False, False)
        if zero_point.is_floating_point():
            how["code_of"] = _code_of_a_float_zero_point
        return pull(grad, x, scale.float().reshape(shape), zero_point.reshape(shape), *grid, **how)[:1] + (None,) * 5

    return pulled


def _code_of_a_float_zero_point(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """round(x / scale + zero_point): torch adds it unrounded, and before it rounds.

    The sum is one of float32, and its product is not rounded before (a fused multiply-add), save with a float16 zero point.
    """
    inverse = scale.reciprocal()
    if zero_point.dtype is torch.float16 and x.dtype is not torch.float64:
        return torch.round(x.float() * inverse + zero_point.float())
    return torch.round((x.double() * inverse.double() + zero_point.double()).float())


def _of_x_alone(pull: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """torch.fake_quantize_per_tensor_affine gives nothing to a scale; tensors it reads as float32 and as an integer, cut off."""

    def pulled(
        grad: Tensor, x: Tensor, scale: Any, zero_point: Any, *grid: int, wants: tuple[bool, ...], **how: Any
    ) -> Gradients:
        if isinstance(scale, Tensor):
            scale, zero_point = scale.float(), zero_point.trunc()
        return pull(grad, x, scale, zero_point, *grid, wants=(True, False, False, False, False), **how)

    return pulled


def _never_called(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("a stand-in has no public function and no reference of its own")


class _StandIn:
    """How to make one: torch's function, the public op whose rules it takes, and what is done to each of them."""

    def __init__(
        self,
        forward: Callable[..., Tensor],
        of: str,
        inputs: tuple[str, ...],
        pull: Callable[..., Callable[..., Gradients]] = lambda pull: pull,
        family: str = "",
        copies: bool = False,
    ) -> None:
        self.forward = forward
        self.of = of
        self.inputs = inputs
        self.pull = pull
        self.family = family
        self.copies = copies

    def rule(self, row: Rule) -> Rule:
        def keeps(wants: tuple[bool, ...], **parameters: Any) -> tuple[str, ...]:
            return self.inputs if not self.copies or row.keeps(wants, **parameters) else ()

        return replace(row, pull=self.pull(row.pull), keeps=keeps, copies=self.copies)

    def register(self, name: str) -> None:
        of = OPS[self.of]
        op = Op(
            name=name,
            forward=self.forward,
            inputs=self.inputs,
            rules={},
            stands_for=self.of,
            derive=self.rule,
            default_rule=of.default_rule,
            edges=of.edges,
            default_edge=of.default_edge,
            family=self.family,
            public=_never_called,
            samples=tuple,
        )
        register(op, STAND_INS)


_BOUNDED = ("x", "min", "max")
_GRID = ("quant_min", "quant_max")
_TABLE: dict[str, _StandIn] = {
    "torch.clamp": _StandIn(torch.clamp, "clamp", _BOUNDED, family="clamp"),
    "torch.clamp_min": _StandIn(lambda x, min, max: torch.clamp_min(x, min), "clamp", _BOUNDED, family="clamp"),
    "torch.clamp_max": _StandIn(lambda x, min, max: torch.clamp_max(x, max), "clamp", _BOUNDED, family="clamp"),
    "torch.minimum": _StandIn(lambda x, min, max: torch.minimum(x, max), "clamp", _BOUNDED, family="clamp"),
    "torch.maximum": _StandIn(lambda x, min, max: torch.maximum(x, min), "clamp", _BOUNDED, family="clamp"),
    "torch.minimum, of two": _StandIn(torch.minimum, "clamp", ("x", "other"), lambda pull: _of_two(pull, is_min=True)),
    "torch.maximum, of two": _StandIn(torch.maximum, "clamp", ("x", "other"), lambda pull: _of_two(pull, is_min=False)),
    "torch.relu": _StandIn(lambda x, min, max: torch.relu(x), "relu6", _BOUNDED, family="clamp", copies=True),
    "torch.relu6": _StandIn(lambda x, min, max: functional.relu6(x), "relu6", _BOUNDED, family="clamp"),
    "torch.hardtanh": _StandIn(torch._C._nn.hardtanh, "hardtanh", _BOUNDED, family="clamp"),
    "torch.hardsigmoid": _StandIn(lambda x, min, max: functional.hardsigmoid(x), "relu6", _BOUNDED, _hardsigmoid_pull),
    "torch.sign": _StandIn(lambda x, at_zero: torch.sign(x), "sign", ("x", "at_zero"), copies=True),
    "torch.fake_quantize_per_tensor_affine": _StandIn(
        torch.fake_quantize_per_tensor_affine,
        "fake_quantize",
        ("x", "scale", "zero_point", *_GRID),
        _of_x_alone,
        copies=True,
    ),
    "torch.fake_quantize_per_channel_affine": _StandIn(
        torch.fake_quantize_per_channel_affine,
        "fake_quantize",
        ("x", "scale", "zero_point", "axis", *_GRID),
        _per_channel,
        copies=True,
    ),
}


def _register_pinned() -> None:
    """Pinned edges: a row for number bounds and one for tensors, as torch has."""
    pinned: dict[str, Any] = {
        "edges": tuple(edges.WAYS),
        "default_rule": "zero",
        "default_edge": "closed",
        "public": _never_called,
        "samples": tuple,
    }
    for name in ("torch.clamp", "torch.clamp_min", "torch.clamp_max"):
        for kind, pull in (("numbers", edges.pull_of_numbers), ("tensors", edges.pull_of_tensors)):
            of_tensors = kind == "tensors"
            rules = {"zero": edges.rule(pull, lambda wants, **parameters: _BOUNDED, compares=not of_tensors)}
            op = Op(f"{name}, {kind}", _TABLE[name].forward, _BOUNDED, rules, family=f"edge of {kind}", **pinned)
            register(op, STAND_INS)
    for name in ("fmin", "fmax"):
        rules = {"zero": edges.rule(edges.PULLS[name], lambda wants, **parameters: ("x", "other"))}
        op = Op(
            f"torch.{name}, tensors", getattr(torch, name), ("x", "other"), rules, family=f"edge of {name}", **pinned
        )
        register(op, STAND_INS)


for _name, _stand_in in _TABLE.items():
    _stand_in.register(_name)
_register_pinned()
