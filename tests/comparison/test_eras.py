"""compare runs every era in the table: with a third one it speaks of all three."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.comparison.variants import eras, variants
from pseudograd.torch_table.eras import ERAS, OPEN_ERA

THREE = ("zero/closed", "zero/open", "zero/half")
NEXT = "torch>=2.16"
Clamp = Callable[..., Tensor]


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ERAS, NEXT, ERAS[OPEN_ERA].replaced(name=NEXT, since=(2, 16), edge="half", share_in_fmax=0.5))


def slope_at_bound(clamp: Clamp, *bounds: object) -> float:
    x = torch.tensor([1.0], requires_grad=True)
    clamp(x, *(bounds or (-1, 1))).sum().backward()
    assert x.grad is not None
    return float(x.grad)


def noisy_slope_at_bound(clamp: Clamp, seed: int) -> float:
    """What the edge passes, and noise of the seed which is the same for all."""
    return slope_at_bound(clamp) + torch.randn(()).item()


@pytest.mark.usefixtures("third")
def test_compare_runs_every_era_and_judges_each_pair_of_them() -> None:
    handed = pg.compare(noisy_slope_at_bound, rules=["inward"], seeds=12, better="higher")
    rewritten = pg.compare(
        lambda seed: noisy_slope_at_bound(torch.clamp, seed), rules=["inward"], replace="clamp", seeds=1
    )
    assert handed.variants == (*THREE, "inward", "torch.clamp", "no clamp")
    assert rewritten.variants == (*THREE, "inward", "torch.clamp")
    for comparison in (handed, rewritten):
        first = [comparison.values["the number"][era][0] for era in THREE]
        assert [round(first[0] - other, 6) for other in first] == [0.0, 1.0, 0.5]
    pairs = {(0, 1): "better", (0, 2): "better", (1, 2): "worse"}
    verdicts = {(THREE[older], THREE[newer]): verdict for (older, newer), verdict in pairs.items()}
    assert {pair: edge.verdict for pair, edge in handed.edges().items()} == verdicts
    assert handed.edge() == handed.edges()[THREE[0], THREE[2]]
    lines = [line for line in str(handed).splitlines() if line.startswith("Edge: ")]
    for line, order in zip(lines, ((0, 1), (0, 2), (2, 1)), strict=True):
        better, worse = (line.index(f"({list(ERAS)[era]}, {THREE[era]})") for era in order)
        assert better < line.index(" is better than ") < worse


def test_an_era_that_differs_with_tensor_bounds_alone_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clamp that a program is handed has numbers as bounds, so it is of the older era; an unedited program may have tensors."""
    monkeypatch.setitem(ERAS, NEXT, ERAS[OPEN_ERA].replaced(name=NEXT, since=(2, 16), edge="closed", share_in_fmax=0.5))
    assert list(eras()) == [*THREE[:2], NEXT]
    assert [row.name for row in variants([], has_leaves=False)] == [*THREE[:2], "torch.clamp", "no clamp"]
    bounds = torch.tensor(-1.0), torch.tensor(1.0)
    rows = pg.compare(lambda: slope_at_bound(torch.clamp, *bounds), rules=[], replace="clamp", seeds=1)
    assert [rows.values["the number"][era] for era in eras()] == [(1.0,), (0.5,), (0.5,)]
