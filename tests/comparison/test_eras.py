"""Eras are read as many as there are: with a third era, compare, tune, tasks and the report speak of all three."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.comparison.variants import eras, variants
from pseudograd.torch_table.eras import ERAS, OPEN_ERA, Era
from pseudograd_tasks import TASKS, Outcome, sentences
from pseudograd_tasks.report.figures import display_name, strip
from pseudograd_tasks.report.results import Results
from pseudograd_tasks.report.sources import run_tasks
from pseudograd_tasks.report.write import write
from pseudograd_tasks.sentences import Section

THREE = ("zero/closed", "zero/open", "zero/half")
NEXT = "torch>=2.16"
Clamp = Callable[..., Tensor]


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ERAS, NEXT, Era(NEXT, (2, 16), "half", 0.5, ERAS[OPEN_ERA].of_tensors))


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


@pytest.mark.usefixtures("third")
def test_tune_keeps_every_era_to_the_end() -> None:
    tuning = pg.tune(noisy_slope_at_bound, budget=60, rules=["inward", "leaky", "sign"])
    assert tuning.final.eras == THREE
    assert tuning.spent <= 60
    assert not tuning.final.too_few_seeds


def test_an_era_that_differs_with_tensor_bounds_alone_has_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handed numbers it is the older one; an unedited program may have tensors."""
    monkeypatch.setitem(ERAS, NEXT, Era(NEXT, (2, 16), "closed", 0.5, ERAS[OPEN_ERA].of_tensors))
    assert list(eras()) == [*THREE[:2], NEXT]
    assert [row.name for row in variants([], has_leaves=False)] == [*THREE[:2], "torch.clamp", "no clamp"]
    bounds = torch.tensor(-1.0), torch.tensor(1.0)
    rows = pg.compare(lambda: slope_at_bound(torch.clamp, *bounds), rules=[], replace="clamp", seeds=1)
    assert [rows.values["the number"][era] for era in eras()] == [(1.0,), (0.5,), (0.5,)]


@pytest.mark.program
@pytest.mark.usefixtures("third")
def test_a_task_and_its_report_have_every_era(tmp_path: Path) -> None:
    results = run_tasks(["curve"], ["inward"])
    for rows in results.sections["curve"].worlds.values():
        passed = [rows[era].numbers["at_low"] / rows["zero/closed"].numbers["at_low"] for era in THREE]
        assert passed == [1.0, 0.0, 0.5]
    page = write(results, tmp_path / "report")
    text = page.read_text(encoding="utf-8")
    assert all(f">{era}</" in text for era in THREE)


def _rows(*decibels: float, inward: float = 30.0) -> dict[str, Outcome]:
    numbers = {**dict(zip(THREE, decibels, strict=True)), "inward": inward}
    picture = {"picture": torch.zeros(3, 2, 2)}
    return {name: Outcome({"psnr": value}, picture, seeds=(value,) * 12) for name, value in numbers.items()}


@pytest.mark.usefixtures("third")
def test_sentences_of_tasks_speak_of_all_eras() -> None:
    def first_lines(*decibels: float) -> list[str]:
        rows = _rows(*decibels)
        texts = sentences.picture_sentences(rows), sentences.score_sentences(rows, sentences.PICTURES)
        return [line for lines in texts for line in list(lines)[:2]]

    picture, above, score, _ = first_lines(20.0, 8.0, 12.0)
    decides = "8.0{} where it does not{} 12.0{} where half of it does."
    assert picture.endswith("20.0 dB where the gradient at a bound passes, " + decides.format(" dB", " and", " dB"))
    assert above == "inward ends at 30.0 dB, 10.0 dB above the best of the 3 eras of torch.clamp (20.0 dB)."
    assert score.endswith("20.0 dB where the gradient at a bound passes, " + decides.format("", ",", ""))
    picture, _, score, _ = first_lines(8.0, 8.0, 8.0)
    assert picture == "all 3 eras of torch.clamp end alike, at 8.0 dB."
    assert score == "the 3 eras of torch.clamp end equal: 8.0 dB, 8.0 and 8.0."
    picture, _, _, above = first_lines(8.0, 8.0, 9.0)
    assert "decides the picture" in picture
    assert "the best era of torch.clamp (9.0)" in above


@pytest.mark.usefixtures("third")
def test_the_strip_has_a_picture_of_every_era() -> None:
    def strip_of(*decibels: float) -> tuple[list[str], str]:
        worlds = {"plain": _rows(*decibels, inward=40.0)}
        opening = strip(
            Results((), era="", sections={"retarget": Section(TASKS["retarget"], {}, worlds, {"plain": {}})})
        )
        assert opening is not None
        return [tile.title for tile in opening.tiles], opening.sentence

    titles, sentence = strip_of(20.0, 8.0, 12.0)
    assert titles == [*map(display_name, THREE), "inward"]
    assert display_name("zero/half") == f"torch.clamp, {NEXT}"
    assert (
        "With torch.clamp the photo came back in part where the gradient at a bound passes (20 dB), did not come back where it does not "
        "(8 dB) and did not come back where half of it does (12 dB). With inward the photo came back (40 dB)."
    ) in sentence
    assert strip_of(8.0, 8.2, 8.1)[0] == ["torch.clamp, on any torch", "inward"]
