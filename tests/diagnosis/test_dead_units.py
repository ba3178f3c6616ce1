"""Parameters that get a gradient in part: dead units and thresholds are findings, what is natural is a calm line or nothing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pseudograd as pg
from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis
from pseudograd.torch_table.private import tells_unpack_hooks

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


def test_rows_that_no_batch_looks_up_are_a_calm_line() -> None:
    words = nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 2))
    d = train(words, lambda: torch.arange(19))
    assert d.findings == []
    assert d.calm == ["not looked up, and without a gradient: 81 of 100 rows of 0.weight"]


class Reading(nn.Module):
    def __init__(self, read: Callable[[Any], Tensor], rows: int = 16) -> None:
        super().__init__()
        self.read, self.rows = read, nn.Parameter(torch.linspace(-1, 1, rows * 4).reshape(rows, 4))
        self.layer = nn.Linear(4, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self)


X, SEEN = torch.linspace(-1, 1, 32).reshape(8, 4), torch.arange(16) < 4
DROPS: dict[str, tuple[Callable[[Any], Tensor], str]] = {
    "slice": (lambda m: m.rows[:4].sin(), "reads others alone"),
    "select": (lambda m: m.rows[3].sin(), "reads others alone"),
    "topk": (lambda m: m.rows.flatten().topk(4).values, "reads others alone"),
    "a head": (lambda m: m.layer(X).view(8, 4, 4)[:, :2] + m.rows.sum(), "reads others alone"),
    "mul": (lambda m: m.rows.sin() * SEEN[:, None], "passes nothing on to them"),
    "maskedFill": (lambda m: m.rows.masked_fill(~SEEN[:, None], 0.0).square(), "passes nothing on to them"),
    "where": (lambda m: torch.where(SEEN, m.layer(X), 0.0).square() + m.rows.sum(), "passes nothing on to them"),
}


@pytest.mark.parametrize("name", DROPS)
def test_entries_that_a_line_drops_have_the_line(name: str) -> None:
    if name == "a head" and not tells_unpack_hooks:
        pytest.xfail("torch 2.8: the entries are counted, and their line is not told")
    read, how = DROPS[name]
    (line,) = train(Reading(read), lambda: X).calm
    number = line_of(f'"{name}": (lambda m')
    assert line.startswith("without a gradient in part, no finding: ")
    assert f" at tests/diagnosis/test_dead_units.py:{number} {how})" in line


def test_a_matrix_product_with_zeros_cuts_nothing() -> None:
    weight, x = nn.Parameter(torch.ones(8, 8)), torch.ones(8, 8) * (torch.arange(8) < 2)
    d = diagnosed(lambda: (x @ weight).sum(), times=3)
    assert d.calm == ["without a gradient in part, no finding: 48 of 64 entries of weight"]


def test_rows_that_random_batches_look_up_are_judged_by_all_of_them() -> None:
    words = nn.Sequential(nn.Embedding(64, 4, padding_idx=0), nn.Linear(4, 2))
    d = train(words, lambda: torch.randint(0, 40, (30,)), steps=9)
    assert d.calm[0].startswith("not looked up or padding, and without a gradient: ")


def test_a_lookup_that_reads_the_entries_is_no_reason() -> None:
    """Each column is read, and what comes back for two of them is 0 by value."""
    model = Reading(lambda m: m.rows[:, 0].sin() + 0 * m.rows[:, 1] + 0 * m.rows[:, 2:].sum(1))
    (line,) = train(model, lambda: X).calm
    assert "reads others" not in line


def test_a_table_whose_loss_is_masked_is_not_said_to_be_not_looked_up() -> None:
    words = nn.Embedding(16, 4)
    model = Reading(lambda m: words(torch.arange(16)) * SEEN[:, None])
    model.register_module("words", words)
    assert "not looked up" not in str(train(model, lambda: X))
    with diagnose(tables := nn.ModuleList([words, nn.Embedding(16, 4)])) as d:  # no further backward to look at
        sum(table(torch.arange(4)).sum() for table in tables).backward()
    rows = "12 of 16 rows of 0.weight, 12 of 16 rows of 1.weight"
    assert d.calm == [f"not looked up or 0 by value, and without a gradient: {rows}"]


def test_what_a_hook_of_the_program_unpacks_is_not_asked_for_again() -> None:
    rows, unpacked = nn.Parameter(torch.linspace(-1, 1, 64)), [0]

    def unpack(pair: tuple[Tensor, list[int]]) -> Tensor:
        pair[1][0] += 1
        return pair[0]

    def train_once() -> list[int]:
        counts = []
        for _ in range(4):
            with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (tensor, unpacked), unpack):
                loss = (rows[:9].sin() * 2).sum() + torch.where(rows > 0.5, rows, 0.0).exp().sum()
            loss.backward()
            counts.append(unpacked[0])
        unpacked[0] = 0
        return counts

    expected = train_once()
    with diagnose():
        assert train_once() == expected


def test_a_comparison_under_no_grad_decides_as_well() -> None:
    gate = nn.Parameter(torch.linspace(-2, 2, 32))
    with diagnose() as d:
        for _ in range(3):
            with torch.no_grad():
                is_open = gate.sigmoid() > 0.7
            (gate.sigmoid() * is_open).sum().backward()
    assert only(d, "starved").where.endswith(f":{line_of('(gate.sigmoid() * is_open)')}")


@pytest.mark.parametrize("is_own", [True, False])
def test_entries_that_their_own_value_leaves_out_are_a_finding(is_own: bool) -> None:
    limit = torch.linspace(-1, 1, 64).reshape(16, 4)
    model = Reading(lambda m: torch.where((m.rows if is_own else limit) < 0.5, 0.0, m.rows) + m.layer(X).sum())
    d = train(model, lambda: X)
    assert codes(d) == (["starved"] if is_own else [])
    if is_own:
        (finding,) = d.findings
        assert finding.where.endswith(f":{line_of('model = Reading(lambda m: torch.where((m.rows')}")
        assert finding.evidence == "75.0 % of rows (48 of 64 entries) got no gradient in any of 4 backwards"
        assert finding.cause.startswith("where passes nothing on to them, as a comparison of what comes from rows")


def _best(rows: Tensor) -> Tensor:
    flat = rows.flatten()
    return flat[flat.sigmoid().topk(16).indices]


@pytest.mark.parametrize(
    ("read", "decides"),
    [
        (lambda m: nn.Threshold(0.5, 0.0)(m.rows), "threshold passes nothing on to them: nothing but rows"),
        (lambda m: torch.relu(m.rows.sigmoid() - 0.6), "relu passes nothing on to them: nothing but rows decides"),
        (lambda m: _best(m.rows), "index reads others alone, as topk of what comes from rows decides"),
        (lambda m: torch.relu(X.relu() @ m.rows.T - 1), ""),  # units, and the data decide as well
    ],
    ids=["threshold", "relu", "topk", "a layer"],
)
def test_entries_below_a_threshold_of_their_own_are_a_finding(read: Callable[[Any], Tensor], decides: str) -> None:
    d = train(Reading(lambda m: read(m).sum() + m.layer(X).sum()), lambda: X)
    assert [finding.cause.startswith(decides) for finding in d.findings] == [True] * bool(decides)


@pytest.mark.parametrize(("kind", "row"), [(nn.Embedding, 0), (nn.Embedding, -1), (nn.EmbeddingBag, 99)])
def test_a_row_of_padding_that_is_looked_up_is_a_calm_line(kind: Any, row: int) -> None:
    d = train(nn.Sequential(kind(100, 8, padding_idx=row), nn.Linear(8, 2)), lambda: torch.arange(100).reshape(10, 10))
    assert d.findings == []
    text = f"1 of 100 rows of 0.weight (row {row % 100} is its padding)"
    assert d.calm == [f"not looked up or padding, and without a gradient: {text}"]


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
