"""Recurrent networks with relu: one step of one, and whole ones, as torch runs them on the CPU (aten/src/ATen/native/RNN.cpp)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..records import MISSING, Called, Form, Inside, Write


def _write_rnn_relu_cell(
    call: Write, input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any, b_hh: Any
) -> Tensor | None:
    if input.shape[0] != hx.shape[0] or not input.dim() == hx.dim() == 2:
        return None
    hidden: Tensor = call(torch.relu, functional.linear(hx, w_hh, b_hh) + functional.linear(input, w_ih, b_ih))
    return hidden


class _Layer:
    """One direction of one layer: its weights, and the inputs of all steps, which torch multiplies at once."""

    def __init__(self, call: Write, weights: tuple[Any, ...], input: Tensor) -> None:
        w_ih, self.w_hh, b_ih, self.b_hh = weights
        self.call = call
        self.input = functional.linear(input, w_ih, b_ih)

    def step(self, hidden: Tensor, input: Tensor) -> Tensor:
        state: Tensor = self.call(torch.relu, functional.linear(hidden, self.w_hh, self.b_hh) + input)
        return state

    def steps(self, hidden: Tensor, backwards: bool) -> tuple[Tensor, Tensor]:
        """Every output, and the last hidden state."""
        inputs = self.input.unbind(0)
        outputs = []
        for input in inputs[::-1] if backwards else inputs:
            hidden = self.step(hidden, input)
            outputs.append(hidden)
        return torch.stack(outputs[::-1] if backwards else outputs, 0), hidden

    def packed_steps(self, hidden: Tensor, sizes: list[int], backwards: bool) -> tuple[Tensor, Tensor]:
        return self._packed_backwards(hidden, sizes) if backwards else self._packed(hidden, sizes)

    def _packed(self, hidden: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
        """Sequences that end leave the batch from its end."""
        outputs, done, start = [], [], 0
        for size in sizes:
            input = self.input.narrow(0, start, size)
            start += size
            if size < hidden.shape[0]:
                done.append(hidden.narrow(0, size, hidden.shape[0] - size))
                hidden = hidden.narrow(0, 0, size)
            hidden = self.step(hidden, input)
            outputs.append(hidden)
        return torch.cat(outputs, 0), torch.cat([hidden, *done[::-1]], 0)

    def _packed_backwards(self, first: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
        """From the last step of the longest sequence on, each comes in at its own last step."""
        hidden, outputs, end = first.narrow(0, 0, sizes[-1]), [], self.input.shape[0]
        for size in sizes[::-1]:
            running = hidden.shape[0]
            if size > running:
                hidden = torch.cat([hidden, first.narrow(0, running, size - running)], 0)
            end -= size
            hidden = self.step(hidden, self.input.narrow(0, end, size))
            outputs.append(hidden)
        return torch.cat(outputs[::-1], 0), hidden


def _write_rnn_relu(call: Write, input: Tensor, hx: Tensor, params: Any, *others: Any) -> object:
    """A padded batch; or a packed one, which torch takes as (data, batch_sizes, hx, params, ...)."""
    if isinstance(params, Tensor):
        sizes, hx, params = hx, params, others[0]
        has_biases, layers, dropout, training, bidirectional = others[1:]
        batch_first = False
    else:
        sizes = None
        has_biases, layers, dropout, training, bidirectional, batch_first = others
    if not input.is_cpu:
        return "inside rnn_relu, which is one kernel on this device"
    if batch_first is None or bool(sizes is None) == (input.dim() == 2) or 0 in input.shape:
        return None
    directions = 2 if bidirectional else 1
    if len(params) != layers * directions * (4 if has_biases else 2) or hx.shape[0] != layers * directions:
        return None
    hidden, weights = list(hx.unbind(0)), _weights(params, has_biases)
    if batch_first:
        input = input.transpose(0, 1)
    last: list[Tensor] = []
    for at in range(layers):
        outputs = []
        for backwards in (False, True)[:directions]:
            layer, first = _Layer(call, next(weights), input), hidden[len(last)]
            if sizes is None:
                output, end = layer.steps(first, backwards)
            else:
                output, end = layer.packed_steps(first, sizes.tolist(), backwards)
            outputs.append(output)
            last.append(end)
        input = outputs[0] if directions == 1 else torch.cat(outputs, outputs[0].dim() - 1)
        if dropout != 0 and training and at < layers - 1:
            input = torch.dropout(input, dropout, True)
    return input.transpose(0, 1) if batch_first else input, torch.stack(last, 0)


def _weights(params: Any, has_biases: bool) -> Iterator[tuple[object, ...]]:
    """For each direction of each layer: w_ih, w_hh, b_ih, b_hh."""
    each = 4 if has_biases else 2
    for start in range(0, len(params), each):
        yield (*params[start : start + each], *(None,) * (4 - each))


_IN_TORCH = (torch, torch.ops.aten)
FORMS = [
    Form(
        "rnn_relu_cell",
        switches=("relu",),
        takes={**dict.fromkeys(("input", "hx", "w_ih", "w_hh"), MISSING), "b_ih": None, "b_hh": None},
        called=Called(owners=_IN_TORCH),
        inside=Inside(("relu",), _write_rnn_relu_cell),
    ),
    Form(
        "rnn_relu",
        switches=("relu",),
        takes=dict.fromkeys(
            ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first"),
            MISSING,
        ),
        called=Called(owners=_IN_TORCH, overloads=("input", "data")),
        inside=Inside(("relu",), _write_rnn_relu),
    ),
]
