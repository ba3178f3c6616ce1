"""What divides by a norm that is held away from zero, and a correlation that is held within its range."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..forms import EDGE, MISSING, Form, Write


def _normalize(call: Write, input: object, p: object, dim: object, eps: object, out: object) -> Tensor | None:
    if out is not None:
        return None
    norm = call(Tensor.norm, input, p, dim, True)
    result: Tensor = input / call(Tensor.clamp_min, norm, eps).expand_as(input)
    return result


def _corrcoef(call: Write, input: Any) -> Tensor | None:
    """Of one variable there is nothing to hold."""
    if input.dim() != 2 or input.shape[0] < 2:
        return None
    covariance = torch.cov(input)
    variance = covariance.diagonal()
    deviation = call(torch.sqrt, torch.real(variance) if variance.is_complex() else variance)
    found = covariance / deviation.view(-1, 1)
    found = found / deviation.view(1, -1)
    if not found.is_complex():
        return call(torch.clip, found, -1, 1)  # type: ignore[no-any-return]
    return torch.complex(call(torch.clip, found.real, -1, 1), call(torch.clip, found.imag, -1, 1))


FORMS = [
    Form(
        "normalize",
        switches=("clamp", EDGE),
        takes=("input", "p", "dim", "eps", "out"),
        defaults=(MISSING, 2.0, 1, 1e-12, None),
        owners=(functional,),
        hides=("clamp_min",),
        write=_normalize,
    ),
    Form("corrcoef", switches=("clamp", EDGE), hides=("clamp",), write=_corrcoef),
]
