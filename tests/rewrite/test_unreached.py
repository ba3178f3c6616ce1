"""A function that hides an op of the table is written out, or the report says that the op is not reached: compared with a list."""

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
    known = {function.rpartition(".")[2] for rows in FOUND.values() for function in rows}
    assert known == {*BY_NAME}


def _learnt(x: Tensor) -> Tensor:
    known: Tensor = torch._fake_quantize_learnable_per_tensor_affine(x, torch.ones(1), torch.zeros(1), 0, 255, 1.0)
    return known


@pytest.mark.parametrize("is_compiled", [False, True])
def test_it_is_named_with_its_line(is_compiled: bool) -> None:
    torch.compiler.reset()
    with override(fake_quantize="identity") as context:
        f = torch.compile(_learnt, backend="eager") if is_compiled else _learnt
        f(torch.ones(2, requires_grad=True)).sum().backward()
    line = f"{Path(__file__).name}:{_learnt.__code__.co_firstlineno + 1}"
    (site, *others) = [site for site in context.report().missed if site.where.endswith(line)]
    why = "inside _fake_quantize_learnable_per_tensor_affine, which torch runs as one call"
    assert (site.op, site.why, others) == ("fake_quantize_per_tensor_affine", why, [])


def test_a_network_on_another_device_is_named_with_its_line() -> None:
    """There it is one kernel, which leaves no node of a relu."""
    net = nn.RNN(1, 1, nonlinearity="relu", device="meta")
    with override(relu="identity") as context:
        net(torch.ones(2, 1, 1, device="meta"))
    (site,) = context.report().missed
    assert (site.op, site.why) == ("rnn_relu", "inside rnn_relu, which is one kernel on this device")
    assert Path(__file__).name in site.user_where
