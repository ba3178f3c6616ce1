"""Rounding, sign, and the quantisers of torch and torch.ao."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...rule import OPS, Gradients, Pull
from ..records import MISSING, PASSES, TENSORS, Arrange, Arranged, Defaults, Form, Run, edge_case, pass_on, stand_in

_aten = torch.ops.aten
_ROUND = stand_in("torch.round", OPS["round"].forward, "round", ("x", "decimals"), saves="a copy")
_SIGN = stand_in("torch.sign", lambda x, at_zero: torch.sign(x), "sign", ("x", "at_zero"), saves="a copy")

# --- quantisers -------------------------------------------------------------------------------------------------------


def _pull_per_tensor(pull: Pull) -> Pull:
    """torch's function gives scale and zero_point no gradient, reads a tensor scale as float32, and truncates a tensor zero_point."""

    def pulled(
        grad: Tensor, x: Tensor, scale: object, zero_point: object, *grid: int, **parameters: object
    ) -> Gradients:
        if isinstance(scale, Tensor):
            scale = scale.float()
        if isinstance(zero_point, Tensor):
            zero_point = zero_point.trunc()
        grad_x, *_ = pull(grad, x, scale, zero_point, *grid, **parameters)
        return grad_x, None, None, None, None

    return pulled


def _pull_per_channel(pull: Pull) -> Pull:
    """torch.fake_quantize_per_channel_affine has a scale for each index of `axis`."""

    def pulled(
        grad: Tensor, x: Tensor | None, scale: Tensor, zero_point: Tensor, axis: int, *grid: int, **parameters: object
    ) -> Gradients:
        if x is None:  # nothing was kept, because x gets grad as it is
            return grad, None, None, None, None, None
        shape = [1] * x.dim()
        shape[axis] = -1
        if zero_point.is_floating_point():
            parameters["find_z"] = _z_with_float_zero_point
        grad_x, *_ = pull(grad, x, scale.float().reshape(shape), zero_point.reshape(shape), *grid, **parameters)
        return grad_x, None, None, None, None, None

    return pulled


def _z_with_float_zero_point(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    """round(x / scale + zero_point): torch adds a float zero_point before it rounds, by a fused multiply-add in float32.

    If the zero point is in float16, torch rounds the product before it adds.
    """
    inverse = scale.reciprocal()
    if zero_point.dtype is torch.float16 and x.dtype is not torch.float64:
        return torch.round(x.float() * inverse + zero_point.float())
    return torch.round((x.double() * inverse.double() + zero_point.double()).float())


_GRID: Defaults = {"quant_min": MISSING, "quant_max": MISSING}
_PER_TENSOR: Defaults = {"scale": MISSING, "zero_point": MISSING, **_GRID}
_PER_CHANNEL: Defaults = {"scale": MISSING, "zero_point": MISSING, "axis": MISSING, **_GRID}
for _name, _defaults, _through in (
    ("tensor", _PER_TENSOR, _pull_per_tensor),
    ("channel", _PER_CHANNEL, _pull_per_channel),
):
    _quantise = f"fake_quantize_per_{_name}_affine"
    stand_in(f"torch.{_quantise}", getattr(torch, _quantise), "fake_quantize", ("x", *_defaults), _through, "a copy")


def _arrange_quantiser(primitive: str) -> Arrange:
    def arrange(x: Tensor, scale: object, zero_point: object, *grid: int) -> Arranged | None:
        for value in (scale, zero_point):  # torch refuses a scale that requires grad
            if isinstance(value, Tensor) and value.requires_grad:
                return None
        return primitive, (x, scale, zero_point, *grid)

    return arrange


_OBSERVER = ("observer_on", "fake_quant_on", "running_min", "running_max", "scale", "zero_point")
_SETTINGS = ("averaging_const", "quant_min", "quant_max", "ch_axis")


def _write_observed(run: Run, input: Tensor, *arguments: Any) -> Tensor:
    """The call changes its observer first. The scale is copied, because the next call may change it before the backward of this one."""
    _, is_on, _, _, scale, zero_point = arguments[: len(_OBSERVER)]
    _, low, high, axis, by_row, _ = arguments[len(_OBSERVER) :]
    with torch.no_grad():
        torch.fused_moving_avg_obs_fake_quant(input.detach(), *arguments)
        grid = scale.clone(), zero_point.clone()
    if by_row:
        quantised = run(torch.fake_quantize_per_channel_affine, input, *grid, axis, low, high)
    else:
        quantised = run(torch.fake_quantize_per_tensor_affine, input, *grid, low, high)
    return torch.where(is_on.reshape(()) == 1, quantised, input)


_IN_TORCH = (torch, _aten)
FORMS = [
    Form(
        "round",
        switches=("round",),
        defaults={"input": MISSING, "decimals": 0},
        owners=(*TENSORS, torch.special, _aten),
        overloads=("default", "decimals"),
        arrange=pass_on(_ROUND),
        nodes=("Round",),
    ),
    Form("floor", switches=("round",), arrange=pass_on("floor"), nodes=("Floor",)),
    Form("ceil", switches=("round",), arrange=pass_on("ceil"), nodes=("Ceil",)),
    Form("trunc", "fix", switches=("round",), arrange=pass_on("trunc"), nodes=("Trunc",)),
    Form("sign", switches=("sign",), arrange=pass_on(_SIGN, 0.0), nodes=("Sign",)),
    Form(
        "fake_quantize_per_tensor_affine",
        switches=("fake_quantize",),
        defaults={"input": MISSING, **_PER_TENSOR},
        overloads=("default", "tensor_qparams"),
        arrange=_arrange_quantiser("torch.fake_quantize_per_tensor_affine"),
        nodes=("FakeQuantize", "FusedMovingAvgObsFq"),
        edge_cases=(
            edge_case(
                "fake_quantize(x), least grid value",
                PASSES,
                f=lambda x, tensor: torch.fake_quantize_per_tensor_affine(x, 1.0, 0, 0, 15),
            ),
        ),
    ),
    Form(
        "fake_quantize_per_channel_affine",
        switches=("fake_quantize",),
        defaults={"input": MISSING, **_PER_CHANNEL},
        arrange=_arrange_quantiser("torch.fake_quantize_per_channel_affine"),
    ),
    # A quantiser with its observer in one call, which torch.ao's quantisation-aware training uses by default.
    Form(
        "fused_moving_avg_obs_fake_quant",
        switches=("fake_quantize",),
        defaults={
            **dict.fromkeys(("input", *_OBSERVER, *_SETTINGS), MISSING),
            "per_row_fake_quant": False,
            "symmetric_quant": False,
        },
        owners=_IN_TORCH,
        hides=("fake_quantize_per_tensor_affine",),
        write=_write_observed,
    ),
    # These private functions are not written out. They give scale and zero point a gradient, too, by torch's formula. With a rule, x would
    # learn by the rule and the scale by torch's formula, which no published quantiser does.
    *(
        Form(
            f"_fake_quantize_learnable_per_{part}_affine",
            switches=("fake_quantize",),
            owners=_IN_TORCH,
            hides=("fake_quantize_per_tensor_affine",),  # its nodes begin with the same letters
        )
        for part in ("tensor", "channel")
    ),
]
