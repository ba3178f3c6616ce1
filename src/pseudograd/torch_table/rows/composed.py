"""Functions of torch that call a function with a rule where no mode sees the call.

normalize, which clamps its norm, is written out as the calls that it makes. No context reaches inside the others: corrcoef, which clips its
result; lp_pool, whose root goes through sign and relu; recurrent networks with relu.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..records import EDGE, MISSING, Form, Run


def _write_normalize(run: Run, input: Tensor, p: float, dim: object, eps: object, out: object) -> Tensor | None:
    """Only the clamp gets a rule. The norm keeps torch's gradient: frameworks have NaN in the norm of zeros, but not in their normalize."""
    if out is not None:
        return None
    return input / run(Tensor.clamp_min, torch.norm(input, p, dim, True), eps).expand_as(input)


_IN_TORCH = (torch, torch.ops.aten)
_RELU_AND_SIGN = ("relu", "sign")
FORMS = [
    Form(
        "normalize",
        switches=("clamp", EDGE),
        defaults={"input": MISSING, "p": 2.0, "dim": 1, "eps": 1e-12, "out": None},
        owners=(functional,),
        hides=("clamp_min",),
        write=_write_normalize,
    ),
    Form("corrcoef", switches=("clamp", EDGE), hides=("clamp",)),
    *(
        Form(f"lp_pool{dimensions}d", switches=_RELU_AND_SIGN, owners=(functional,), hides=_RELU_AND_SIGN)
        for dimensions in (1, 2, 3)
    ),
    Form("rnn_relu_cell", switches=("relu",), owners=_IN_TORCH, hides=("relu",)),
    Form("rnn_relu", switches=("relu",), owners=_IN_TORCH, overloads=("input", "data"), hides=("relu",)),
]
