"""The pooling of a power average: what torch takes the root of goes through a sign and a relu."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..forms import MISSING, Form, Write


def _lp_pool(
    pool: Callable[..., Tensor],
    dimensions: int,
    call: Write,
    input: Any,
    norm_type: object,
    kernel_size: object,
    stride: object,
    ceil_mode: object,
) -> Tensor | None:
    if not isinstance(norm_type, (int, float)) or math.isinf(norm_type):
        return None
    powers = input.pow(norm_type)
    if stride is None:
        averaged = pool(powers, kernel_size, padding=0, ceil_mode=ceil_mode)
    else:
        averaged = pool(powers, kernel_size, stride, 0, ceil_mode)
    held = call(torch.sign, averaged) * call(functional.relu, call(torch.abs, averaged))
    return held.mul(_size(kernel_size, dimensions)).pow(1.0 / norm_type)  # type: ignore[no-any-return]


def _size(kernel_size: Any, dimensions: int) -> int:
    if isinstance(kernel_size, int) or dimensions == 1:
        return kernel_size**dimensions if dimensions > 1 else kernel_size  # type: ignore[no-any-return]
    return math.prod(kernel_size)


FORMS = [
    Form(
        f"lp_pool{dimensions}d",
        switches=("sign", "relu"),
        takes=("input", "norm_type", "kernel_size", "stride", "ceil_mode"),
        defaults=(MISSING, MISSING, MISSING, None, False),
        owners=(functional,),
        hides=("relu", "sign"),
        write=partial(_lp_pool, pool, dimensions),
    )
    for dimensions, pool in (
        (1, functional.avg_pool1d),
        (2, functional.avg_pool2d),
        (3, functional.avg_pool3d),
    )
]
