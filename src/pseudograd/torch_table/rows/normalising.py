"""normalize, which holds its norm away from zero; corrcoef, which clips its result; lp_pool, whose root goes through sign and relu."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from ..records import EDGE, MISSING, Form, Run


def _write_normalize(run: Run, input: Tensor, p: object, dim: object, eps: object, out: object) -> Tensor | None:
    if out is not None:
        return None
    norm = run(Tensor.norm, input, p, dim, True)
    return input / run(Tensor.clamp_min, norm, eps).expand_as(input)


def _write_corrcoef(run: Run, input: Tensor) -> Tensor | None:
    """A single variable has nothing to hold."""
    if input.dim() != 2 or input.shape[0] < 2:
        return None
    covariance = torch.cov(input)
    variance = covariance.diagonal()
    deviation = run(torch.sqrt, torch.real(variance) if variance.is_complex() else variance)
    correlation = covariance / deviation.view(-1, 1)
    correlation = correlation / deviation.view(1, -1)
    if not correlation.is_complex():
        return run(torch.clip, correlation, -1, 1)
    return torch.complex(run(torch.clip, correlation.real, -1, 1), run(torch.clip, correlation.imag, -1, 1))


def _write_lp_pool(
    pool: Callable[..., Tensor],
    dimensions: int,
    run: Run,
    input: Tensor,
    norm_type: object,
    kernel_size: int | tuple[int, ...],
    stride: object,
    ceil_mode: object,
) -> Tensor | None:
    if not isinstance(norm_type, (int, float)) or math.isinf(norm_type):
        return None
    if dimensions == 1 and not isinstance(kernel_size, int):
        return None
    averaged = pool(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    held = run(torch.sign, averaged) * run(functional.relu, run(torch.abs, averaged))
    count = kernel_size**dimensions if isinstance(kernel_size, int) else math.prod(kernel_size)
    return held.mul(count).pow(1.0 / norm_type)


FORMS = [
    Form(
        "normalize",
        switches=("clamp", EDGE),
        takes={"input": MISSING, "p": 2.0, "dim": 1, "eps": 1e-12, "out": None},
        owners=(functional,),
        hides=("clamp_min",),
        write=_write_normalize,
    ),
    Form("corrcoef", switches=("clamp", EDGE), hides=("clamp",), write=_write_corrcoef),
    *(
        Form(
            f"lp_pool{dimensions}d",
            switches=("sign", "relu"),
            takes={**dict.fromkeys(("input", "norm_type", "kernel_size"), MISSING), "stride": None, "ceil_mode": False},
            owners=(functional,),
            hides=("relu", "sign"),
            write=partial(_write_lp_pool, pool, dimensions),
        )
        for dimensions, pool in enumerate((functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d), 1)
    ),
]
