"""compare(run): the numbers are those of the runs, the verdicts those of the test, and a wrong run gets our error."""

from __future__ import annotations

import functools
import importlib
import json
import math
import os
import random
import re
import runpy
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import pseudograd as pg
from pseudograd.comparison.comparison import Comparison, from_json
from pseudograd.comparison.statistics import difference
from pseudograd.comparison.store import fingerprint
from pseudograd.torch_table.eras import CLOSED_ERA, installed_era

ERAS = ("zero/closed", "zero/open")
ALWAYS = (*ERAS, "torch.clamp", "no clamp")
INSTALLED_RULE = ERAS[0] if installed_era() == CLOSED_ERA else ERAS[1]
Clamp = Callable[..., Tensor]


def slope_at(clamp: Clamp, x: float) -> float:
    """dy/dx of a clamp between -1 and 1, where an increase of y increases the loss."""
    point = torch.tensor([x], requires_grad=True)
    clamp(point, -1, 1).sum().backward()
    return float(point.grad[0])  # type: ignore[index]


def slopes(clamp: Clamp) -> dict[str, float]:
    return {"outside": slope_at(clamp, 2.0), "at the bound": slope_at(clamp, 1.0), "below": slope_at(clamp, -2.0)}


def noisy(clamp: Clamp, seed: int) -> float:
    """What a rule passes outside, and noise of the seed which is the same for every rule."""
    return slope_at(clamp, 2.0) + torch.randn(()).item() / 4 + seed


# --- variants ---------------------------------------------------------------------------------------------------------


def test_each_variant_is_handed_the_clamp_of_its_name() -> None:
    rules = ["inward", "leaky(0.2)", "identity", "zero/half", pg.rules.leaky(0.3)]
    found = pg.compare(slopes, rules=rules, better="lower")
    rows = {
        name: tuple(found.values[number][name][0] for number in ("outside", "at the bound", "below"))
        for name in found.variants
    }
    at_bound = {ERAS[0]: 1.0, ERAS[1]: 0.0}
    assert rows == {
        "zero/closed": (0, 1, 0),
        "zero/open": (0, 0, 0),
        "inward": (1, 1, 0),
        "leaky(0.2)": (pytest.approx(0.2), 1, pytest.approx(0.2)),
        "identity": (1, 1, 1),
        "zero/half": (0, 0.5, 0),
        "leaky(slope=0.3)": (pytest.approx(0.3), 1, pytest.approx(0.3)),
        "torch.clamp": (0, at_bound[INSTALLED_RULE], 0),
        "no clamp": (1, 1, 1),
    }


def test_edges_multiply_the_rules_that_have_one() -> None:
    found = pg.compare(slopes, rules=["inward", "identity", "leaky/half"], edges=["closed", "open"])
    assert found.variants == (*ERAS, "inward/closed", "inward/open", "identity", "leaky/half", *ALWAYS[2:])
    at = found.values["at the bound"]
    assert (at["inward/closed"][0], at["inward/open"][0], at["leaky/half"][0]) == (1, 0, 0.5)


def test_a_clamp_is_called_as_torch_clamp_is() -> None:
    x = torch.linspace(-2, 2, 9)
    bound = torch.full((3, 1), 0.5)

    def run(clamp: Clamp) -> float:
        if getattr(clamp, "name", "") == "no clamp":
            assert torch.equal(clamp(x, -1, 1), x)
            return 0.0
        for given, how in (
            ((x, -1, 1), {}),
            ((x,), {"min": 0}),
            ((x,), {"max": 0.5}),
            ((), {"input": x, "min": -1, "max": 1}),
            ((x, None, 1), {}),
            ((x, bound), {"max": 1.5 * bound}),
        ):
            assert torch.equal(clamp(*given, **how), torch.clamp(*given, **how))
        with pytest.raises(RuntimeError, match="At least one of 'min' or 'max' must not be None"):
            clamp(x)
        return 0.0

    assert pg.compare(run, rules=["inward", "sign"], seeds=1).failures == {}


def test_under_ascent_the_clamp_takes_maximize() -> None:
    def run(clamp: Clamp) -> float:
        point = torch.tensor([2.0], requires_grad=True)
        (-clamp(point, -1, 1, maximize=True)).sum().backward()
        return float(point.grad[0])  # type: ignore[index]

    found = pg.compare(run, rules=["inward", "sign", "leaky"], seeds=1).values["the number"]
    assert found["inward"][0] == -1  # ascent along it moves x down, towards the range
    assert found["sign"][0] == -1
    assert found["leaky"][0] == pytest.approx(-0.1)


def test_project_is_asked_of_a_run_that_takes_it() -> None:
    def run(clamp: Clamp, project: bool = False) -> float:
        x = torch.tensor([3.0], requires_grad=True)
        clamp(x, -1, 1).sum().backward()
        return 7.0 if project else float(x.grad[0])  # type: ignore[index]

    found = pg.compare(run, rules=[], seeds=1)
    assert found.variants == (*ALWAYS, "project")
    assert found.values["the number"]["project"] == (7.0,)
    assert "project" not in pg.compare(slopes, rules=[], seeds=1).variants


# --- seeds ------------------------------------------------------------------------------------------------------------


def test_every_run_starts_from_its_seed_and_the_caller_goes_on_as_before() -> None:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    expected = (torch.rand(1).item(), random.random(), np.random.rand())
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)

    def run(clamp: Clamp, seed: int) -> dict[str, float]:
        clamp(torch.zeros(1), 0, 1)
        return {"torch": torch.rand(1).item(), "random": random.random(), "numpy": np.random.rand(), "seed": seed}

    found = pg.compare(run, rules=["inward"], seeds=[7, 3])
    assert (torch.rand(1).item(), random.random(), np.random.rand()) == expected
    torch.manual_seed(3)
    assert {rows[1] for rows in found.values["torch"].values()} == {torch.rand(1).item()}
    assert {rows[1] for rows in found.values["random"].values()} == {random.Random(3).random()}
    assert {rows[1] for rows in found.values["numpy"].values()} == {np.random.RandomState(3).rand()}
    assert set(found.values["seed"].values()) == {(7.0, 3.0)}


def test_gradients_are_on_whatever_the_caller_has() -> None:
    with torch.no_grad():
        expected = pg.compare(slopes, rules=["inward"], seeds=1).values
    with torch.inference_mode():
        assert pg.compare(slopes, rules=["inward"], seeds=1).values == expected
    assert expected["outside"]["inward"] == (1.0,)


def test_a_run_that_repeats_itself_is_run_twice_and_not_tested() -> None:
    calls = []

    def run(clamp: Clamp) -> float:
        calls.append(1)
        return slope_at(clamp, 2.0)

    found = pg.compare(run, rules=["inward"], seeds=10)
    assert len(calls) == 2 * 5
    assert found.repeats
    assert found.verdict("inward").verdict == "no difference"
    assert re.search(r"^inward       1 +worse, by 1$", str(found), re.MULTILINE)
    assert "The seed changes nothing: no run is given it, none draws a random number" in str(found)
    assert found.leaders() == ("zero/closed", "zero/open", "torch.clamp")


def test_a_run_that_draws_or_is_given_a_seed_has_every_seed_run() -> None:
    """The first two seeds of these happen to agree, or all of them do: nothing says that the seed changes nothing."""
    with_seed: list[int] = []
    readers = (torch.get_rng_state, torch.initial_seed, random.getstate)

    def solved(clamp: Clamp, seed: int) -> float:
        with_seed.append(seed)
        slope_at(clamp, 0.0)
        return float(seed < 8)

    def draws(clamp: Clamp, of: Callable[[], Any]) -> float:
        slope_at(clamp, 0.0)
        of()
        return 1.0

    def forked() -> None:
        with torch.random.fork_rng():
            torch.rand(1)

    assert len(pg.compare(solved, rules=[], seeds=10).seeds) == 10
    assert len(with_seed) == 40
    for of in (
        lambda: torch.rand(1),
        random.random,
        np.random.rand,
        forked,
        lambda: torch.initial_seed(),
        lambda: random.getstate(),
    ):
        found = pg.compare(functools.partial(draws, of=of), rules=[], seeds=7)
        assert (len(found.seeds), found.repeats) == (7, False)
        assert "The seed changes nothing" not in str(found)
    assert (torch.get_rng_state, torch.initial_seed, random.getstate) == readers  # none is left watched
    own = torch.Generator()  # which no seed reaches
    found = pg.compare(functools.partial(draws, of=lambda: torch.rand(1, generator=own)), rules=[], seeds=7)
    assert (len(found.seeds), found.repeats) == (2, True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_run_that_forks_has_every_seed_run() -> None:
    def run(clamp: Clamp) -> float:
        slope_at(clamp, 0.0)
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        return 1.0

    assert len(pg.compare(run, rules=[], seeds=6).seeds) == 6


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_verdicts_are_those_of_the_paired_test_with_holm() -> None:
    found = pg.compare(noisy, rules=["inward", "leaky", "identity"], seeds=9, better="higher")
    rows = found.values["the number"]
    torch.manual_seed(4)
    assert rows["inward"][4] == 1 + torch.randn(()).item() / 4 + 4
    alone = difference(rows["inward"], rows["torch.clamp"])
    one = found.verdict("inward")
    # inward, identity and no clamp give the same numbers here, so that they are one comparison; leaky is the second one, and the third is
    # which of the two is best. The first two share seven tenths of the level.
    assert (alone.p, one.comparisons, one.p) == (2 / 512, 3, pytest.approx(2 / 512 / (0.7 / 2)))
    assert found.verdict("identity") == found.verdict("no clamp") == one
    assert one.verdict == "better"
    assert one.mean == pytest.approx(1)
    assert found.leaders() == ("inward", "identity", "no clamp")
    assert found.verdict("zero/closed").seeds == (9, 0)
    assert pg.compare(noisy, rules=["inward"], seeds=9, better="lower").verdict("inward").verdict == "worse"


def test_no_difference_is_said_where_there_is_none() -> None:
    def run(clamp: Clamp, seed: int) -> float:
        made = torch.Generator().manual_seed(seed + 1000 * len(clamp.name))  # type: ignore[attr-defined]
        clamp(torch.zeros(1), 0, 1)
        return torch.randn((), generator=made).item()

    found = pg.compare(run, rules=["inward", "leaky(0.25)"], seeds=10)
    assert {found.verdict(name).verdict for name in found.variants if name != "torch.clamp"} == {"no difference"}
    assert len(found.leaders()) == len(found.variants) == 6
    assert re.search(
        "^Not told apart with 10 seeds: none of the 6 from .*, which has the best median.$", str(found), re.M
    )
    assert "No difference" not in str(found)
    one = found.verdict("inward")
    assert re.search(
        rf"^inward .*  {re.escape(one.size)} +not told apart .p = .*; {one.detectable:.3g} would have been",
        str(found),
        re.M,
    )
    assert found.edge_verdict() == "no difference"


def test_too_few_seeds_are_said() -> None:
    text = str(pg.compare(noisy, rules=["inward", "leaky"], seeds=4))
    assert "too few seeds to tell: 4 that differ cannot give p below" in text
    assert text.splitlines()[1] == "Too few seeds: 4. 2 comparisons can tell nothing from fewer than 7 seeds."
    assert " has the best median, which tells nothing with so few seeds." in text
    assert not re.search("Not told apart with|No difference|Best:", text)
    assert "Too few" not in str(pg.compare(noisy, rules=["inward", "leaky"], seeds=7))


def test_the_edge_is_judged_by_itself() -> None:
    def run(clamp: Clamp) -> float:
        return slope_at(clamp, 1.0) + torch.rand(()).item()

    for better, winner in (("higher", "the old edge"), ("lower", "the new edge")):
        found = pg.compare(run, rules=[], seeds=6, better=better)  # type: ignore[arg-type]
        assert found.edge_verdict() == winner
        assert (found.edge().p, found.edge().comparisons) == (2 / 64, 1)
        assert f"Edge: {winner} (torch{'<=2.13' if better == 'higher' else '>=2.14'}, zero/" in str(found)


def test_all_numbers_and_pairs_are_one_family() -> None:
    def drawn(*names: str) -> dict[str, tuple[float, ...]]:
        """torch.clamp with one era, to the bit, and others with numbers of their own."""
        rows = {name: tuple(made.gauss(0, 1) for _ in range(10)) for name in names}
        return {ERAS[0]: rows[names[0]], **rows}

    made = random.Random(4)
    values = {number: drawn("torch.clamp", ERAS[1], "inward", "no clamp") for number in ("loss", "score")}
    found = Comparison("mine", dict.fromkeys(values, "lower"), tuple(range(10)), values, torch="2.13")  # type: ignore[arg-type]
    # Of each number: three differ from torch.clamp, one of which is the edge, and three pairs of these.
    assert (len(found.family.planned), found.family.pairs, found.family.corrected_for) == (6, 6, (6, 6))
    assert {found.verdict(name, number).comparisons for name in ("inward", "no clamp") for number in values} == {12}
    assert found.edge("score") == found.verdict(ERAS[1], "score").turned()
    share = 0.7 / 6  # of the level, for each that was planned
    for number, rows in values.items():
        for name in (ERAS[1], "inward", "no clamp"):
            alone = difference(rows[name], rows["torch.clamp"], better="lower").p
            assert found.verdict(name, number).p >= min(1, alone / share * (1 - 5 * share))
    assert (
        "p is corrected by Holm for 12 comparisons of all 2 numbers: 6 with torch.clamp or between its eras, "
        "6 between the others, to tell the best; up to 0.05 is a difference."
    ) in str(found)


def test_the_best_is_told_of_pairs_and_its_equals_stay_beside_it() -> None:
    """Every seed agrees on one order: a < b < torch.clamp < c. Which pairs are told is a matter of how many seeds there are."""

    def comparison(seeds: int) -> Comparison:
        level = {"a": 0.0, "a again": 0.0, "b": 2.0, "torch.clamp": 4.0, "c": 6.0}
        rows = {name: tuple(value + 0.1 * seed for seed in range(seeds)) for name, value in level.items()}
        return Comparison("mine", {"loss": "lower"}, tuple(range(seeds)), {"loss": rows})

    # Three planned, of a share of 0.7; three pairs, of 0.3. With eight seeds a, b and c are told from torch.clamp; all is left to pairs.
    assert comparison(7).too_few_seeds
    assert comparison(7).leaders() == ("a", "a again", "b", "torch.clamp", "c")
    found = comparison(8)
    assert [found.verdict(name).verdict for name in found.others] == ["better", "better", "better", "worse"]
    assert found.leaders() == ("a", "a again")
    assert found.verdict("a").shift == -4
    assert str(found).count("\nBest: a tie of a and a again.") == 1


def test_the_best_median_is_not_the_best_where_another_is_told_to_be_better() -> None:
    """Three seeds in the middle are a little lower, all others higher: the median of the one is lower, and the test finds it worse."""
    steady = (0.5,) * 4 + (1.0,) * 3 + (1.5,) * 5
    risky = (0.6, 0.61, 0.62, 0.63, 0.99, 0.98, 0.97, 2.5, 2.6, 2.7, 2.8, 2.9)
    rows = {"steady": steady, "risky": risky, "torch.clamp": tuple(one + 20 for one in steady)}
    found = Comparison("mine", {"loss": "lower"}, tuple(range(12)), {"loss": rows})
    assert found.median("risky") < found.median("steady")
    assert found.family.difference("loss", "steady", "risky").verdict == "better"
    assert found.leaders() == ("steady",)


def test_a_rule_that_cannot_be_told_from_the_best_is_not_said_to_be_worse() -> None:
    made = random.Random(1)
    far = {"inward": 0.0, "leaky": 0.05, "torch.clamp": 9.0}
    rows = {name: tuple(value + made.gauss(0, 1) for _ in range(10)) for name, value in far.items()}
    found = Comparison("mine", {"loss": "lower"}, tuple(range(10)), {"loss": rows})
    assert set(found.leaders()) == {"inward", "leaky"}


def test_several_numbers_have_directions_of_their_own() -> None:
    def run(clamp: Clamp, seed: int) -> dict[str, float]:
        return {"loss": -noisy(clamp, seed), "score": noisy(clamp, seed)}

    found = pg.compare(run, rules=["inward"], seeds=8, better={"loss": "lower", "score": "higher"})
    assert found.verdict("inward").verdict == found.verdict("inward", "score").verdict == "better"
    both = pg.compare(run, rules=["inward"], seeds=8)
    assert (both.verdict("inward").verdict, both.verdict("inward", "score").verdict) == ("better", "worse")


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_rule_under_which_the_run_fails_is_told_and_the_others_go_on() -> None:
    def run(clamp: Clamp, seed: int) -> float:
        if clamp.name == "sign":  # type: ignore[attr-defined]
            raise ArithmeticError("it\nblew up")
        return math.nan if clamp.name == "leaky" else noisy(clamp, seed)  # type: ignore[attr-defined]

    found = pg.compare(run, rules=["inward", "sign", "leaky"], seeds=8)
    assert found.failures == {("sign", seed): "ArithmeticError: it blew up" for seed in range(8)}
    assert found.verdict("sign").verdict == found.verdict("leaky").verdict == "worse"
    text = str(found)
    assert "\nsign         not finite" in text
    assert "\nFailed: sign, seed 3: ArithmeticError: it blew up" in text
    assert math.isnan(found.median("sign"))
    assert found.ranked()[-1] in ("sign", "leaky")


def _raising(clamp: Clamp) -> float:
    raise KeyError("weights")


def _with_names_that_change(clamp: Clamp, seed: int) -> dict[str, float]:
    slope_at(clamp, 0.0)
    return {"loss": 1.0} if seed == 0 else {"loss": 1.0, "extra": 2.0}


def _returning(value: Any) -> Callable[[Clamp], Any]:
    def run(clamp: Clamp) -> Any:
        slope_at(clamp, 0.0)
        return value

    return run


WRONG: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
    "all fail": (
        ValueError,
        "compare: run must end without an error in at least one variant, got \"KeyError: 'weights'\".",
        lambda: pg.compare(_raising),
    ),
    "nothing": (
        TypeError,
        "compare: run must return a number, or numbers by name, with zero/closed and seed 0, got None. "
        "Return what the training ends with, such as its loss.",
        lambda: pg.compare(_returning(None)),
    ),
    "with a gradient": (
        TypeError,
        "compare: run must return numbers without a gradient with zero/closed and seed 0, "
        "got a Tensor of torch.float32 and shape (). Return loss.item(), so that no graph is kept.",
        lambda: pg.compare(_returning(torch.zeros((), requires_grad=True))),
    ),
    "several elements": (
        TypeError,
        "compare: run must return a number beside loss, with zero/closed and seed 0, "
        "got {'loss': tensor([0., 0.])}. Return what",
        lambda: pg.compare(_returning({"loss": torch.zeros(2)})),
    ),
    "no names": (
        TypeError,
        "numbers by name, with zero/closed and seed 0, got {}.",
        lambda: pg.compare(_returning({})),
    ),
    "other names": (
        ValueError,
        "compare: run must return loss as with zero/closed and seed 0, got 'loss, extra with zero/closed and seed 1'. "
        "Return the same names from each run.",
        lambda: pg.compare(_with_names_that_change),
    ),
    "never clamps": (
        ValueError,
        "compare: run must call the clamp that it is given, got '<lambda>'. It never did, so every rule gave the same; "
        "replace='clamp' runs it unedited.",
        lambda: pg.compare(lambda clamp: 1.0),
    ),
    "reaches nothing": (
        ValueError,
        "compare: run must call a function of torch that override(round=...) reaches, got '<lambda>'. Nothing was rewritten",
        lambda: pg.compare(lambda: 1.0, replace="round"),
    ),
    "no function": (TypeError, "compare: run must be a function, got 3.", lambda: pg.compare(3)),  # type: ignore[arg-type]
    "no arguments": (
        TypeError,
        "compare: run must be callable as run(clamp) or run(clamp, seed), got <lambda>(). Give all else a default",
        lambda: pg.compare(lambda: 1.0),
    ),
    "too many arguments": (
        TypeError,
        "got <lambda>(clamp, seed, rate).",
        lambda: pg.compare(lambda clamp, seed, rate: 1.0),
    ),
    "replace and a clamp": (
        TypeError,
        "compare: run must be callable as run() or run(seed), got <lambda>(clamp, seed).",
        lambda: pg.compare(lambda clamp, seed: 1.0, replace="clamp"),
    ),
    "a rule as text": (
        TypeError,
        "compare: rules must be a list of rules, got 'inward'. Write [...] around it.",
        lambda: pg.compare(slopes, rules="inward"),
    ),
    "a rule that is none": (
        TypeError,
        "compare: rules must be names or rule objects, got 3. Such as",
        lambda: pg.compare(slopes, rules=[3]),  # type: ignore[list-item]
    ),
    "an unknown rule": (ValueError, "clamp: rule must be one of", lambda: pg.compare(slopes, rules=["ste"])),
    "an unknown edge": (ValueError, "clamp: edge must be one of", lambda: pg.compare(slopes, edges=["opened"])),
    "an edge as text": (TypeError, "compare: edges must be a list of edges", lambda: pg.compare(slopes, edges="open")),
    "an edge with replace": (
        ValueError,
        "compare: edges must be left out with replace, got ('open',). Under replace each family has its own edge",
        lambda: pg.compare(lambda: 1.0, edges=["open"], replace="clamp"),
    ),
    "a rule's edge with replace": (
        ValueError,
        "compare: rules must name no edge with replace, got 'inward/open'. Each family has its own.",
        lambda: pg.compare(lambda: 1.0, rules=["inward/open"], replace="clamp"),
    ),
    "an unknown family": (
        ValueError,
        "compare: replace must be one of clamp, fake_quantize, gelu, hardsigmoid, leaky_relu, relu, round, sign, silu, got 'clmp'. "
        "Did you mean 'clamp'?",
        lambda: pg.compare(lambda: 1.0, replace="clmp"),
    ),
    "no family": (ValueError, "compare: replace must name at least one", lambda: pg.compare(lambda: 1.0, replace=())),
    "no seeds": (ValueError, "compare: seeds must be at least 1, got 0.", lambda: pg.compare(slopes, seeds=0)),
    "seeds twice": (ValueError, "compare: seeds must be different whole", lambda: pg.compare(slopes, seeds=[1, 1])),
    "half a seed": (TypeError, "compare: seeds must be a number of seeds", lambda: pg.compare(slopes, seeds=0.5)),  # type: ignore[arg-type]
    "no jobs": (ValueError, "compare: jobs must be at least 1, got 0.", lambda: pg.compare(slopes, jobs=0)),
    "a lambda in other processes": (
        ValueError,
        "compare: run must stand at the top of a module for jobs above 1, got '<lambda>'. Other processes import it",
        lambda: pg.compare(lambda clamp: 1.0, jobs=2),
    ),
    "an unknown direction": (
        ValueError,
        "compare: better must be one of higher, lower, got 'smaller'.",
        lambda: pg.compare(slopes, better="smaller"),  # type: ignore[arg-type]
    ),
    "a direction left out": (
        ValueError,
        "compare: better must say which is better of at the bound, below, got {'outside': 'lower'}.",
        lambda: pg.compare(slopes, better={"outside": "lower"}),
    ),
    "a folder of others": (
        ValueError,
        "compare: keep must hold finished runs alone, got ",
        lambda: pg.compare(slopes, keep=Path(__file__).parent),
    ),
    "an unknown variant": (
        ValueError,
        "compare: variant must be one of no clamp, zero/closed, zero/open, got 'inward'.",
        lambda: pg.compare(slopes, rules=[], seeds=1).verdict("inward"),
    ),
    "an unknown number": (
        ValueError,
        "compare: number must be one of at the bound, below, outside, got 'loss'.",
        lambda: pg.compare(slopes, rules=[], seeds=1).edge("loss"),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_told(case: str) -> None:
    kind, text, call = WRONG[case]
    with pytest.raises(kind) as told:
        call()
    assert text in str(told.value)


# --- unedited programs ------------------------------------------------------------------------------------------------


def test_replace_runs_an_unedited_function_under_override_and_the_eras() -> None:
    def run() -> dict[str, float]:
        return slopes(torch.clamp)

    found = pg.compare(run, rules=["inward", "identity"], replace="clamp", seeds=1)
    assert found.variants == (*ERAS, "inward", "identity", "torch.clamp")
    rows = {name: tuple(found.values[number][name][0] for number in found.values) for name in found.variants}
    eras = {ERAS[0]: (0, 1, 0), ERAS[1]: (0, 0, 0)}
    assert rows == {**eras, "inward": (1, 1, 0), "identity": (1, 1, 1), "torch.clamp": eras[INSTALLED_RULE]}
    assert found.replaced == ("clamp",)
    assert str(found).startswith(f"run, clamp replaced: 1 seed, torch {torch.__version__}\n")


def test_replace_takes_several_families_and_their_usual_rules() -> None:
    def run(seed: int) -> float:
        x = torch.tensor([0.4, 2.6], requires_grad=True)
        torch.relu(torch.round(x) - 1).sum().backward()
        return float(x.grad.sum()) + seed  # type: ignore[union-attr]

    both = pg.compare(run, rules=["identity"], replace=("round", "relu"), seeds=2)
    assert both.values["the number"]["identity"] == (2, 3)
    assert both.values["the number"]["torch's own"] == (0, 1)
    assert both.variants == ("identity", "torch's own")
    assert pg.compare(run, replace="round", seeds=1).variants == ("identity", "zero", "trust", "fourier", "torch.round")


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clamp(-1, 1) * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


DEFINED = Doubled.forward.__code__.co_firstlineno
APPLY = Doubled.apply  # taken before anybody looks


def test_where_the_rules_changed_nothing_it_says_so_and_what_was_reached() -> None:
    def run(seed: int) -> float:
        x = torch.tensor([2.0], requires_grad=True)
        stop = torch.tensor(float("-inf"))
        torch.maximum(pg.clamp(APPLY(x), -9, 9).sum(), stop).backward()
        return float(x.grad[0]) + seed  # type: ignore[index]

    found = pg.compare(run, rules=["zero", "sign"], replace="clamp", seeds=7)
    assert found.changed_nothing
    first = run.__code__.co_firstlineno
    text = str(found).splitlines()
    assert text[1] == "The rules changed nothing: every rule gave the numbers of torch.clamp, to the bit."
    assert re.match(rf"Rewritten: maximum at .*test_compare.py:{first + 3}\.$", text[2])
    own = "Not reached, a Function with a rule of its own: "
    assert re.match(own + rf"an op of pseudograd at .*test_compare.py:{first + 3}\.$", text[3])
    assert re.match(own + rf"Doubled at .*test_compare.py:{DEFINED}\.$", text[4])
    assert not re.search("Best:|Not told apart", str(found))
    assert from_json(json.loads(json.dumps(found.to_json()))).reached == found.reached


def test_what_was_reached_is_said_where_the_rules_changed_something() -> None:
    def run(seed: int) -> dict[str, float]:
        return {key: value + seed for key, value in slopes(torch.clamp).items()}

    found = pg.compare(run, rules=["identity"], replace="clamp", seeds=7)
    assert not found.changed_nothing
    assert re.search(
        rf"^Rewritten: clamp at .*test_compare.py:{slope_at.__code__.co_firstlineno + 3}\.$", str(found), re.M
    )


def test_a_run_of_which_nothing_is_rewritten_is_told_what_it_has() -> None:
    def run() -> float:
        APPLY(torch.ones(1, requires_grad=True)).sum().backward()
        return 1.0

    told = rf"Nothing was rewritten, so every rule gave the same\. Not reached, a Function .*: Doubled at .*py:{DEFINED}\.$"
    with pytest.raises(ValueError, match=told):
        pg.compare(run, replace="clamp", seeds=1)


def test_the_baseline_is_what_is_replaced() -> None:
    def run(seed: int) -> float:
        x = torch.tensor([-0.5, 0.5], requires_grad=True)
        torch.relu(x).sum().backward()
        return float(x.grad.sum()) + torch.rand(()).item() / 10  # type: ignore[union-attr]

    found = pg.compare(run, rules=["identity", "leaky"], replace="relu", seeds=8)
    assert found.variants == ("identity", "leaky", "torch.relu")
    assert "torch.clamp" not in str(found)
    assert "Edge:" not in str(found)
    assert found.to_json()["edge"] == {}
    assert "less torch.relu" in str(found)
    assert (found.verdict("identity").shift, found.verdict("identity").verdict) == (pytest.approx(1), "worse")
    with pytest.raises(ValueError, match=r"compare: replace must name clamp to compare its eras, got \('relu',\)"):
        found.edge()


def round_straight_through(x: Tensor) -> Tensor:
    return x + (x.round() - x).detach()


def quantised(weight: Tensor, offset: Tensor, shrink: Tensor, bits: int) -> Tensor:
    """Symmetric codes with the scale of each row, its largest weight at the lowest code, as AutoRound has them."""
    top = 2 ** (bits - 1)
    low, high = -torch.clamp(weight.min(-1)[0], max=0), torch.clamp(weight.max(-1)[0], min=0)
    scale = (torch.where(high < low, 1.0, -1.0) * torch.max(high, low) * shrink / top)[:, None]
    return scale * torch.clamp(round_straight_through(weight / scale + offset), -top, top - 1)


def tuned_rounding(seed: int, steps: int = 60, bits: int = 4) -> float:
    """The rounding of a layer's weights, tuned by the sign of the gradient, at AutoRound's usual four bits; the error of its outputs."""
    weight = torch.randn(64, 32) / 32**0.5
    x = torch.randn(256, 32) @ (torch.eye(32) + torch.randn(32, 32) / 8)
    tuned = [torch.zeros_like(weight, requires_grad=True), torch.ones(64, requires_grad=True)]
    for step in range(steps):
        batch = x[torch.randint(256, (64,))]
        loss = functional.mse_loss(batch @ quantised(weight, *tuned, bits).T, batch @ weight.T)
        loss.backward()
        with torch.no_grad():
            for one, (low, high) in zip(tuned, ((-0.5, 0.5), (0.0, 1.0)), strict=True):
                one -= (1 - step / steps) / steps * one.grad.sign()  # type: ignore[union-attr]
                one.clamp_(low, high)
                one.grad = None
    with torch.no_grad():
        return functional.mse_loss(x @ quantised(weight, *tuned, bits).T, x @ weight.T).item()


def test_tuned_rounding_says_no_difference_or_the_new_edge() -> None:
    found = pg.compare(tuned_rounding, rules=[], replace="clamp", seeds=8)
    assert found.edge().seeds == (8, 8)  # the edge is met in every run
    assert found.edge_verdict() in ("no difference", "the new edge"), str(found)


def quantised_training(seed: int, steps: int = 40) -> float:
    """A layer with ternary weights, by the formula of torchao's quantisation-aware training: round, then clamp, both straight through."""
    teacher = torch.randn(8, 32) / 32**0.5
    weight = (torch.randn(8, 32) / 32**0.5).requires_grad_()
    optimiser = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    for _ in range(steps):
        x = torch.randn(64, 32)
        scale = weight.detach().abs().mean(1, keepdim=True)
        codes = torch.clamp(round_straight_through(weight / scale), -1, 1)
        loss = functional.mse_loss(x @ (codes * scale).T, x @ teacher.T)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return loss.item()


def test_quantised_training_says_the_old_edge() -> None:
    found = pg.compare(quantised_training, rules=[], replace="clamp", seeds=8)
    assert found.edge_verdict() == "the old edge", str(found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_torchao_at_two_bits_says_the_old_edge() -> None:
    """The example as it stands, unedited, its training cut short: later it is NaN with the new edge."""
    pytest.importorskip("torchao")
    if not hasattr(torch.nn.functional, "ScalingType"):
        pytest.skip(f"torchao 0.18.0 needs a torch later than {torch.__version__}")
    program = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "torchao_int2.py"))
    found = pg.compare(lambda seed: program["train"](seed, 60), rules=[], replace="clamp", seeds=7)
    assert found.edge_verdict() == "the old edge", str(found)


# --- records ----------------------------------------------------------------------------------------------------------


def test_json_holds_all_of_it_and_reads_back() -> None:
    def run(clamp: Clamp, seed: int) -> dict[str, float]:
        if clamp.name == "sign" and seed == 1:  # type: ignore[attr-defined]
            raise ValueError("gone")
        return {"loss": math.inf if clamp.name == "leaky" else noisy(clamp, seed), "score": noisy(clamp, seed)}  # type: ignore[attr-defined]

    found = pg.compare(run, rules=["inward", "sign", "leaky"], seeds=7, better={"loss": "lower", "score": "higher"})
    stored = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert stored["kind"] == "pseudograd comparison"
    assert stored["values"]["loss"]["leaky"] == ["inf"] * 7
    assert stored["values"]["loss"]["sign"][1] is None
    assert stored["verdicts"]["score"]["inward"]["verdict"] == found.verdict("inward", "score").verdict
    assert stored["edge"]["loss"]["p"] == found.edge().p
    again = from_json(stored)
    assert str(again) == str(found)
    assert again.to_json() == found.to_json()
    with pytest.raises(ValueError, match="compare: a comparison must be as compare wrote it"):
        from_json({"run": "mine"})


def test_write_leaves_a_whole_file(tmp_path: Path) -> None:
    found = pg.compare(slopes, rules=[], seeds=1)
    found.write(tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text(encoding="utf-8")) == found.to_json()
    with pytest.raises(ValueError, match="compare: file must lie where files can be written"):
        found.write(tmp_path / "nowhere" / "found.json")


# --- plots ------------------------------------------------------------------------------------------------------------


def test_plot_draws_every_seed_and_the_median_and_says_the_verdicts() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")

    def run(clamp: Clamp, seed: int) -> float:
        return math.nan if clamp.name == "no clamp" else noisy(clamp, seed)  # type: ignore[attr-defined]

    found = pg.compare(run, rules=["inward"], seeds=7)
    axes = found.plot()
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == list(found.variants)
    dots = {
        line.get_ydata()[0]: tuple(line.get_xdata())
        for line in axes.lines
        if line.get_linestyle() == "None" and len(line.get_xdata())
    }
    for place, name in enumerate(names):
        if name != "no clamp":
            assert dots[place] == found.values["the number"][name]
    medians = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "-"]
    assert medians == [found.median(name) for name in names if name != "no clamp"]
    texts = [text.get_text() for text in axes.texts]
    assert (
        f"worse (p = 0.045)\n{found.verdict('inward').size}" in texts
    )  # two in a family of three: 2 / 128 of a share of 0.35
    assert "no run ends in a number" in texts
    assert "what you have" in texts
    axes.figure.canvas.draw()
    width, height = axes.figure.bbox.size
    for text in [*axes.texts, axes.title, axes.xaxis.label]:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height
    pyplot.close("all")


# --- kept, and in other processes -------------------------------------------------------------------------------------


def test_kept_runs_are_not_made_again(tmp_path: Path) -> None:
    log, stops = tmp_path / "log", tmp_path / "stops"  # in files: what a run holds is part of what it is kept by
    stops.touch()

    def run(clamp: Clamp, seed: int) -> float:
        made = log.read_text() if log.exists() else ""
        if len(made) == 17 and stops.exists():
            raise KeyboardInterrupt
        log.write_text(made + ".")
        return noisy(clamp, seed)

    kept = tmp_path / "kept"
    with pytest.raises(KeyboardInterrupt):
        pg.compare(run, rules=["inward"], seeds=6, keep=kept)
    assert len(list(kept.iterdir())) == 17
    stops.unlink()
    asked: list[tuple[int, int]] = []
    found = pg.compare(
        run, rules=["inward"], seeds=6, keep=kept, on_trial=lambda one, done, of: asked.append((done, of))
    )
    assert len(log.read_text()) == 30
    assert asked == [(done, 30) for done in range(17, 30)]
    assert found.values == pg.compare(run, rules=["inward"], seeds=6).values
    assert len(log.read_text()) == 60
    assert pg.compare(run, rules=["inward"], seeds=6, keep=kept).notes == ()
    assert len(log.read_text()) == 60


@pytest.mark.parametrize("damage", ["cut", "a bit of the numbers", "a bit of the checksum", "another format"])
def test_a_damaged_kept_run_is_made_again_and_said(tmp_path: Path, damage: str) -> None:
    found = pg.compare(noisy, rules=["inward"], seeds=2, keep=tmp_path)
    file = sorted(tmp_path.iterdir())[3]
    data = bytearray(file.read_bytes())
    if damage == "cut":
        del data[50:]
    elif damage == "another format":
        data = bytearray(data[len(b"pseudograd run 2\n") + 32 :])  # as it was kept before there were checksums
    else:
        data[-200 if damage == "a bit of the numbers" else 20] ^= 1
    file.write_bytes(bytes(data))
    again = pg.compare(noisy, rules=["inward"], seeds=2, keep=tmp_path)
    assert again.values == found.values
    assert again.notes == ("1 kept run was damaged, and made again.",)
    assert "1 kept run was damaged, and made again." in str(again)
    assert pg.compare(noisy, rules=["inward"], seeds=2, keep=tmp_path).notes == ()


def test_the_folder_that_one_is_in_can_keep_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = pg.compare(noisy, rules=["inward"], seeds=2, keep=".")
    assert len(list(tmp_path.glob("*.run"))) == 10
    assert pg.compare(noisy, rules=["inward"], seeds=2, keep=tmp_path).values == found.values


def test_what_has_no_fingerprint_is_not_kept_and_that_is_said(tmp_path: Path) -> None:
    lock = threading.Lock()

    def run(clamp: Clamp, seed: int) -> float:
        with lock:
            return noisy(clamp, seed)

    with pytest.warns(UserWarning, match="compare: nothing is kept: what run holds .*lock.* has no fingerprint"):
        found = pg.compare(run, rules=["inward"], seeds=2, keep=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
    assert "Nothing was kept: what run holds" in str(found)
    with (
        pg.pin_edge("closed"),
        pytest.warns(UserWarning, match="nothing is kept: it runs inside a context of override"),
    ):
        pg.compare(noisy, rules=["inward"], seeds=2, keep=tmp_path / "kept")


def test_without_cloudpickle_nothing_is_kept_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.warns(UserWarning, match="nothing is kept: cloudpickle and joblib must be installed. Run pip install"):
        found = pg.compare(noisy, rules=["inward"], seeds=2, keep=tmp_path / "kept")
    assert found.values == pg.compare(noisy, rules=["inward"], seeds=2).values
    assert not (tmp_path / "kept").exists()


# --- fingerprints -----------------------------------------------------------------------------------------------------


def _made(scale: float, of: Callable[..., Any] = torch.sin) -> Callable[..., Any]:
    return lambda clamp: of(clamp(torch.ones(1) * scale, 0, 1))


class _Holding:
    def __init__(self, of: Any) -> None:
        self.of = of

    def __call__(self, clamp: Clamp) -> Any:
        return self.of(clamp)

    def run(self, clamp: Clamp) -> Any:
        return self.of(clamp)


def _with_keyword(target: Any) -> Callable[..., Any]:
    def run(clamp: Clamp, *, target: Any = target) -> Any:
        return target

    return run


def _with_default(target: Any) -> Callable[..., Any]:
    return lambda clamp, target=target: target


def _in_a_cell(code: str, **held: Any) -> Callable[..., Any]:
    space: dict[str, Any] = {"torch": torch, "__name__": "__main__", **held}
    exec(compile(code, "<cell>", "exec"), space)
    return space["run"]  # type: ignore[no-any-return]


@functools.lru_cache
def _cached(x: float) -> float:
    return x + 1


def _calling_cached(clamp: Clamp) -> float:
    return _cached(1.0)


class _Net(torch.nn.Module):
    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), weight))

    def forward(self, clamp: Clamp) -> Tensor:
        return clamp(self.weight, 0, 1)


def _data(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.zeros(5000, dtype=dtype)
    x[2500] = value
    return x


# By what differs: two that must not be taken for each other.
APART: dict[str, tuple[Any, Any]] = {
    "a number in a closure": (_made(1), _made(2)),
    "a function in a closure": (_made(1), _made(1, torch.cos)),
    "two functions": (noisy, slopes),
    "two of torch": (torch.sin, torch.cos),
    "an argument of partial": (functools.partial(noisy, seed=1), functools.partial(noisy, seed=2)),
    "an object that is called": (_Holding(noisy), _Holding(slopes)),
    "an object of a method": (_Holding(noisy).run, _Holding(slopes).run),
    "two methods": (_Holding(noisy).run, _Holding(noisy).__call__),
    "a default": (_with_default(1.0), _with_default(2.0)),
    "a keyword": (_with_keyword(1.0), _with_keyword(2.0)),
    "a number and a text": (_with_keyword(1), _with_keyword("1")),
    "a list": (_with_keyword([1]), _with_keyword([2])),
    "the order of a dict": (_with_keyword({"a": 1, "b": 2}), _with_keyword({"b": 2, "a": 1})),
    "a set": (_with_keyword({"a", "b"}), _with_keyword({"a", "c"})),
    "a config": (_with_keyword(types.SimpleNamespace(rate=1.0)), _with_keyword(types.SimpleNamespace(rate=2.0))),
    "data": (_with_keyword(_data(1)), _with_keyword(_data(2))),
    "the dtype of data": (_with_keyword(_data(1)), _with_keyword(_data(1, torch.float64))),
    "the shape of data": (_with_keyword(_data(1)), _with_keyword(_data(1).view(50, 100))),
    "an array": (_with_keyword(np.zeros(3)), _with_keyword(np.ones(3))),
    "a generator": (
        _with_keyword(torch.Generator().manual_seed(1)),
        _with_keyword(torch.Generator().manual_seed(2)),
    ),
    "weights": (_Net(1.0), _Net(2.0)),
    "what a cell calls": (
        _in_a_cell("def run(clamp): return torch.sin"),
        _in_a_cell("def run(clamp): return torch.cos"),
    ),
    "what a cell reads": (_in_a_cell("def run(clamp): return a", a=1), _in_a_cell("def run(clamp): return a", a=2)),
    "a class of a cell": (
        _in_a_cell("class C:\n    def f(self): return 1\ndef run(clamp): return C().f()"),
        _in_a_cell("class C:\n    def f(self): return 2\ndef run(clamp): return C().f()"),
    ),
    "a function inside a function": (
        _in_a_cell("def run(clamp): return (lambda x: x + 1)(1)"),
        _in_a_cell("def run(clamp): return (lambda x: x + 2)(1)"),
    ),
    "a slope": (pg.rules.custom(lambda x: x), pg.rules.custom(lambda x: 2 * x)),
    "a parameter of a rule": (pg.rules.leaky(0.1), pg.rules.leaky(0.2)),
}


@pytest.mark.parametrize("what", APART)
def test_what_decides_a_run_is_in_its_fingerprint(what: str) -> None:
    ours, others = APART[what]
    assert fingerprint(ours) != fingerprint(others)


def test_the_same_made_again_has_the_same_fingerprint() -> None:
    for made in (
        lambda: _made(1),
        lambda: _Holding(noisy),
        lambda: _with_keyword({"a", "b", "c"}),
        lambda: _with_keyword([_data(1), np.ones(3), "".join(["a", "b"]), "ab"]),
        lambda: _Net(1.0),
        lambda: _in_a_cell("# of another line\n\nclass C:\n    f = 1\ndef run(clamp): return C.f"),
    ):
        assert fingerprint(made()) == fingerprint(made())
    moved = _in_a_cell("class C:\n    f = 1\n\n\ndef run(clamp): return C.f")
    assert fingerprint(moved) == fingerprint(_in_a_cell("class C:\n    f = 1\ndef run(clamp): return C.f"))
    assert fingerprint(_calling_cached) == fingerprint(_calling_cached)


def test_what_torch_is_set_to_is_in_the_fingerprint() -> None:
    before = fingerprint(noisy)
    torch.set_default_dtype(torch.float64)
    try:
        assert fingerprint(noisy) != before
    finally:
        torch.set_default_dtype(torch.float32)
    assert fingerprint(noisy) == before


LIBRARY = """\
RATE = {"a": 1.0}
NAMES = {"u", "v", "www", "x"}

class Step:
    __slots__ = ("size",)

    def __init__(self, size):
        self.size = size

    @property
    def half(self):
        return self.size / 2

def train(x):
    return Step(RATE["a"]).half * x if "q" in {"q", "r", "s"} else len(NAMES)
"""


@pytest.mark.slow
def test_a_fingerprint_is_the_same_in_every_process_and_sees_what_a_library_of_the_users_does(tmp_path: Path) -> None:
    (tmp_path / "library_of_mine.py").write_text(LIBRARY)
    program = (
        "import library_of_mine, enum, dataclasses, torch\n"
        "class Colour(enum.Enum):\n    RED = 1\n    BLUE = 2\n"
        "@dataclasses.dataclass\nclass Config:\n    tags: frozenset = frozenset({'a', 'bb', 'ccc'})\n    colour: Colour = Colour.RED\n"
        "torch.manual_seed(0)\n"
        "CONFIG, NET = Config(), torch.nn.Linear(2, 2)\n"
        "def run(clamp, seed):\n"
        "    return library_of_mine.train(NET(clamp(torch.zeros(2), 0, 1))), CONFIG.tags, {'x', 'yy', 'z'}\n"
        "from pseudograd.comparison.store import fingerprint\n"
        "print(fingerprint(run))\n"
    )
    (tmp_path / "program.py").write_text(program)

    def of(hash_seed: str, *options: str) -> str:
        told = subprocess.run(
            [sys.executable, *options, "program.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.returncode == 0, told.stderr
        return told.stdout

    first = of("1", "-B")  # compiled now, then from its cache: other objects are shared
    assert {of("2"), of("2")} == {first}
    (tmp_path / "library_of_mine.py").write_text(LIBRARY.replace("self.size / 2", "self.size / 4"))
    assert of("1", "-B") != first
    (tmp_path / "library_of_mine.py").write_text(LIBRARY.replace('{"a": 1.0}', '{"a": 2.0}'))
    assert of("1", "-B") != first
    (tmp_path / "library_of_mine.py").write_text("# a comment\n" + LIBRARY)
    assert of("1", "-B") == first


MODULE = """\
import os
import torch
import pseudograd as pg

@pg.register_rule("clamp", formula="grad * share", source="a test", is_linear=True)
def part_of_it(grad, x, y, min, max, *, share=0.5):
    return grad * share

def run(clamp, seed):
    model = torch.nn.Linear(200, 50)
    x = torch.randn(300, 200)
    for _ in range(3):
        loss = clamp(model(x) * 3, -1, 1).pow(2).mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= p.grad
    if clamp.name == "sign" and seed == 1:
        raise ValueError("gone")
    return {"loss": loss.item(), "process": 0.0 * os.getpid()}

def dies(clamp):
    os._exit(1)
"""


@pytest.fixture
def case_of_mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_as_it_was: None) -> Iterator[Any]:
    (tmp_path / "case_of_mine.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("case_of_mine")
    sys.modules.pop("case_of_mine", None)


@pytest.mark.program
def test_other_processes_give_the_same_to_the_bit(case_of_mine: Any) -> None:
    rules = ["inward", "sign", "part_of_it(0.25)"]
    alone = pg.compare(case_of_mine.run, rules=rules, seeds=2)
    spread = pg.compare(case_of_mine.run, rules=rules, seeds=2, jobs=2)
    assert spread.values.keys() == alone.values.keys()
    assert str(spread.values) == str(alone.values)  # NaN where it failed
    assert spread.failures == alone.failures == {("sign", 1): "ValueError: gone"}
    with pytest.raises(
        ValueError, match="compare: jobs must be processes that live to the end, got 'one that did not'"
    ):
        pg.compare(case_of_mine.dies, rules=[], seeds=1, jobs=2)
    sys.modules.pop("case_of_mine", None)


@pytest.mark.slow
def test_a_clamp_inside_compiled_code_is_seen() -> None:
    def run(clamp: Clamp) -> float:
        f = torch.compile(lambda x: clamp(x, -1, 1) * 2, backend="aot_eager", fullgraph=True)
        for _ in range(3):
            x = torch.tensor([2.0], requires_grad=True)
            f(x).sum().backward()
        return float(x.grad[0])  # type: ignore[index]

    found = pg.compare(run, rules=["identity"], seeds=1).values["the number"]
    assert (found["identity"], found["zero/open"]) == ((2.0,), (0.0,))


@pytest.mark.program
def test_it_needs_torch_alone() -> None:
    program = (
        "import sys, pseudograd as pg, torch\n"
        "def run(clamp, seed):\n"
        "    x = torch.rand(3, requires_grad=True)\n"
        "    clamp(x * 3, 0, 1).sum().backward()\n"
        "    return x.grad.sum().item()\n"
        "str(pg.compare(run, rules=['inward'], seeds=3)), str(pg.tune(run, budget=20, rules=['inward'])), torch\n"
        "heavy = {'matplotlib', 'rich', 'sklearn', 'scipy', 'jinja2', 'pseudograd_tasks.report'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
