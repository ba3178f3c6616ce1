"""The sentences of tasks with seeds: who is better is decided by the paired test, and every task can speak."""

import math
from collections import defaultdict

import pytest

from pseudograd.comparison.variants import variants
from pseudograd.ops.bound_rules import COMPARED_RULES
from pseudograd_tasks import DEFAULT_TASKS, TASKS, Outcome, sentences
from pseudograd_tasks.base import OURS, Score, Settings

from ..choices import folded

SEEDS = 12


def measured(value: float, spread: float = 0.0) -> Outcome:
    """Seeds around `value`, half of them above it."""
    seeds = tuple(value + spread * (1 if seed % 2 else -1) for seed in range(SEEDS))
    return Outcome({"share": value}, seeds=seeds)


def world(**changed: Outcome) -> dict[str, Outcome]:
    names = [variant.name for variant in variants(has_leaves=True)]
    return {name: measured(0.5) for name in names} | {name.replace("_", "/"): value for name, value in changed.items()}


SCORE = Score("share", "{} done")


def list_sentences(rows: dict[str, Outcome], score: Score) -> list[str]:
    return list(sentences.score_sentences(rows, score))


def test_equal_runs_are_no_different() -> None:
    lines = list_sentences(world(), SCORE)
    assert lines == [
        "the two eras of torch.clamp end equal: 50.0% done and 50.0%.",
        "inward: 50.0% done, not told apart from the better era of torch.clamp (50.0%).",
        "not told apart from inward here: identity (50.0%), sign (50.0%), leaky (50.0%), elastic (50.0%), inverting (50.0%), "
        "no clamp (50.0%) and project (50.0%).",
        "nothing tried was better than inward.",
    ]


def test_a_larger_mean_that_not_all_seeds_share_is_no_difference() -> None:
    lines = list_sentences(world(identity=measured(0.52, spread=0.3)), SCORE)
    assert "not told apart from inward here: identity (52.0%)," in lines[2]


def test_better_and_worse_are_named_the_best_first() -> None:
    rows = world(
        zero_closed=measured(0.6), inward=measured(0.7), sign=measured(0.8), project=measured(0.9), leaky=measured(0.7)
    )
    lines = list_sentences(rows, SCORE)
    assert lines == [
        "which torch is installed decides: 60.0% done where the gradient at a bound passes, 50.0% where it does not.",
        "inward: 70.0% done, better than the better era of torch.clamp (60.0%).",
        "better than inward here: project (90.0%) and sign (80.0%).",
        "not told apart from inward here: leaky (70.0%).",
    ]


def test_lower_may_be_better() -> None:
    score = Score("share", "error {}", ".2f", better="lower")
    rows = world(zero_open=measured(0.6), inward=measured(0.55), sign=measured(0.4), leaky=measured(0.9))
    lines = list_sentences(rows, score)
    assert lines[0].endswith("error 0.50 where the gradient at a bound passes, 0.60 where it does not.")
    assert lines[1] == "inward: error 0.55, worse than the better era of torch.clamp (0.50)."
    assert lines[2].startswith("better than inward here: sign (0.40), identity (0.50),")
    assert "leaky" not in " ".join(lines)


def test_a_difference_too_small_to_matter_is_none() -> None:
    rows = world(inward=measured(0.501))
    assert "better than the better era" in list_sentences(rows, SCORE)[1]
    assert "not told apart from" in list_sentences(rows, Score("share", "{} done", tie=0.002))[1]


def test_without_ours_only_the_eras_are_spoken_of() -> None:
    rows = world()
    del rows["inward"]
    assert len(list_sentences(rows, SCORE)) == 1


@folded
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("with_ours", [True, False])
def test_every_task_has_sentences_for_any_numbers(name: str, with_ours: bool) -> None:
    task = TASKS[name]
    names = [variant.name for variant in variants(COMPARED_RULES if with_ours else (), has_leaves=task.has_leaves)]
    row = Outcome(dict.fromkeys(task.columns, 0.5), seeds=(0.5,) * SEEDS)
    worlds = {world: dict.fromkeys(names, row) for world in task.worlds(Settings())}
    section = sentences.Section(task, defaultdict(lambda: 0.5), worlds, {})
    lines = section.verdicts
    assert bool(lines) == (task.score is not None)
    assert all(sentence.endswith(".") and "nan" not in sentence for sentence in lines)
    assert with_ours == any("inward" in sentence for sentence in lines) or not lines


def test_default_tasks_are_tasks() -> None:
    assert DEFAULT_TASKS == ("retarget", "canvas", "least_squares", "basin")
    assert [*TASKS][:5] == [*DEFAULT_TASKS, "retarget_srgb"]


def test_better_is_more_than_rounding() -> None:
    same, more = {OURS: 10.0, "zero": 10.04}, {OURS: 10.0, "zero": 10.06, "sign": 9.0}
    assert [sentences.are_alike(1.0, value) for value in (1.5, 1.51, math.nan)] == [True, False, False]
    assert sentences.are_alike(math.nan, math.nan)
    assert sentences.better_sentence(same) == f"nothing tried was better than {OURS}."
    assert sentences.better_sentence(more) == f"better than {OURS} here: zero (10.1 dB)."
