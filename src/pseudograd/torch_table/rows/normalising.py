"""normalize, which holds its norm away from zero; corrcoef, which clips its result; lp_pool, whose root goes through sign and relu."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..records import EDGE, MISSING, Called, Form, Inside, Write


def _write_normalize(call: Write, input: object, p: object, dim: object, eps: object, out: object) -> Tensor | None:
    if out is not None:
        return None
    norm = call(Tensor.norm, input, p, dim, True)
    result: Tensor = input / call(Tensor.clamp_min, norm, eps).expand_as(input)
    return result


def _write_corrcoef(call: Write, input: Tensor) -> Tensor | None:
    """A single variable has nothing to hold."""
    if input.dim() != 2 or input.shape[0] < 2:
        return None
    covariance = torch.cov(input)
    variance = covariance.diagonal()
    deviation = call(torch.sqrt, torch.real(variance) if variance.is_complex() else variance)
    correlation = covariance / deviation.view(-1, 1)
    correlation = correlation / deviation.view(1, -1)
    if not correlation.is_complex():
        return call(torch.clip, correlation, -1, 1)  # type: ignore[no-any-return]
    return torch.complex(call(torch.clip, correlation.real, -1, 1), call(torch.clip, correlation.imag, -1, 1))


def _write_lp_pool(
    pool: Callable[..., Tensor],
    dimensions: int,
    call: Write,
    input: Tensor,
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
    return held.mul(_kernel_elements(kernel_size, dimensions)).pow(1.0 / norm_type)  # type: ignore[no-any-return]


def _kernel_elements(kernel_size: Any, dimensions: int) -> int:
    if isinstance(kernel_size, int) or dimensions == 1:
        return kernel_size**dimensions if dimensions > 1 else kernel_size  # type: ignore[no-any-return]
    return math.prod(kernel_size)


FORMS = [
    Form(
        "normalize",
        switches=("clamp", EDGE),
        takes={"input": MISSING, "p": 2.0, "dim": 1, "eps": 1e-12, "out": None},
        called=Called(owners=(functional,)),
        inside=Inside(("clamp_min",), _write_normalize),
    ),
    Form("corrcoef", switches=("clamp", EDGE), inside=Inside(("clamp",), _write_corrcoef)),
    *(
        Form(
            f"lp_pool{dimensions}d",
            switches=("sign", "relu"),
            takes={
                **dict.fromkeys(("input", "norm_type", "kernel_size"), MISSING),
                "stride": None,
                "ceil_mode": False,
            },
            called=Called(owners=(functional,)),
            inside=Inside(("relu", "sign"), partial(_write_lp_pool, pool, dimensions)),
        )
        for dimensions, pool in enumerate((functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d), 1)
    ),
]
