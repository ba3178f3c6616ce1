"""Packages as they are published, unedited, and trained: torchao 0.18.0 and kornia 0.9.0, which the `dev` environment has.

The losses of torchao depend on the processor, as those of every training do. So each era is held, to the bit, against a training in which
a plain autograd.Function, written here, stands where torchao calls torch.clamp.
docs/real_packages.json holds what torch 2.13 and 2.15 gave on one machine; the README shows it.
"""

import contextlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudograd import pin_edge
from pseudograd.torch_table.eras import CLOSED_ERA, ERAS, OPEN_ERA, installed_era

ROOT = Path(__file__).resolve().parents[2]
FIGURES = json.loads((ROOT / "docs" / "real_packages.json").read_text(encoding="utf-8"))
OF_ERA = {CLOSED_ERA: FIGURES["2.13.0"]["plain"], OPEN_ERA: FIGURES["2.15.0"]["plain"]}
STEPS = 20  # the eras part before the fifth; the example does 400, and becomes NaN on the way

# `script` puts the folder of the scripts on the path.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("script")]
needs_torchao = pytest.mark.skipif(
    not hasattr(torch.nn.functional, "ScalingType"),
    reason=f"torchao 0.18.0 imports torch.nn.functional.ScalingType, which torch {torch.__version__} lacks",
)
needs_kornia = pytest.mark.skipif(sys.version_info < (3, 11), reason="kornia 0.9.0 needs Python 3.11")


def measured() -> Any:
    return importlib.reload(importlib.import_module("measure_real_packages"))  # it puts the examples on the path


class Masked(torch.autograd.Function):
    """torch.clamp between two numbers, with the gradient of one era written out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, min: float, max: float, era: str) -> Tensor:
        inside = (x >= min) & (x <= max) if era == CLOSED_ERA else (x > min) & (x < max)
        ctx.save_for_backward(inside)
        return x.clamp(min, max)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (inside,) = ctx.saved_tensors
        return torch.where(inside, grad, 0.0), None, None, None


def losses() -> str:
    """The losses of the example's first steps, exactly; as text, so that NaN equals NaN."""
    measured()
    from torchao_int2 import train

    return train(0, STEPS).hex()


def losses_of_the_era(era: str) -> str:
    """Replace torchao's clamps between two numbers, without pseudograd."""
    plain = torch.clamp

    def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
        if isinstance(min, (int, float)) and isinstance(max, (int, float)):
            return Masked.apply(x, min, max, era)
        return plain(x, min, max)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "clamp", clamp)
        return losses()


@pytest.fixture(autouse=True)
def _path_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.mark.program
@needs_torchao
def test_torchao_trains_as_in_either_era() -> None:
    """Pinned to the era that this torch has, and to the other; unpinned too, which proves what we compare with."""
    expected = {era: losses_of_the_era(era) for era in ERAS}
    assert expected[CLOSED_ERA] != expected[OPEN_ERA]
    assert losses() == expected[installed_era()]
    for era in ERAS:
        with pin_edge(era) as context:
            assert losses() == expected[era], era
        sites = [site.where for site in context.report().rewritten]
        assert len(sites) == (era != installed_era())
        assert all("torchao/quantization/quant_primitives.py:" in site for site in sites)


@needs_kornia
@pytest.mark.parametrize("era", [None, *ERAS])
def test_kornia_has_the_gradient_of_the_era(era: str | None) -> None:
    with contextlib.nullcontext() if era is None else pin_edge(era):
        assert measured().zero_shares() == OF_ERA[era or installed_era()]["kornia zero shares"]


def test_a_scorer_that_starts_with_zeros_trains_under_the_pin_as_before_torch_2_14() -> None:
    """The README shows the figures of the example. Here it runs a fifth of its steps."""
    module = measured()
    for version in FIGURES.values():
        assert [version[era] for era in ERAS] == [OF_ERA[era] for era in ERAS]
    assert [OF_ERA[era]["pairs in order"] for era in (CLOSED_ERA, OPEN_ERA)] == ["1.000", "0.000"]
    module.pairs_in_order  # noqa: B018  it puts the folder of the examples on the path
    from margin_ranking import ordered

    with pin_edge(CLOSED_ERA):
        assert ordered(40) > 0.95
    with pin_edge(OPEN_ERA):
        assert ordered(40) == 0.0
