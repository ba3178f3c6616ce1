"""Functions of torch that call a function with a rule where no mode sees the call. Here each is written out as the calls that it makes.

normalize, which clamps its norm; corrcoef, which clips its result; lp_pool, whose root goes through sign and relu; recurrent networks with
relu, single steps and whole networks, as torch runs them on the CPU (aten/src/ATen/native/RNN.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..records import EDGE, MISSING, Form, Inputs, Run


def _write_normalize(run: Run, input: Tensor, p: float, dim: object, eps: object, out: object) -> Tensor | None:
    """Only the clamp gets a rule. The norm keeps torch's gradient: frameworks have NaN in the norm of zeros, but not in their normalize."""
    if out is not None:
        return None
    return input / run(Tensor.clamp_min, torch.norm(input, p, dim, True), eps).expand_as(input)


def _write_corrcoef(run: Run, input: Tensor) -> Tensor | None:
    if input.dim() != 2 or input.shape[0] < 2:  # a single variable has nothing to clip
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
    signed = run(torch.sign, averaged) * run(functional.relu, run(torch.abs, averaged))
    count = kernel_size**dimensions if isinstance(kernel_size, int) else math.prod(kernel_size)
    return signed.mul(count).pow(1.0 / norm_type)


def _write_rnn_relu_cell(
    run: Run, input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> Tensor | None:
    if input.shape[0] != hx.shape[0] or not input.dim() == hx.dim() == 2:
        return None
    return run(torch.relu, functional.linear(hx, w_hh, b_hh) + functional.linear(input, w_ih, b_ih))


def _run_layer(
    run: Run, weights: Inputs, input: Tensor, first: Tensor, sizes: list[int], is_backward: bool
) -> tuple[Tensor, Tensor]:
    """One direction of one layer: the outputs of all steps, one after the other, and the last hidden state of each sequence.

    sizes: the size of the batch at each step; its sequences are sorted by length. Forwards, a sequence leaves the batch when it ends.
    Backwards, it enters the batch at its own last step. Torch multiplies the inputs of all steps at once.
    """
    w_ih, w_hh, b_ih, b_hh = weights
    steps = functional.linear(input, w_ih, b_ih).reshape(sum(sizes), -1).split(sizes)
    order = -1 if is_backward else 1
    hidden = first.narrow(0, 0, sizes[::order][0])
    outputs, ended = [], []
    for step, size in zip(steps[::order], sizes[::order], strict=True):
        before = hidden.shape[0]
        if size < before:
            ended.append(hidden.narrow(0, size, before - size))
            hidden = hidden.narrow(0, 0, size)
        elif size > before:
            hidden = torch.cat([hidden, first.narrow(0, before, size - before)], 0)
        hidden = run(torch.relu, functional.linear(hidden, w_hh, b_hh) + step)
        outputs.append(hidden)
    return torch.cat(outputs[::order], 0), torch.cat([hidden, *ended[::-1]], 0)


def _write_rnn_relu(run: Run, input: Tensor, hx: Tensor, params: Any, *others: Any) -> object:
    """A network on a padded batch, or on a packed one, for which the arguments are (data, batch_sizes, hx, params, ...)."""
    batch_first, sizes = False, None
    if isinstance(params, Tensor):
        sizes, hx, (params, has_biases, layers, dropout, training, bidirectional) = hx.tolist(), params, others
    else:
        has_biases, layers, dropout, training, bidirectional, batch_first = others
    if not input.is_cpu:
        return "inside rnn_relu, which is one kernel on this device"
    if batch_first is None or bool(sizes is None) == (input.dim() == 2) or 0 in input.shape:
        return None
    directions, each = 2 if bidirectional else 1, 4 if has_biases else 2
    if len(params) != layers * directions * each or hx.shape[0] != layers * directions:
        return None
    no_biases = () if has_biases else (None, None)
    weights = [(*params[at : at + each], *no_biases) for at in range(0, len(params), each)]
    hidden = hx.unbind(0)
    last: list[Tensor] = []
    if batch_first:
        input = input.transpose(0, 1)
    if sizes is None:
        sizes = [input.shape[1]] * input.shape[0]
    for layer in range(layers):
        outputs = []
        for is_backward in (False, True)[:directions]:
            at = len(last)
            output, end = _run_layer(run, weights[at], input, hidden[at], sizes, is_backward)
            outputs.append(output.reshape(*input.shape[:-1], -1))
            last.append(end)
        input = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout != 0 and training and layer < layers - 1:
            input = torch.dropout(input, dropout, True)
    return input.transpose(0, 1) if batch_first else input, torch.stack(last, 0)


_IN_TORCH = (torch, torch.ops.aten)
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
    Form(
        "rnn_relu_cell",
        switches=("relu",),
        takes={**dict.fromkeys(("input", "hx", "w_ih", "w_hh"), MISSING), "b_ih": None, "b_hh": None},
        owners=_IN_TORCH,
        hides=("relu",),
        write=_write_rnn_relu_cell,
    ),
    Form(
        "rnn_relu",
        switches=("relu",),
        takes=dict.fromkeys(
            ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first"),
            MISSING,
        ),
        owners=_IN_TORCH,
        overloads=("input", "data"),
        hides=("relu",),
        write=_write_rnn_relu,
    ),
]
