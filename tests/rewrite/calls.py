"""Every way to write a clamp or a relu with torch, and the gradient each should get under a rule: a reference written apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, clamp, nn
from torch.nn import functional

from pseudograd.reference.bounds import gradient

LOW, HIGH = -1.0, 1.0


class Spelling(NamedTuple):
    """`f(x)` is what a program writes; bounds is what it clamps to; scale multiplies the gradient."""

    f: Callable[[Tensor], Tensor]
    family: str
    bounds: tuple[float | None, float | None]
    scale: float = 1.0


def _t(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _row(value: float) -> Tensor:
    return torch.full((9,), value, dtype=torch.float64)


def _module(module: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda x: module(x * 1)


BOTH, LEAST, MOST = (LOW, HIGH), (LOW, None), (None, HIGH)
ZERO, SIX, THREE = (0.0, None), (0.0, 6.0), (-3.0, 3.0)
aten, fused = torch.ops.aten, torch._C._nn

CLAMPS = {
    "torch.clamp": (lambda x: torch.clamp(x, LOW, HIGH), BOTH),
    "torch.clamp, keywords": (lambda x: torch.clamp(input=x, max=HIGH, min=LOW), BOTH),
    "torch.clamp, integers": (lambda x: torch.clamp(x, -1, 1), BOTH),
    "torch.clamp, min": (lambda x: torch.clamp(x, min=LOW), LEAST),
    "torch.clamp, max": (lambda x: torch.clamp(x, max=HIGH), MOST),
    "torch.clamp, tensors": (lambda x: torch.clamp(x, _row(LOW), _row(HIGH)), BOTH),
    "torch.clamp, a tensor": (lambda x: torch.clamp(x, max=_t(HIGH)), MOST),
    "torch.clamp, a number and a tensor of no dimension": (lambda x: torch.clamp(x, LOW, _t(HIGH)), BOTH),
    "clamp imported": (lambda x: clamp(x, LOW, HIGH), BOTH),
    "x.clamp": (lambda x: x.clamp(LOW, HIGH), BOTH),
    "x.clamp, tensors": (lambda x: x.clamp(min=_row(LOW), max=_row(HIGH)), BOTH),
    "torch.clip": (lambda x: torch.clip(x, LOW, HIGH), BOTH),
    "x.clip": (lambda x: x.clip(max=HIGH), MOST),
    "torch.clamp_min": (lambda x: torch.clamp_min(x, LOW), LEAST),
    "torch.clamp_min, tensor": (lambda x: torch.clamp_min(x, _row(LOW)), LEAST),
    "x.clamp_min": (lambda x: x.clamp_min(min=LOW), LEAST),
    "torch.clamp_max": (lambda x: torch.clamp_max(x, HIGH), MOST),
    "x.clamp_max": (lambda x: x.clamp_max(_t(HIGH)), MOST),
    "torch.clamp_": (lambda x: torch.clamp_(x * 1, LOW, HIGH), BOTH),
    "x.clamp_": (lambda x: (x * 1).clamp_(min=LOW, max=HIGH), BOTH),
    "x.clamp_, tensors": (lambda x: (x * 1).clamp_(_row(LOW), _t(HIGH)), BOTH),
    "x.clip_": (lambda x: (x * 1).clip_(LOW, HIGH), BOTH),
    "x.clamp_min_": (lambda x: (x * 1).clamp_min_(LOW), LEAST),
    "x.clamp_max_": (lambda x: (x * 1).clamp_max_(HIGH), MOST),
    "view.clamp_": (lambda x: _in_place_through_a_view(x), BOTH),
    "aten.clamp": (lambda x: aten.clamp(x, LOW, HIGH), BOTH),
    "aten.clamp.default": (lambda x: aten.clamp.default(x, LOW, HIGH), BOTH),
    "aten.clamp.Tensor": (lambda x: aten.clamp.Tensor(x, _t(LOW), _t(HIGH)), BOTH),
    "aten.clamp_min": (lambda x: aten.clamp_min(x, LOW), LEAST),
    "aten.clamp_": (lambda x: aten.clamp_.default(x * 1, LOW, HIGH), BOTH),
    "torch.minimum": (lambda x: torch.minimum(x, _t(HIGH)), MOST),
    "torch.minimum, constant first": (lambda x: torch.minimum(_row(HIGH), x), MOST),
    "x.minimum": (lambda x: x.minimum(_t(HIGH)), MOST),
    "torch.min of two": (lambda x: torch.min(x, _t(HIGH)), MOST),
    "torch.maximum": (lambda x: torch.maximum(x, other=_t(LOW)), LEAST),
    "torch.max of two": (lambda x: torch.max(_t(LOW), x), LEAST),
    "x.max(other)": (lambda x: x.max(_row(LOW)), LEAST),
}
RELUS = {
    "torch.relu": (torch.relu, ZERO),
    "x.relu": (lambda x: x.relu(), ZERO),
    "x.relu_": (lambda x: (x * 1).relu_(), ZERO),
    "F.relu": (functional.relu, ZERO),
    "F.relu, in place": (lambda x: functional.relu(x * 1, inplace=True), ZERO),
    "F.relu_": (lambda x: functional.relu_(x * 1), ZERO),
    "aten.relu": (lambda x: aten.relu(x), ZERO),
    "nn.ReLU": (_module(nn.ReLU()), ZERO),
    "nn.ReLU, in place": (_module(nn.ReLU(inplace=True)), ZERO),
    "F.relu6": (functional.relu6, SIX),
    "nn.ReLU6": (_module(nn.ReLU6()), SIX),
    "nn.ReLU6, in place": (_module(nn.ReLU6(inplace=True)), SIX),
    "F.hardtanh": (functional.hardtanh, BOTH),
    "F.hardtanh, bounds": (lambda x: functional.hardtanh(x, 0.0, 6.0), SIX),
    "F.hardtanh_": (lambda x: functional.hardtanh_(x * 1, max_val=1.0), BOTH),
    "nn.Hardtanh": (_module(nn.Hardtanh()), BOTH),
    "nn.Hardtanh, in place": (_module(nn.Hardtanh(inplace=True)), BOTH),
    "nn.Sequential": (_module(nn.Sequential(nn.Identity(), nn.Hardtanh(0.0, 6.0))), SIX),
    "_C._nn.hardtanh": (lambda x: fused.hardtanh(x, LOW, HIGH), BOTH),
}
HARDSIGMOIDS = {
    "F.hardsigmoid": (functional.hardsigmoid, THREE),
    "nn.Hardsigmoid": (_module(nn.Hardsigmoid()), THREE),
    "nn.Hardsigmoid, in place": (_module(nn.Hardsigmoid(inplace=True)), THREE),
}


def _in_place_through_a_view(x: Tensor) -> Tensor:
    base = x * 1
    base[:].clamp_(LOW, HIGH)
    return base


SPELLINGS = (
    {name: Spelling(f, "clamp", bounds) for name, (f, bounds) in CLAMPS.items()}
    | {name: Spelling(f, "relu", bounds) for name, (f, bounds) in RELUS.items()}
    | {name: Spelling(f, "relu", bounds, 1 / 6) for name, (f, bounds) in HARDSIGMOIDS.items()}
)


def inputs_for(spelling: Spelling) -> Tensor:
    """Outside, at and between the bounds: nine values."""
    edges = [edge for edge in spelling.bounds if edge is not None]
    values = {edge + step for edge in edges for step in (-2.0, -0.5, 0.0, 0.5, 2.0)}
    return torch.tensor((sorted(values) * 2)[:9], dtype=torch.float64, requires_grad=True)


def expected(spelling: Spelling, rule: str, edge: str, x: Tensor, grad: Tensor) -> Tensor:
    """The reference, one number at a time; hardsigmoid is a clamp to -3 and 3, divided by 6."""
    out = []
    for value, g in zip(x.tolist(), grad.tolist(), strict=True):
        out.append(gradient(rule, value, g * spelling.scale, *spelling.bounds, edge=edge)[0])
    return torch.tensor(out, dtype=torch.float64)
