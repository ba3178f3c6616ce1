"""torch is left as it was found: what is patched is listed, put back, and shown by doctor."""

from __future__ import annotations

import contextlib
import sys
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pseudograd as pg
from pseudograd import doctor
from pseudograd.listen import patches, warned

PAGE = Path(__file__).resolve().parents[2] / "docs" / "patched.md"


def patches_of_torch() -> list[str]:
    return [
        row["name"] for row in patches.status() if row["name"].startswith("torch.") and "_dynamo" not in row["name"]
    ]


def test_the_page_has_the_rows_of_the_registry() -> None:
    assert patches.table() in PAGE.read_text()


def test_torch_is_patched_inside_contexts_alone_and_doctor_shows_it() -> None:
    assert patches_of_torch() == []
    with pg.override(clamp="inward"):
        inside = patches_of_torch()
        assert "torch.utils.checkpoint.CheckpointFunction._backward_cls.run_function" in inside
        with pg.diagnose():
            assert {"torch.autograd.Function.apply", "torch.optim.Optimizer.zero_grad", *inside} <= set(
                patches_of_torch()
            )
            findings = doctor.examine()
            assert {row["name"] for row in findings["patched"]} >= set(patches_of_torch())
            assert "torch.utils.swap_tensors, until the last diagnosis has ended" in doctor.text(findings)
        assert patches_of_torch() == inside
    assert patches_of_torch() == []


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


def warned_at(context: AbstractContextManager[object]) -> list[tuple[str, int]]:
    with context, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.ones(1).new_tensor(torch.ones(1))  # torch warns of it in C++
        torch.nn.functional.mse_loss(torch.ones(2), torch.ones(1))  # in Python, at its caller
    return [(warning.filename, warning.lineno) for warning in caught]


def test_a_warning_is_shown_at_the_line_of_the_program() -> None:
    warned.locate_at_the_program()
    try:
        shown = warned_at(pg.diagnose())
    finally:
        patches.SHOW_WARNING.remove()
    assert shown == warned_at(contextlib.nullcontext())
    assert [file for file, _ in shown] == [__file__] * 2
