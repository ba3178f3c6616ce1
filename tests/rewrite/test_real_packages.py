"""Packages as they are published, unedited: torchao 0.18.0 and kornia 0.9.0. skipped where they are missing.

    pip install torchao==0.18.0 kornia==0.9.0; pytest tests/rewrite/test_real_packages.py

docs/real_packages.json holds what torch 2.13 and 2.15 gave, so each torch is held against the other's own figures.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from pseudograd import pin_edge
from pseudograd.torch_facts import CLOSED_ERA, ERAS, OPEN_ERA, installed_era

ROOT = Path(__file__).resolve().parents[2]
FIGURES = json.loads((ROOT / "docs" / "real_packages.json").read_text(encoding="utf-8"))
OF_ERA = {CLOSED_ERA: FIGURES["2.13.0"]["plain"], OPEN_ERA: FIGURES["2.15.0"]["plain"]}

pytestmark = pytest.mark.filterwarnings("ignore")


def measured() -> object:
    path = ROOT / "scripts" / "measure_real_packages.py"
    spec = importlib.util.spec_from_file_location("measure_real_packages", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_figures_say_what_the_readme_says() -> None:
    for version in FIGURES.values():
        for era in ERAS:
            assert version[era] == OF_ERA[era]
    assert OF_ERA[OPEN_ERA]["torchao int2 losses"] == ["nan"] * 3
    assert set(OF_ERA[OPEN_ERA]["kornia zero shares"].values()) == {0.5}
    assert set(OF_ERA[CLOSED_ERA]["kornia zero shares"].values()) == {0.0}


@pytest.mark.parametrize("era", ERAS)
def test_torchao_trains_as_in_the_era(era: str) -> None:
    pytest.importorskip("torchao", minversion="0.18.0")
    with pin_edge(era) as context:
        assert measured().int2_losses() == OF_ERA[era]["torchao int2 losses"]  # type: ignore[attr-defined]
    if era != installed_era():
        (site,) = {site.where for site in context.report().rewritten}
        assert site.startswith("torchao/quantization/quant_primitives.py:")


@pytest.mark.parametrize("era", ERAS)
def test_kornia_has_the_gradient_of_the_era(era: str) -> None:
    pytest.importorskip("kornia", minversion="0.9.0")
    with pin_edge(era):
        assert measured().zero_shares() == OF_ERA[era]["kornia zero shares"]  # type: ignore[attr-defined]


def test_unpinned_they_do_what_the_installed_torch_does() -> None:
    pytest.importorskip("kornia", minversion="0.9.0")
    assert measured().zero_shares() == OF_ERA[installed_era()]["kornia zero shares"]  # type: ignore[attr-defined]


def test_the_example_through_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchao", minversion="0.18.0")
    from pseudograd.cli import main

    monkeypatch.setattr(sys, "path", list(sys.path))
    threads = torch.get_num_threads()
    try:
        assert main(["run", "--pin", CLOSED_ERA, str(ROOT / "examples" / "torchao_int2.py")]) == 0
    finally:
        torch.set_num_threads(threads)
    losses = OF_ERA[CLOSED_ERA]["torchao int2 losses"]
    assert capsys.readouterr().out == "".join(f"seed {seed}: loss {loss}\n" for seed, loss in enumerate(losses))
