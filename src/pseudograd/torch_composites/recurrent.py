"""One step of a recurrent network with relu."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..torch_forms import MISSING, Form, Write


def _rnn_relu_cell(call: Write, input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Tensor | None:
    if input.shape[0] != hx.shape[0] or not input.dim() == hx.dim() == 2:
        return None
    found: Tensor = call(torch.relu, functional.linear(hx, w_hh, b_hh) + functional.linear(input, w_ih, b_ih))
    return found


FORMS = [
    Form(
        "rnn_relu_cell",
        switches=("relu",),
        takes=("input", "hx", "w_ih", "w_hh", "b_ih", "b_hh"),
        defaults=(MISSING, MISSING, MISSING, MISSING, None, None),
        owners=(torch, torch.ops.aten),
        hides=("relu",),
        write=_rnn_relu_cell,
    )
]
