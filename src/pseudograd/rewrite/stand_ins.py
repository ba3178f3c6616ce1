"""The ops that stand in for torch's own functions: forward torch's, bit for bit; backward a rule of the clamp family, or an edge alone.

They are rows like those of `ops/`, found by name and listed nowhere. They save what torch's own op saves, in its order, because a
checkpoint compares what was saved in the forward pass with what its recomputation saves, which may run outside the context.
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


def _constant_first(pull: Callable[..., Gradients], is_min: bool) -> Callable[..., Gradients]:
    """minimum(bound, x): torch saves the second argument first, so the inputs keep their places."""

    def pulled(grad: Tensor, bound: Tensor, x: Tensor, *, y: Tensor, wants: tuple[bool, ...], **how: Any) -> Gradients:
        bounds = (bound, None) if is_min else (None, bound)
        grad_x, *_ = pull(grad, x, *bounds, y=y, wants=(wants[1], False, False), **how)
        return None, grad_x

    return pulled


def _per_channel(pull: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """One scale for each index of `axis`, as torch.fake_quantize_per_channel_affine takes them."""

    def pulled(
        grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, *grid: int, **how: Any
    ) -> Gradients:
        shape = [1] * x.dim()
        shape[axis] = -1
        how["wants"] = (True, False, False, False, False)
        return pull(grad, x, scale.reshape(shape), zero_point.reshape(shape), *grid, **how)[:1] + (None,) * 5

    return pulled


def _of_x_alone(pull: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """torch.fake_quantize_per_tensor_affine gives nothing to a scale."""

    def pulled(grad: Tensor, *inputs: Any, wants: tuple[bool, ...], **how: Any) -> Gradients:
        return pull(grad, *inputs, wants=(True, False, False, False, False), **how)

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
        registers: bool = True,
    ) -> None:
        self.forward = forward
        self.of = of
        self.inputs = inputs
        self.pull = pull
        self.family = family
        self.registers = registers

    def rule(self, row: Rule) -> Rule:
        keeps = row.keeps if not self.registers else lambda wants, **parameters: self.inputs
        return replace(row, pull=self.pull(row.pull), keeps=keeps, registers=self.registers)

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
    "torch.minimum, constant first": _StandIn(
        torch.minimum, "clamp", ("bound", "x"), lambda pull: _constant_first(pull, is_min=False)
    ),
    "torch.maximum, constant first": _StandIn(
        torch.maximum, "clamp", ("bound", "x"), lambda pull: _constant_first(pull, is_min=True)
    ),
    "torch.relu": _StandIn(lambda x, min, max: torch.relu(x), "relu", _BOUNDED, family="clamp"),
    "torch.relu6": _StandIn(lambda x, min, max: functional.relu6(x), "relu6", _BOUNDED, family="clamp"),
    "torch.hardtanh": _StandIn(torch._C._nn.hardtanh, "hardtanh", _BOUNDED, family="clamp"),
    "torch.hardsigmoid": _StandIn(lambda x, min, max: functional.hardsigmoid(x), "relu6", _BOUNDED, _hardsigmoid_pull),
    "torch.sign": _StandIn(lambda x, at_zero: torch.sign(x), "sign", ("x", "at_zero"), registers=False),
    "torch.fake_quantize_per_tensor_affine": _StandIn(
        torch.fake_quantize_per_tensor_affine, "fake_quantize", ("x", "scale", "zero_point", *_GRID), _of_x_alone
    ),
    "torch.fake_quantize_per_channel_affine": _StandIn(
        torch.fake_quantize_per_channel_affine,
        "fake_quantize",
        ("x", "scale", "zero_point", "axis", *_GRID),
        _per_channel,
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
            rules = {"zero": edges.rule(pull, lambda wants, **parameters: _BOUNDED)}
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
