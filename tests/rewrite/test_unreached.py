"""A function that hides an op of the table is written out, or the report says that the op is not reached: compared with a list."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

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


X = torch.rand(4, 2, 2, generator=torch.Generator().manual_seed(0), requires_grad=True)
NET = nn.RNN(2, 1, nonlinearity="relu")
HIDDEN: dict[str, tuple[Callable[[], Tensor], str]] = {
    "_fake_quantize_learnable_per_tensor_affine": (
        lambda: torch._fake_quantize_learnable_per_tensor_affine(X, torch.ones(1), torch.zeros(1), 0, 255, 1.0),
        "fake_quantize_per_tensor_affine",
    ),
    "rnn_relu": (lambda: NET(X)[0], "relu"),
    "corrcoef": (lambda: torch.corrcoef(X[0]), "clamp"),
    "lp_pool2d": (lambda: functional.lp_pool2d(X, 2.0, 2), "relu"),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch 2.15's own, of a compiled network
@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("name", HIDDEN)
def test_it_is_named_with_its_line(name: str, is_compiled: bool) -> None:
    torch.compiler.reset()
    call, op = HIDDEN[name]
    plain = torch.autograd.grad(call().sum(), X)[0]
    with override(fake_quantize="identity", relu="identity", clamp="identity") as context:
        f = torch.compile(call, backend="eager") if is_compiled else call
        assert torch.equal(torch.autograd.grad(f().sum(), X)[0], plain)
    line = f"{Path(__file__).name}:{call.__code__.co_firstlineno}"
    missed = {(site.op, site.why) for site in context.report().missed if line in (site.where + site.user_where)}
    assert (op, f"inside {name}, which torch runs as one call") in missed
    assert len({why for _, why in missed}) == 1
