"""The recipe of docs/coming_from.md: an optional dependency, run with pseudograd and without, and compared."""

import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import pseudograd

from ..choices import folded
from .lines import RECIPE

INF, NAN = torch.inf, torch.nan
BOUNDS = ((-1.0, 1.0), (-0.3, 0.7), (0, 1), (-INF, 0.5), (0.25, 0.25))


def import_recipe() -> Callable[..., Tensor]:
    names: dict[str, object] = {}
    exec(RECIPE, names)
    assert names["clamp"] is pseudograd.clamp
    return names["clamp"]


def import_fallback(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tensor]:
    monkeypatch.setitem(sys.modules, "pseudograd", None)
    names: dict[str, object] = {}
    exec(RECIPE, names)
    assert names["clamp"] is not pseudograd.clamp
    return names["clamp"]


@folded
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_the_fallback_is_exact(
    bounds: tuple[float, float], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, fallback = import_recipe(), import_fallback(monkeypatch)
    edges = torch.tensor([b for b in bounds if abs(b) < INF], dtype=dtype)
    beside = [torch.nextafter(edges, torch.full_like(edges, side)) for side in (-INF, INF)]
    special = torch.tensor([0.0, -0.0, 300.0, -300.0, 3e4, INF, -INF, NAN], dtype=dtype)
    x = torch.cat([edges, *beside, edges - 0.25, edges + 0.25, special])
    for g in (1.0, -1.0, 0.0, 1e-5, -1e-5, INF, -INF):
        outcomes = []
        for clamp in (ours, fallback):
            leaf = x.clone().requires_grad_()
            middle = leaf * 1
            y = clamp(middle, *bounds)
            assert torch.equal(middle.nan_to_num(0.5), x.nan_to_num(0.5)), "it leaves its input alone"
            (grad,) = torch.autograd.grad(y, leaf, torch.full_like(x, g))
            outcomes.append((y.detach(), grad, clamp(x, *bounds)))
        for mine, theirs in zip(*outcomes, strict=True):
            assert mine.dtype is theirs.dtype is dtype
            assert torch.equal(mine.isnan(), theirs.isnan())
            assert torch.equal(mine.nan_to_num(nan=0.5), theirs.nan_to_num(nan=0.5))
        assert x.requires_grad is False
