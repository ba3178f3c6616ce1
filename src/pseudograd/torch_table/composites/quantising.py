"""The fake quantiser that moves its observer in the same call: torch.ao's quantisation-aware training uses it by default."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..forms import MISSING, Form, Write

_STATE = ("observer_on", "fake_quant_on", "running_min", "running_max", "scale", "zero_point")
_SETTINGS = ("averaging_const", "quant_min", "quant_max", "ch_axis", "per_row_fake_quant", "symmetric_quant")


def _fused_moving_avg_obs_fake_quant(call: Write, input: Any, *given: Any) -> Tensor:
    """The observer moves first. The scale is copied: the next call moves it, maybe before this one's backward."""
    (_, is_on, *_, scale, zero_point), (_, low, high, axis, each_row, _) = given[:6], given[6:]
    with torch.no_grad():
        torch.fused_moving_avg_obs_fake_quant(input.detach(), *given)
        grid = scale.clone(), zero_point.clone()
    if each_row:
        found = call(torch.fake_quantize_per_channel_affine, input, *grid, axis, low, high)
    else:
        found = call(torch.fake_quantize_per_tensor_affine, input, *grid, low, high)
    return torch.where(is_on.reshape(()) == 1, found, input)


FORMS = [
    Form(
        "fused_moving_avg_obs_fake_quant",
        switches=("fake_quantize",),
        takes=("input", *_STATE, *_SETTINGS),
        defaults=(*(MISSING,) * 11, False, False),
        owners=(torch, torch.ops.aten),
        hides=("fake_quantize_per_tensor_affine",),
        write=_fused_moving_avg_obs_fake_quant,
    )
]
