"""Parameters that get a gradient in part: dead units and thresholds are findings, what is natural is a calm line or nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pseudograd as pg
from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis

from . import trainers
from .checks import codes, diagnosed, line_of, make_function, only


def train(model: nn.Module, batch: Callable[[], Tensor], steps: int = 4) -> Diagnosis:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    d = trainers.steps(model, lambda: model(batch()).square().mean(), steps, optimizer)
    assert d.to_json()["errors"] == []
    return d


def half_dead(dead: int, behind: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), behind or nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        model[0].bias[:dead] = -40
    return model


def test_dead_units_are_one_finding_whose_pasted_remedy_wakes_them() -> None:
    model = half_dead(13)
    d = train(model, lambda: torch.randn(64, 8))
    finding = only(d, "starved")
    assert finding.evidence == "81.2 % of 0.weight, 0.bias (13 of 16 units) got no gradient in any of 4 backwards"
    assert (finding.module, finding.share) == ("1", 13 / 16)
    assert d.starved == []
    (weight, bias, behind) = d.partly
    assert (weight.entries, weight.without, weight.units, weight.dead_units) == (128, 8 * 13, 16, 13)
    assert (bias.entries, bias.without, bias.units, bias.dead_units) == (16, 13, 16, 13)
    assert (behind.parameter, behind.without, behind.dead_units) == ("2.weight", 3 * 13, 0)
    model.zero_grad()
    line = finding.next_step.split("#")[0].replace("...", "train(model, lambda: torch.randn(64, 8))")
    exec(line, {"pseudograd": pg, "train": train, "model": model, "torch": torch})
    assert model[0].weight.grad.any(1).all()


def test_thresholds_without_a_gradient_in_a_custom_function_are_a_finding() -> None:
    """As sae_lens has it: a threshold learns through a rectangle around it."""
    near = torch.arange(64) < 9
    jump = make_function("Jump", lambda ctx, x, at: x * (x > at), lambda ctx, grad: (grad, (grad * near).sum(0)))
    threshold, x = nn.Parameter(torch.full((64,), 0.1)), torch.randn(512, 64)
    finding = only(diagnosed(lambda: jump.apply(x, threshold).square().sum(), times=3), "starved")
    assert finding.evidence.startswith("85.9 % of threshold (55 of 64 entries)")
    assert "JumpBackward" in finding.cause


def test_thresholds_of_a_jumprelu_whose_window_holds_no_x_are_a_finding() -> None:
    torch.manual_seed(0)
    threshold, x = nn.Parameter(torch.full((64,), 0.1)), torch.randn(512, 64, requires_grad=True)
    d = diagnosed(lambda: pg.jumprelu(x, threshold, bandwidth=1e-3).square().sum(), times=3)
    finding = only(d, "starved")
    assert re.match(r"[89]\d\.\d % of threshold \(\d+ of 64 entries\) got no gradient in any of 3", finding.evidence)
    assert "a larger bandwidth" in finding.next_step
    d = diagnosed(lambda: pg.jumprelu(x, threshold, bandwidth=0.5).square().sum(), times=3)
    assert codes(d) == []


def test_rows_that_no_batch_looks_up_are_a_calm_line() -> None:
    words = nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 2))
    d = train(words, lambda: torch.arange(19))
    assert d.findings == []
    assert d.calm == ["not looked up or 0 by value, and without a gradient: 81 of 100 rows of 0.weight"]


class Reading(nn.Module):
    def __init__(self, read: Callable[[Any], Tensor], rows: int = 16) -> None:
        super().__init__()
        self.read, self.rows = read, nn.Parameter(torch.linspace(-1, 1, rows * 4).reshape(rows, 4))
        self.layer = nn.Linear(4, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self)


X, SEEN = torch.linspace(-1, 1, 32).reshape(8, 4), torch.arange(16) < 4


@pytest.mark.parametrize(
    "read",
    [lambda m: m.rows.masked_fill(~SEEN[:, None], 0.0).exp(), lambda m: torch.where(SEEN[:, None], m.rows, 0).exp()],
    ids=["maskedFill", "where"],
)
def test_the_nearest_cut_of_entries_without_a_gradient_has_its_line(read: Callable[[Any], Tensor]) -> None:
    (line,) = train(Reading(read), lambda: X).calm
    number = line_of("[lambda m: m.rows.masked_fill")
    assert line.startswith("without a gradient in part, no finding: 48 of 64 entries of rows (the nearest cut is ")
    assert line.endswith(f" at tests/diagnosis/test_dead_units.py:{number})")


def test_a_matrix_product_with_zeros_cuts_nothing() -> None:
    weight, x = nn.Parameter(torch.ones(8, 8)), torch.ones(8, 8) * (torch.arange(8) < 2)
    d = diagnosed(lambda: (x @ weight).sum(), times=3)
    assert d.calm == ["without a gradient in part, no finding: 48 of 64 entries of weight"]


def test_rows_that_random_batches_look_up_are_judged_by_all_of_them() -> None:
    words = nn.Sequential(nn.Embedding(64, 4, padding_idx=0), nn.Linear(4, 2))
    d = train(words, lambda: torch.randint(0, 40, (30,)), steps=9)
    assert d.calm[0].startswith("not looked up or padding or 0 by value, and without a gradient: ")


def test_a_table_whose_loss_is_masked_is_not_said_to_be_not_looked_up_for_sure() -> None:
    words = nn.Embedding(16, 4)
    with diagnose(words) as d:
        (words(torch.arange(16)) * SEEN[:, None]).sum().backward()
    assert d.calm == ["not looked up or 0 by value, and without a gradient: 12 of 16 rows of weight"]


@pytest.mark.parametrize(("kind", "row"), [(nn.Embedding, 0), (nn.Embedding, -1), (nn.EmbeddingBag, 99)])
def test_a_row_of_padding_that_is_looked_up_is_a_calm_line(kind: Any, row: int) -> None:
    d = train(nn.Sequential(kind(100, 8, padding_idx=row), nn.Linear(8, 2)), lambda: torch.arange(100).reshape(10, 10))
    assert d.findings == []
    text = f"1 of 100 rows of 0.weight (row {row % 100} is its padding)"
    assert d.calm == [f"not looked up or padding or 0 by value, and without a gradient: {text}"]


@pytest.mark.parametrize(
    ("model", "batch"),
    [
        (lambda: nn.Sequential(nn.Embedding(100, 8, sparse=True), nn.Linear(8, 2)), lambda: torch.arange(19)),
        (lambda: half_dead(0), lambda: torch.randn(64, 8) * (torch.arange(8) < 2)),  # inputs that are always 0
        (lambda: half_dead(0, nn.Dropout(0.9)), lambda: torch.randn(64, 8)),
    ],
    ids=["sparse", "columns", "dropout"],
)
def test_zeros_of_data_dropout_and_sparse_gradients_are_no_finding(model: Any, batch: Any) -> None:
    assert train(model(), batch).findings == []
