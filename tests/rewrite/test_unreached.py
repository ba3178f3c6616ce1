"""What hides an op of the table is written out, or says that it is not reached: held against what was found on every torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pseudograd import override
from pseudograd.torch_composites import FORMS, losses, unreached
from pseudograd.torch_forms import form_of_node

FOUND = json.loads((Path(__file__).parents[2] / "docs" / "composites.json").read_text())
BY_NAME = {form.names[0]: form for form in FORMS}


@pytest.mark.parametrize("version", FOUND)
def test_what_was_found_has_a_row_that_says_what_it_hides(version: str) -> None:
    for function, row in FOUND[version].items():
        form = BY_NAME[function.rpartition(".")[2]]
        assert {*row["hides"]} - {"minimum"} <= {*form.hides}, function
        assert (row["reached"] == row["samples"]) == (form.write is not None), function


def test_no_row_is_there_that_nobody_found() -> None:
    found = {function.rpartition(".")[2] for rows in FOUND.values() for function in rows}
    assert found == {*BY_NAME}


def _network(x: Tensor) -> Tensor:
    net = nn.RNN(1, 1, nonlinearity="relu")
    result: Tensor = net(x)[0]
    return result


def test_it_is_named_with_its_line() -> None:
    with override(relu="identity") as context:
        _network(torch.ones(2, 1, 1)).sum().backward()
    (site,) = context.report().missed
    assert (site.op, site.why) == ("relu", "inside rnn_relu, which torch runs as one call")
    assert Path(__file__).name in site.user_where


def test_in_compiled_code_too() -> None:
    on = torch.ones(1, dtype=torch.int32)
    grid = torch.zeros(1), torch.ones(1), torch.ones(1), torch.zeros(1, dtype=torch.int32)

    def quantized(x: Tensor) -> Tensor:
        return torch.fused_moving_avg_obs_fake_quant(x, on, on, *grid, 0.1, 0, 255, 0)  # type: ignore[no-any-return]

    torch.compiler.reset()
    with override(fake_quantize="identity") as context:
        torch.compile(quantized, backend="eager")(torch.ones(2, requires_grad=True))
    lines = {site.where: site.op for site in context.report().missed}  # the graph runs under the context too
    (line,) = [line for line in lines if Path(__file__).name in line]
    assert lines[line] == "fake_quantize_per_tensor_affine"


def test_hidden_forms_are_those_of_the_table() -> None:
    assert all(form.hides for form in FORMS)
    assert form_of_node("ClampMinBackward0").names == losses.FORMS[0].hides  # type: ignore[union-attr]
    assert all(form.write is None for form in unreached.FORMS)
