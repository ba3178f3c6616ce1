"""Eras are read as many as there are: with a third one, compare, tune, tasks and the report speak of all three."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.comparison.comparison import from_json
from pseudograd.comparison.variants import eras, variants
from pseudograd.torch_table.eras import ERAS, OPEN_ERA, Era
from pseudograd_tasks import TASKS, Outcome, sentences
from pseudograd_tasks.base import Section
from pseudograd_tasks.report.figures import display_name, strip
from pseudograd_tasks.report.results import Results
from pseudograd_tasks.report.sources import load_results, run_tasks
from pseudograd_tasks.report.write import write

THREE = ("zero/closed", "zero/open", "zero/half")
Clamp = Callable[..., Tensor]


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ERAS, "torch>=2.16", Era("torch>=2.16", (2, 16), "half", 0.5, ERAS[OPEN_ERA].of_tensors))


def at_the_bound(clamp: Clamp, seed: int) -> float:
    """What the edge passes, and noise of the seed which is the same for all."""
    x = torch.tensor([1.0], requires_grad=True)
    clamp(x, -1, 1).sum().backward()
    assert x.grad is not None
    return float(x.grad) + torch.randn(()).item()


@pytest.mark.usefixtures("third")
def test_compare_runs_every_era_and_judges_each_pair_of_them() -> None:
    found = pg.compare(at_the_bound, rules=["inward"], seeds=12, better="higher")
    assert found.variants == (*THREE, "inward", "torch.clamp", "no clamp")
    first = [found.values["the number"][era][0] for era in THREE]
    assert [round(first[0] - other, 6) for other in first] == [0.0, 1.0, 0.5]
    assert list(found.edges()) == [(THREE[0], THREE[1]), (THREE[0], THREE[2]), (THREE[1], THREE[2])]
    assert [one.verdict for one in found.edges().values()] == ["better", "better", "worse"]
    assert found.edge() == found.edges()[THREE[0], THREE[2]]
    told = [line for line in str(found).splitlines() if line.startswith("Edge: ")]
    for line, (better, worse) in zip(told, ((0, 1), (0, 2), (2, 1)), strict=True):
        names = [
            f"({name}, {THREE[place]})" for place, name in ((better, list(ERAS)[better]), (worse, list(ERAS)[worse]))
        ]
        assert line.index(names[0]) < line.index(" is better than ") < line.index(names[1])
    assert str(from_json(found.to_json())) == str(found)


@pytest.mark.usefixtures("third")
def test_an_unedited_program_is_run_under_every_era() -> None:
    found = pg.compare(lambda seed: at_the_bound(torch.clamp, seed), rules=["inward"], replace="clamp", seeds=1)
    assert found.variants == (*THREE, "inward", "torch.clamp")
    first = [found.values["the number"][era][0] for era in THREE]
    assert [round(first[0] - other, 6) for other in first] == [0.0, 1.0, 0.5]


@pytest.mark.usefixtures("third")
def test_tune_keeps_every_era_to_the_end() -> None:
    found = pg.tune(at_the_bound, budget=60, rules=["inward", "leaky", "sign"])
    assert found.final.eras == THREE
    assert found.spent <= 60
    assert not found.final.too_few_seeds


def test_an_era_that_differs_with_tensor_bounds_alone_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handed numbers it is the older one; an unedited program may have tensors."""
    monkeypatch.setitem(ERAS, "torch>=2.16", Era("torch>=2.16", (2, 16), "closed", 0.5, ERAS[OPEN_ERA].of_tensors))
    assert list(eras()) == [*THREE[:2], "torch>=2.16"]
    assert [one.name for one in variants([], has_leaves=False)] == [*THREE[:2], "torch.clamp", "no clamp"]

    def run() -> float:
        x = torch.tensor([1.0], requires_grad=True)
        torch.clamp(x, torch.tensor(-1.0), torch.tensor(1.0)).sum().backward()
        assert x.grad is not None
        return float(x.grad)

    rows = pg.compare(run, rules=[], replace="clamp", seeds=1).values["the number"]
    assert [rows[era] for era in eras()] == [(1.0,), (0.5,), (0.5,)]


@pytest.mark.usefixtures("third")
def test_a_task_and_its_report_have_every_era(tmp_path: Path) -> None:
    results = run_tasks(["curve"], ["inward"])
    for rows in results.sections["curve"].worlds.values():
        passed = [rows[era].numbers["at_low"] / rows["zero/closed"].numbers["at_low"] for era in THREE]
        assert passed == [1.0, 0.0, 0.5]
    page = write(results, tmp_path / "report")
    text = page.read_text(encoding="utf-8")
    for era in THREE:
        assert f">{era}</" in text
    assert display_name("zero/half") == "torch.clamp, torch>=2.16"
    assert write(load_results(page.parent), tmp_path / "again").read_bytes() == page.read_bytes()


def _rows(numbers: dict[str, float], **more: float) -> dict[str, Outcome]:
    picture = {"picture": torch.zeros(3, 2, 2)}
    return {name: Outcome({"psnr": value}, picture, seeds=(value,) * 12) for name, value in {**numbers, **more}.items()}


@pytest.mark.usefixtures("third")
def test_sentences_of_tasks_speak_of_all_eras() -> None:
    apart = _rows({"zero/closed": 20.0, "zero/open": 8.0, "zero/half": 12.0, "inward": 30.0})
    told = sentences.picture_sentences("here", apart)
    assert told[0] == (
        "here: which torch is installed decides the picture, 20.0 dB where the gradient at a bound passes, "
        "8.0 dB where it does not and 12.0 dB where half of it does."
    )
    assert told[1] == "here: inward ends at 30.0 dB, 10.0 dB above the best of the 3 eras of torch.clamp (20.0 dB)."
    alike = _rows(dict.fromkeys(THREE, 8.0), inward=30.0)
    assert sentences.picture_sentences("here", alike)[0] == "here: all 3 eras of torch.clamp end alike, at 8.0 dB."
    one_apart = _rows({"zero/closed": 8.0, "zero/open": 8.0, "zero/half": 9.0, "inward": 30.0})
    assert "decides the picture" in sentences.picture_sentences("here", one_apart)[0]
    told = sentences.score_sentences("here", alike, sentences.PICTURES)
    assert told[0] == "here: the 3 eras of torch.clamp end equal: 8.0 dB, 8.0 and 8.0."
    told = sentences.score_sentences("here", one_apart, sentences.PICTURES)
    assert told[0] == (
        "here: which torch is installed decides: 8.0 dB where the gradient at a bound passes, 8.0 where it does not, "
        "9.0 where half of it does."
    )
    assert "the best era of torch.clamp (9.0)" in told[1]


@pytest.mark.usefixtures("third")
def test_the_strip_has_a_picture_of_every_era() -> None:
    opening = strip(_strip_of(20.0, 8.0, 12.0))
    assert opening is not None
    assert [tile.title for tile in opening.tiles] == [*map(display_name, THREE), "inward"]
    assert (
        "With torch.clamp it came back in part where the gradient at a bound passes (20.0 dB), did not come back where it does not "
        "(8.0 dB) and did not come back where half of it does (12.0 dB); with inward it came back (40.0 dB)."
    ) in opening.sentence
    opening = strip(_strip_of(8.0, 8.2, 8.1))
    assert opening is not None
    assert [tile.title for tile in opening.tiles] == ["torch.clamp, on any torch", "inward"]


def _strip_of(*decibels: float) -> Results:
    rows = _rows(dict(zip(THREE, decibels, strict=True)), inward=40.0)
    return Results((), sections={"retarget": Section(TASKS["retarget"], {}, {"plain": rows}, {"plain": {}})})
