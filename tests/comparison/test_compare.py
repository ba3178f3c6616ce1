"""compare(run): the numbers are those of the runs, the verdicts those of the test, and a wrong run gets our error."""

import contextlib
import json
import math
import random
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.comparison.comparison import Comparison
from pseudograd.comparison.statistics import difference
from pseudograd.comparison.training import Training
from pseudograd.torch_table.eras import CLOSED_ERA, installed_era

from ..written import assert_written, error_of

ERAS = ("zero/closed", "zero/open")
ALWAYS = (*ERAS, "torch.clamp", "no clamp")
INSTALLED_RULE = ERAS[0] if installed_era() == CLOSED_ERA else ERAS[1]
Clamp = Callable[..., Tensor]


def slope_at(clamp: Clamp, x: float, **how: bool) -> float:
    """dy/dx of a clamp between -1 and 1, where an increase of y increases the loss."""
    point = torch.tensor([x], requires_grad=True)
    clamp(point, -1, 1, **how).sum().backward()
    return float(point.grad[0])  # type: ignore[index]


def slopes(clamp: Clamp) -> dict[str, float]:
    return {"outside": slope_at(clamp, 2.0), "at the bound": slope_at(clamp, 1.0), "below": slope_at(clamp, -2.0)}


def noisy(clamp: Clamp, seed: int) -> float:
    """The slope outside, and noise of the seed which is the same for every rule."""
    return slope_at(clamp, 2.0) + torch.randn(()).item() / 4 + seed


def rows_of(comparison: Comparison) -> dict[str, tuple[float, ...]]:
    """By variant every number of the first seed."""
    return {name: tuple(rows[name][0] for rows in comparison.values.values()) for name in comparison.variants}


def test_each_variant_is_handed_the_clamp_of_its_name() -> None:
    rules = ["inward", "leaky(0.2)", "identity", "zero/half", pg.rules.leaky(0.3)]
    assert rows_of(pg.compare(slopes, rules=rules)) == {
        "zero/closed": (0, 1, 0),
        "zero/open": (0, 0, 0),
        "inward": (1, 1, 0),
        "leaky(0.2)": (pytest.approx(0.2), 1, pytest.approx(0.2)),
        "identity": (1, 1, 1),
        "zero/half": (0, 0.5, 0),
        "leaky(slope=0.3)": (pytest.approx(0.3), 1, pytest.approx(0.3)),
        "torch.clamp": (0, float(ERAS[0] == INSTALLED_RULE), 0),
        "no clamp": (1, 1, 1),
    }


def test_a_clamp_is_called_as_torch_clamp_is() -> None:
    x, bound = torch.linspace(-2, 2, 9), torch.full((3, 1), 0.5)

    def run(clamp: Clamp) -> float:
        if getattr(clamp, "name", "") == "no clamp":
            assert torch.equal(clamp(x, -1, 1), x)
            return 0.0
        for args, how in (
            ((x, -1, 1), {}),
            ((x,), {"min": 0}),
            ((x,), {"max": 0.5}),
            ((), {"input": x, "min": -1, "max": 1}),
            ((x, None, 1), {}),
            ((x, bound), {"max": 1.5 * bound}),
        ):
            assert torch.equal(clamp(*args, **how), torch.clamp(*args, **how))
        with pytest.raises(RuntimeError, match="At least one of 'min' or 'max' must not be None"):
            clamp(x)
        return 0.0

    assert pg.compare(run, rules=["inward", "sign"], seeds=1).failures == {}


def test_under_ascent_the_clamp_takes_maximize() -> None:
    def run(clamp: Clamp) -> float:
        return slope_at(lambda *bounds, **how: -clamp(*bounds, **how), 2.0, maximize=True)

    rows = pg.compare(run, rules=["inward", "sign", "leaky"], seeds=1).values["the number"]
    # Ascent along -1 moves x down, towards the range.
    assert (rows["inward"][0], rows["sign"][0], rows["leaky"][0]) == (-1, -1, pytest.approx(-0.1))


def test_project_is_asked_of_a_run_that_takes_it() -> None:
    def run(clamp: Clamp, project: bool = False) -> float:
        return 7.0 if project else slope_at(clamp, 3.0)

    comparison = pg.compare(run, rules=[], seeds=1)
    assert (comparison.variants, comparison.values["the number"]["project"]) == ((*ALWAYS, "project"), (7.0,))
    assert "project" not in pg.compare(slopes, rules=[], seeds=1).variants


def test_every_run_starts_from_its_seed_and_the_caller_goes_on_as_before() -> None:
    def draw_numbers() -> tuple[float, ...]:
        return torch.rand(1).item(), random.random(), np.random.rand()

    def seed_all(seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)

    def run(clamp: Clamp, seed: int) -> dict[str, float]:
        clamp(torch.zeros(1), 0, 1)
        return {"seed": seed, **dict(zip(("torch", "random", "numpy"), draw_numbers(), strict=True))}

    seed_all(5)
    expected = draw_numbers()
    seed_all(5)
    comparison = pg.compare(run, rules=["inward"], seeds=[7, 3])
    assert draw_numbers() == expected
    seed_all(3)
    assert {rows[1:] for rows in rows_of(pg.compare(run, rules=["inward"], seeds=[3])).values()} == {draw_numbers()}
    assert set(comparison.values["seed"].values()) == {(7.0, 3.0)}


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

    comparison = pg.compare(run, rules=["inward"], seeds=10)
    assert (len(calls), comparison.repeats, comparison.verdict("inward").verdict) == (2 * 5, True, "no difference")
    assert re.search(r"^inward       1 +worse, by 1$", str(comparison), re.MULTILINE)
    assert (
        "The seed seems to change nothing: no run takes it or moves the generators of torch, random and numpy"
        in str(comparison)
    )
    assert comparison.leaders() == ("zero/closed", "zero/open", "torch.clamp")


DRAWING: dict[str, Callable[[], object]] = {
    "torch": lambda: torch.rand(1),
    "random": random.random,
    "numpy": np.random.rand,
}


@pytest.mark.parametrize("what", DRAWING)
def test_a_run_that_draws_has_every_seed_run(what: str) -> None:
    """All seeds happen to agree, which does not say that the seed changes nothing."""

    def run(clamp: Clamp) -> float:
        slope_at(clamp, 0.0)
        DRAWING[what]()
        return 1.0

    comparison = pg.compare(run, rules=[], seeds=3)
    assert (len(comparison.seeds), comparison.repeats) == (3, False)
    assert "The seed seems" not in str(comparison)


def test_a_run_that_is_given_a_seed_has_every_seed_run_and_one_with_its_own_generator_has_not() -> None:
    own = torch.Generator()  # which no seed reaches

    def run(clamp: Clamp) -> float:
        torch.rand(1, generator=own)
        return slope_at(clamp, 0.0)

    assert len(pg.compare(lambda clamp, seed: float(seed < 8) + slope_at(clamp, 0.0), rules=[], seeds=10).seeds) == 10
    comparison = pg.compare(run, rules=[], seeds=7)
    assert (len(comparison.seeds), comparison.repeats) == (2, True)


@pytest.mark.parametrize("grows", ["nothing", "loss", "loss and seconds", "seconds"])
def test_runs_that_go_on_where_the_last_ended_are_told(grows: str) -> None:
    """A time that was measured differs in any case."""
    kept = torch.zeros(1)  # as a model that was built outside run

    def run(clamp: Clamp, seed: int) -> dict[str, float]:
        number = float(kept.add_(1))
        return {name: seed + slope_at(clamp, 0.0) + number * (name in grows) for name in ("loss", "seconds")}

    text = str(pg.compare(run, rules=[], seeds=3))
    told = f"Equal runs end differently: {INSTALLED_RULE} is torch.clamp on this torch" in text
    assert told == (grows == "loss and seconds")


def test_verdicts_are_those_of_the_paired_test_with_holm() -> None:
    comparison = pg.compare(noisy, rules=["inward", "leaky", "identity"], seeds=9, better="higher")
    rows = comparison.values["the number"]
    torch.manual_seed(4)
    assert rows["inward"][4] == 1 + torch.randn(()).item() / 4 + 4
    alone, verdict = difference(rows["inward"], rows["torch.clamp"]), comparison.verdict("inward")
    # inward, identity and no clamp give the same numbers here, so that they are one comparison; leaky is the second one, and the third is
    # which of the two is best. The first two share seven tenths of the level.
    assert (alone.p, verdict.comparisons, verdict.p) == (2 / 512, 3, pytest.approx(2 / 512 / (0.7 / 2)))
    assert comparison.verdict("identity") == comparison.verdict("no clamp") == verdict
    assert (verdict.verdict, verdict.mean) == ("better", pytest.approx(1))
    assert comparison.leaders() == ("inward", "identity", "no clamp")
    assert comparison.verdict("zero/closed").seeds == (9, 0)
    assert pg.compare(noisy, rules=["inward"], seeds=9, better="lower").verdict("inward").verdict == "worse"


def test_no_difference_is_said_where_there_is_none() -> None:
    def run(clamp: Clamp, seed: int) -> float:
        generator = torch.Generator().manual_seed(seed + 1000 * len(clamp.name))  # type: ignore[attr-defined]
        clamp(torch.zeros(1), 0, 1)
        return torch.randn((), generator=generator).item()

    comparison = pg.compare(run, rules=["inward", "leaky(0.25)"], seeds=10)
    assert {comparison.verdict(name).verdict for name in comparison.others} == {"no difference"}
    assert len(comparison.leaders()) == len(comparison.variants) == 6
    best = "^With 10 seeds no two of the 6 variants are told apart; .* ha(s|ve) the best median.$"
    assert re.search(best, str(comparison), re.M)
    assert "No difference" not in str(comparison)
    verdict = comparison.verdict("inward")
    end = rf"not told apart .p = .*; {verdict.detectable:.3g} would have been"
    assert re.search(rf"^inward .*  {re.escape(verdict.size)} +{end}", str(comparison), re.M)
    assert comparison.edge_verdict() == "no difference"


def test_too_few_seeds_are_said() -> None:
    text = str(pg.compare(noisy, rules=["inward", "leaky"], seeds=4))
    assert "too few seeds to tell: 4 that differ cannot give p below" in text
    assert text.splitlines()[1] == "Too few seeds: 4. 2 comparisons need at least 7 seeds."
    assert re.search(" ha(s|ve) the best median, but so few seeds tell nothing.$", text, re.M)
    assert not re.search("no two of the|No difference|Best:", text)
    assert "Too few" not in str(pg.compare(noisy, rules=["inward", "leaky"], seeds=7))


@pytest.mark.parametrize(
    ("better", "winner"), [("higher", "old edge (torch<=2.13"), ("lower", "new edge (torch>=2.14")]
)
def test_the_edge_is_judged_by_itself(better: Any, winner: str) -> None:
    comparison = pg.compare(
        lambda clamp: slope_at(clamp, 1.0) + torch.rand(()).item(), rules=[], seeds=6, better=better
    )
    assert comparison.edge_verdict() == f"the {winner.split(' (')[0]}"
    assert (comparison.edge().p, comparison.edge().comparisons) == (2 / 64, 1)
    assert f"Edge: the {winner}, zero/" in str(comparison)


def test_all_numbers_and_pairs_are_one_family() -> None:
    gauss = random.Random(4).gauss

    def rows() -> dict[str, tuple[float, ...]]:
        """torch.clamp with one era, to the bit, and others with numbers of their own."""
        names = ("torch.clamp", ERAS[1], "inward", "no clamp")
        drawn = {name: tuple(gauss(0, 1) for _ in range(10)) for name in names}
        return {ERAS[0]: drawn["torch.clamp"], **drawn}

    values = {number: rows() for number in ("loss", "score")}
    comparison = Comparison("mine", dict.fromkeys(values, "lower"), tuple(range(10)), values, torch="2.13")  # type: ignore[arg-type]
    differences = comparison.pair_differences
    # Of each number: three differ from torch.clamp, one of which is the edge, and three pairs of these.
    assert (len(differences.planned), differences.unplanned_count, differences.corrected_for) == (6, 6, (6, 6))
    assert {comparison.verdict(name, number).comparisons for name in ("inward", "no clamp") for number in values} == {
        12
    }
    assert comparison.edge("score") == comparison.verdict(ERAS[1], "score").turned()
    share = 0.7 / 6  # of the level, for each that was planned
    for number, row in values.items():
        for name in (ERAS[1], "inward", "no clamp"):
            alone = difference(row[name], row["torch.clamp"], better="lower").p
            assert comparison.verdict(name, number).p >= min(1, alone / share * (1 - 5 * share))
    assert (
        "p is corrected by Holm for 12 comparisons of all 2 numbers: 6 with torch.clamp or between its eras, "
        "6 between the others, to tell the best; up to 0.05 is a difference."
    ) in str(comparison)


def make_comparison(**rows: tuple[float, ...]) -> Comparison:
    seeds = tuple(range(len(rows["base"])))
    return Comparison("mine", {"loss": "lower"}, seeds, {"loss": rows}, baseline="base")


def test_the_best_is_told_of_pairs_and_its_equals_stay_beside_it() -> None:
    """Every seed agrees on one order: a < b < base < c. Which pairs are told is a matter of how many seeds there are."""

    def ordered(seeds: int) -> Comparison:
        level = {"a": 0.0, "a again": 0.0, "b": 2.0, "base": 4.0, "c": 6.0}
        return make_comparison(
            **{name: tuple(value + 0.1 * seed for seed in range(seeds)) for name, value in level.items()}
        )

    # Three planned, of a share of 0.7; three pairs, of 0.3. With eight seeds a, b and c are told from base; all is left to pairs.
    assert ordered(7).too_few_seeds
    assert ordered(7).leaders() == ("a", "a again", "b", "base", "c")
    comparison = ordered(8)
    assert [comparison.verdict(name).verdict for name in comparison.others] == ["better", "better", "better", "worse"]
    assert (comparison.leaders(), comparison.verdict("a").shift) == (("a", "a again"), -4)
    assert str(comparison).count("\nBest: a tie of a and a again.") == 1


def test_a_direction_that_is_missing_is_asked_for_before_all_seeds_ran() -> None:
    seeds: list[int] = []

    def training(clamp: Any, seed: int) -> dict[str, float]:
        seeds.append(seed)
        return {"loss": float(clamp(torch.tensor(2.0), 0, 1)), "accuracy": 1.0}

    with pytest.raises(ValueError, match="better must say which is better of accuracy"):
        pg.compare(training, rules=["zero", "inward"], seeds=9, better={"loss": "lower"})
    assert {*seeds} == {0, 1}


def test_the_best_median_is_not_the_best_where_another_is_told_to_be_better() -> None:
    """Three seeds in the middle are a little lower, all others higher: the median is lower, and the test finds it worse."""
    steady = (0.5,) * 4 + (1.0,) * 3 + (1.5,) * 5
    risky = (0.6, 0.61, 0.62, 0.63, 0.99, 0.98, 0.97, 2.5, 2.6, 2.7, 2.8, 2.9)
    comparison = make_comparison(steady=steady, risky=risky, base=tuple(value + 20 for value in steady))
    assert comparison.median("risky") < comparison.median("steady")
    assert comparison.pair_differences.difference("loss", "steady", "risky").verdict == "better"
    assert comparison.leaders() == ("steady",)
    gauss = random.Random(1).gauss
    close = {"inward": 0.0, "leaky": 0.05, "base": 9.0}  # what cannot be told from the best is not said to be worse
    comparison = make_comparison(
        **{name: tuple(value + gauss(0, 1) for _ in range(10)) for name, value in close.items()}
    )
    assert set(comparison.leaders()) == {"inward", "leaky"}


def test_a_rule_under_which_the_run_fails_is_told_and_the_others_go_on() -> None:
    def run(clamp: Clamp, seed: int) -> float:
        if clamp.name == "sign":  # type: ignore[attr-defined]
            raise ArithmeticError("it\nblew up")
        return math.nan if clamp.name == "leaky" else noisy(clamp, seed)  # type: ignore[attr-defined]

    comparison = pg.compare(run, rules=["inward", "sign", "leaky"], seeds=8)
    assert comparison.failures == {("sign", seed): "ArithmeticError: it blew up" for seed in range(8)}
    assert comparison.verdict("sign").verdict == comparison.verdict("leaky").verdict == "worse"
    assert "\nsign         not finite" in str(comparison)
    assert "\nFailed: sign, seed 3: ArithmeticError: it blew up" in str(comparison)
    assert math.isnan(comparison.median("sign"))
    assert comparison.ranked()[-1] in ("sign", "leaky")


def raising(clamp: Clamp) -> float:
    raise KeyError("weights")


def change_names(clamp: Clamp, seed: int) -> dict[str, float]:
    slope_at(clamp, 0.0)
    return {"loss": 1.0} if seed == 0 else {"loss": 1.0, "extra": 2.0}


def returning(value: Any) -> Callable[[Clamp], Any]:
    def run(clamp: Clamp) -> Any:
        slope_at(clamp, 0.0)
        return value

    return run


# The text of the error, and the run with the arguments of compare.


def test_a_wrong_call_gets_the_written_error() -> None:
    assert_written(Path(__file__).with_name("bad_calls.txt"), {**globals(), "error_of": error_of})
    with pytest.raises(ValueError, match="keep must hold finished runs alone, got "):
        pg.compare(slopes, keep=Path(__file__).parent)
    with pytest.raises(ValueError, match="at the top of a module for jobs above 1, 'b' too"):
        pg.compare(slopes, variants={"a": abs, "b": lambda clamp: 1.0}, jobs=2)


def test_an_unknown_variant_or_number_is_told() -> None:
    comparison = pg.compare(slopes, rules=[], seeds=1)
    with pytest.raises(ValueError, match="variant must be one of no clamp, zero/closed, zero/open, got 'inward'"):
        comparison.verdict("inward")
    with pytest.raises(ValueError, match="number must be one of at the bound, below, outside, got 'loss'"):
        comparison.edge("loss")


def test_replace_runs_an_unedited_function_under_override_and_the_eras() -> None:
    comparison = pg.compare(lambda: slopes(torch.clamp), rules=["inward", "identity"], replace="clamp", seeds=1)
    eras = {ERAS[0]: (0, 1, 0), ERAS[1]: (0, 0, 0)}
    rows = {**eras, "inward": (1, 1, 0), "identity": (1, 1, 1), "torch.clamp": eras[INSTALLED_RULE]}
    assert rows_of(comparison) == rows
    assert (comparison.variants, comparison.replaced) == ((*ERAS, "inward", "identity", "torch.clamp"), ("clamp",))
    assert str(comparison).startswith(f"<lambda>, clamp replaced: 1 seed, torch {torch.__version__}\n")


def test_replace_takes_several_families_and_their_usual_rules() -> None:
    def run(seed: int) -> float:
        x = torch.tensor([0.4, 2.6], requires_grad=True)
        torch.relu(torch.round(x) - 1).sum().backward()
        return float(x.grad.sum()) + seed  # type: ignore[union-attr]

    both = pg.compare(run, rules=["identity"], replace=("round", "relu"), seeds=2)
    assert both.values["the number"] == {"identity": (2, 3), "torch's own": (0, 1)}
    assert pg.compare(run, replace="round", seeds=1).variants == ("identity", "zero", "trust", "fourier", "torch.round")


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clamp(-1, 1) * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


DEFINED = Doubled.forward.__code__.co_firstlineno
APPLY = Doubled.apply  # stored before a comparison begins


def test_where_the_rules_changed_nothing_it_says_so_and_what_was_reached() -> None:
    def run(seed: int) -> float:
        x = torch.tensor([2.0], requires_grad=True)
        stop = torch.tensor(float("-inf"))
        torch.maximum(pg.clamp(APPLY(x), -9, 9).sum(), stop).backward()
        return float(x.grad[0]) + seed  # type: ignore[index]

    comparison = pg.compare(run, rules=["zero", "sign"], replace="clamp", seeds=7)
    assert comparison.changed_nothing
    line = run.__code__.co_firstlineno + 3
    text = str(comparison).splitlines()
    assert text[1] == "The rules changed nothing: every rule below gave the numbers of torch.clamp, to the bit."
    assert re.match(rf"Rewritten: maximum at .*test_compare.py:{line}\.$", text[2])
    own = "Not changed, it has a rule of its own: "
    assert re.match(own + rf"an op of pseudograd at .*test_compare.py:{line}\.$", text[3])
    assert re.match(own + rf"Doubled at .*test_compare.py:{DEFINED}\.$", text[4])
    assert not re.search("Best:|told apart", str(comparison))
    reached = json.loads(json.dumps(comparison.to_json()))["reached"]
    assert reached == {kind: [list(call) for call in calls] for kind, calls in vars(comparison.reached).items()}
    changed = pg.compare(lambda seed: slope_at(torch.clamp, 2.0) + seed, rules=["identity"], replace="clamp", seeds=7)
    line = slope_at.__code__.co_firstlineno + 3
    assert not changed.changed_nothing
    assert re.search(rf"^Rewritten: clamp at .*test_compare.py:{line}\.$", str(changed), re.M)


def test_a_run_that_never_calls_its_clamp_is_refused_after_the_first_seed() -> None:
    seeds: list[int] = []
    with pytest.raises(ValueError, match="It never did"):
        pg.compare(lambda clamp, seed: seeds.append(seed) or 1.0, seeds=12)
    assert set(seeds) == {0}


def test_a_run_of_which_nothing_is_rewritten_is_told_what_it_has() -> None:
    def run() -> float:
        APPLY(torch.ones(1, requires_grad=True)).sum().backward()
        return 1.0

    text = rf"Nothing was rewritten, so every rule gave the same\. Not changed, .*: Doubled at .*py:{DEFINED}\.$"
    with pytest.raises(ValueError, match=text):
        pg.compare(run, replace="clamp", seeds=1)


def test_the_baseline_is_what_is_replaced() -> None:
    def run(seed: int) -> float:
        x = torch.tensor([-0.5, 0.5], requires_grad=True)
        torch.relu(x).sum().backward()
        return float(x.grad.sum()) + torch.rand(()).item() / 10  # type: ignore[union-attr]

    comparison = pg.compare(run, rules=["identity", "leaky"], replace="relu", seeds=8)
    assert comparison.variants == ("identity", "leaky", "torch.relu")
    assert not re.search("torch.clamp|Edge:", str(comparison))
    assert comparison.to_json()["edge"] == {}
    assert "less torch.relu" in str(comparison)
    assert (comparison.verdict("identity").shift, comparison.verdict("identity").verdict) == (pytest.approx(1), "worse")
    with pytest.raises(ValueError, match=r"compare: replace must name clamp to compare its eras, got \('relu',\)"):
        comparison.edge()


@pytest.mark.slow
def test_a_clamp_inside_compiled_code_is_seen() -> None:
    def run(clamp: Clamp) -> float:
        f = torch.compile(lambda x: clamp(x, -1, 1) * 2, backend="aot_eager", fullgraph=True)
        for _ in range(3):
            x = torch.tensor([2.0], requires_grad=True)
            f(x).sum().backward()
        return float(x.grad[0])  # type: ignore[index]

    rows = pg.compare(run, rules=["identity"], seeds=1).values["the number"]
    assert (rows["identity"], rows["zero/open"]) == ((2.0,), (0.0,))


def spikes(step: Callable[[Tensor], Tensor], seed: int) -> float:
    """A weight that fires too often learns from the slope of its step alone."""
    torch.manual_seed(seed)
    x, weight = torch.randn(64), torch.full((), 2.0, requires_grad=True)
    for _ in range(40):
        (slope,) = torch.autograd.grad((step(x + weight).mean() + 0.5).square(), weight)
        weight = (weight - slope).detach().requires_grad_()
    return (step(x + weight).mean() + 0.5).square().item()


STEPS: dict[str, Any] = {
    "none": torch.sign,
    "arctan": partial(pg.sign, rule="arctan"),
    "tanh": pg.straight_through(torch.sign, lambda x: torch.tanh(x / 3)),
}


def test_each_variant_has_the_numbers_of_its_own_run() -> None:
    comparison = pg.compare(spikes, variants=STEPS, baseline="tanh", seeds=2)
    assert (comparison.variants, comparison.baseline, comparison.eras) == (tuple(STEPS), "tanh", ())
    for name, step in STEPS.items():
        assert comparison.values["the number"][name] == tuple(spikes(step, seed) for seed in range(2))
    comparison = pg.compare(spikes, variants=STEPS, seeds=10)
    assert comparison.verdict("arctan").verdict == comparison.verdict("tanh").verdict == "better"
    assert "torch.clamp" not in str(comparison)
    assert "less none" in str(comparison)


def test_a_rule_among_them_is_a_clamp_with_that_rule() -> None:
    variants = {
        "mine": lambda x, low, high: x * 3,
        "as it is": torch.clamp,
        "named": "inward",
        "made": pg.rules.leaky(0.25),
        "edged": "zero/closed",
    }
    comparison = pg.compare(lambda clamp, seed: slope_at(clamp, 2.0), variants=variants, seeds=2, better="higher")
    assert rows_of(comparison) == {
        "mine": (3.0,),
        "as it is": (0.0,),
        "named": (1.0,),
        "made": (0.25,),
        "edged": (0.0,),
    }


def test_names_of_eras_and_of_no_clamp_mean_nothing_here() -> None:
    variants = dict.fromkeys(("no clamp", "zero/closed", "zero/open"), torch.clamp)
    comparison = pg.compare(lambda clamp, seed: slope_at(clamp, 0.0), variants=variants, seeds=2)
    assert comparison.edges() == {}
    assert "The variants changed nothing: every variant below gave the numbers of no clamp" in str(comparison)
    assert comparison.eras == ()


def test_nothing_is_called_the_best_where_the_mean_disagrees() -> None:
    def run(f: object, seed: int) -> float:
        return (1.0 if f is torch.sin else 60.0 if seed == 3 else 0.5) + seed / 1000

    text = str(pg.compare(run, variants={"base": torch.sin, "v": torch.cos}, seeds=20))
    assert "\nOn the typical seed the best is v; by the mean v is worse than base.\n" in text, text
    assert "Best:" not in text

    def run_with_clamp(clamp: Clamp, seed: int) -> float:
        slope = slope_at(clamp, 1.0)  # 1 with the old edge
        return (60.0 if seed == 3 and slope else 1.0 - slope / 2) + seed / 1000

    edge = str(pg.compare(run_with_clamp, rules=[], seeds=20)).partition("Edge: ")[2].partition("\n")[0]
    assert edge.startswith("the old edge (torch<=2.13, zero/closed) is better than the new edge"), edge
    assert " on the typical seed, -0.5 [" in edge, edge
    assert edge.endswith(", but worse by the mean (+2.48)."), edge


@pytest.mark.parametrize("file", [None, "train.py"])
def test_a_function_of_a_notebook_travels_to_no_other_process(
    file: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(clamp: object) -> float:
        return 0.0

    main = ModuleType("__main__")
    run.__module__, run.__qualname__, main.run, main.__file__ = "__main__", "run", run, file  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    training = SimpleNamespace(function=run, where="compare", name="run", choice=SimpleNamespace(is_given=False))
    with contextlib.nullcontext() if file else pytest.raises(ValueError, match="run must be at the top of a module"):
        Training.check_can_be_sent(training)  # type: ignore[arg-type]
