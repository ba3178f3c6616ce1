"""torch is left as it was found: what is patched is listed, put back, and shown by doctor."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import pseudograd as pg
from pseudograd import doctor
from pseudograd.listen import patches

PAGE = Path(__file__).resolve().parents[2] / "docs" / "patched.md"
reentry = pytest.mark.parametrize("has_reentry", [False, True])


def of_torch() -> list[str]:
    return [
        row["name"] for row in patches.status() if row["name"].startswith("torch.") and "_dynamo" not in row["name"]
    ]


def test_the_page_has_the_rows_of_the_registry() -> None:
    assert patches.table() in PAGE.read_text()


def test_torch_is_patched_inside_contexts_alone_and_doctor_shows_it() -> None:
    assert of_torch() == []
    with pg.override(clamp="inward"):
        inside = of_torch()
        assert "torch.utils.checkpoint.CheckpointFunction._backward_cls.run_function" in inside
        with pg.diagnose():
            assert {"torch.autograd.Function.apply", "torch.optim.Optimizer.zero_grad", *inside} <= set(of_torch())
            findings = doctor.examine()
            assert {row["name"] for row in findings["patched"]} >= set(of_torch())
            assert "torch.utils.swap_tensors, until the last diagnosis has ended" in doctor.text(findings)
        assert of_torch() == inside
    assert of_torch() == []


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(patches, "PATCHES", [])
    module = SimpleNamespace(own=abs)
    monkeypatch.setitem(sys.modules, "patched_here", module)
    return module


@pytest.mark.parametrize("name", ["own", "inherited"])
def test_a_patch_is_applied_once_and_put_back(owner: Any, name: str) -> None:
    patch, before = patches.Patch(f"patched_here.{name}", "", ""), dict(vars(owner))
    for number in range(2):
        patch.apply(lambda hidden, number=number: (number, hidden))
    assert getattr(owner, name) == (0, before.get(name))
    assert patch.is_applied
    patch.remove()
    patch.remove()
    assert vars(owner) == before
    assert not patch.is_applied


def test_what_somebody_else_put_in_front_stays(owner: Any) -> None:
    patch = patches.Patch("patched_here.own", "", "")
    patch.apply(lambda hidden: "ours")
    owner.own = "theirs"
    assert not patch.is_applied
    patch.remove()
    assert owner.own == "theirs"


def test_a_module_that_nobody_imported_is_left_alone(owner: Any) -> None:
    patch = patches.Patch("nowhere.function", "", "")
    patch.apply(lambda hidden: hidden)
    assert not patch.is_applied


X = [-2.0, 0.5, 2.0]
OURS, STOCK = [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]


def checkpointed(has_reentry: bool) -> tuple[Tensor, Tensor]:
    x = torch.tensor(X, requires_grad=True)
    return x, checkpoint(lambda x: torch.clamp(x * 1, -1, 1), x, use_reentrant=has_reentry)


@reentry
def test_a_checkpoint_recomputes_under_its_own_contexts_when_they_have_ended(has_reentry: bool) -> None:
    with pg.override(clamp="identity"):
        x, y = checkpointed(has_reentry)
    assert of_torch() == []
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == OURS
    del x, y
    gc.collect()


@reentry
def test_a_checkpoint_from_before_a_context_recomputes_without_it(has_reentry: bool) -> None:
    x, y = checkpointed(has_reentry)
    with pg.override(clamp="identity"):
        y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == STOCK
