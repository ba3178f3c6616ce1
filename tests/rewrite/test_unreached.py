"""What hides an op of the table is written out, or says that it is not reached: held against what was found on every torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pseudograd import override
from pseudograd.torch_table.forms import FORMS

FOUND = json.loads((Path(__file__).parents[2] / "docs" / "composites.json").read_text())
BY_NAME = {form.names[0]: form for form in FORMS if form.hides}


@pytest.mark.parametrize("version", FOUND)
def test_what_was_found_has_a_row_that_says_what_it_hides(version: str) -> None:
    for function, row in FOUND[version].items():
        form = BY_NAME[function.rpartition(".")[2]]
        assert {*row["hides"]} - {"minimum"} <= {*form.hides}, function
        assert (row["reached"] == row["samples"]) == (form.write is not None), function


def test_no_row_is_there_that_nobody_found() -> None:
    found = {function.rpartition(".")[2] for rows in FOUND.values() for function in rows}
    assert found == {*BY_NAME}


def _learnt(x: Tensor) -> Tensor:
    found: Tensor = torch._fake_quantize_learnable_per_tensor_affine(x, torch.ones(1), torch.zeros(1), 0, 255, 1.0)
    return found


def test_it_is_named_with_its_line() -> None:
    x = torch.ones(2, requires_grad=True)
    with override(fake_quantize="identity") as context:
        _learnt(x).sum().backward()
    (site,) = context.report().missed
    why = "inside _fake_quantize_learnable_per_tensor_affine, which torch runs as one call"
    assert (site.op, site.why) == ("fake_quantize_per_tensor_affine", why)
    assert Path(__file__).name in site.user_where


def test_in_compiled_code_too() -> None:
    torch.compiler.reset()
    with override(fake_quantize="identity") as context:
        torch.compile(_learnt, backend="eager")(torch.ones(2, requires_grad=True))
    lines = {site.where: site.op for site in context.report().missed}  # the graph runs under the context too
    call = f"{Path(__file__).name}:{_learnt.__code__.co_firstlineno + 1}"  # torch 2.10 names the call of compiled code, too
    (line,) = [line for line in lines if line.endswith(call)]
    assert lines[line] == "fake_quantize_per_tensor_affine"


def test_a_network_on_another_device_is_named_with_its_line() -> None:
    """There it is one kernel, which leaves no node of a relu."""
    net = nn.RNN(1, 1, nonlinearity="relu", device="meta")
    with override(relu="identity") as context:
        net(torch.ones(2, 1, 1, device="meta"))
    (site,) = context.report().missed
    assert (site.op, site.why) == ("rnn_relu", "inside rnn_relu, which is one kernel on this device")
    assert Path(__file__).name in site.user_where
