"""compare(run): the numbers are those of the runs, the verdicts those of the test, and a wrong run gets our error."""

from __future__ import annotations

import functools
import importlib
import json
import math
import random
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import pseudograd as pg
from pseudograd.cases.kept import source_of
from pseudograd.cases.records import from_json
from pseudograd.paired import difference
from pseudograd.torch_eras import CLOSED_ERA, installed_era

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
    assert "\ninward       1                  worse, by 1\n" in str(found)
    assert "The seed changes nothing" in str(found)
    assert found.leaders() == ("zero/closed", "zero/open", "torch.clamp")


# --- verdicts ---------------------------------------------------------------------------------------------------------


def test_verdicts_are_those_of_the_paired_test_with_holm() -> None:
    found = pg.compare(noisy, rules=["inward", "leaky", "identity"], seeds=9, better="higher")
    rows = found.values["the number"]
    torch.manual_seed(4)
    assert rows["inward"][4] == 1 + torch.randn(()).item() / 4 + 4
    alone = difference(rows["inward"], rows["torch.clamp"])
    one = found.verdict("inward")
    # inward, identity and no clamp give the same numbers here, so that they are one comparison; leaky is the other one
    assert (alone.p, one.comparisons, one.p) == (2 / 512, 2, 2 * 2 / 512)
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
    assert "No difference: none of the 6 can be told apart from" in str(found)
    assert found.edge_verdict() == "no difference"


def test_too_few_seeds_are_said() -> None:
    text = str(pg.compare(noisy, rules=["inward", "leaky"], seeds=4))
    assert "too few seeds to tell: 4 that differ cannot give p below" in text
    assert "2 comparisons can tell nothing from fewer than 7 seeds." in text


def test_the_edge_is_judged_by_itself() -> None:
    def run(clamp: Clamp) -> float:
        return slope_at(clamp, 1.0) + torch.rand(()).item()

    for better, winner in (("higher", "the old edge"), ("lower", "the new edge")):
        found = pg.compare(run, rules=[], seeds=6, better=better)  # type: ignore[arg-type]
        assert found.edge_verdict() == winner
        assert (found.edge().p, found.edge().comparisons) == (2 / 64, 1)
        assert f"Edge: {winner} (torch{'<=2.13' if better == 'higher' else '>=2.14'}, zero/" in str(found)


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


class _Net(torch.nn.Module):
    def forward(self, clamp: Clamp, x: Tensor) -> Tensor:
        return clamp(x, 0, 1)


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
        "compare: run's 'loss' must return a number, or numbers by name, with zero/closed and seed 0, "
        "got a Tensor of torch.float32 and shape (2,). Return what",
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
    assert both.values["the number"]["torch.clamp"] == (0, 1)
    assert pg.compare(run, replace="round", seeds=1).variants == (
        *ERAS,
        "identity",
        "zero",
        "trust",
        "fourier",
        "torch.clamp",
    )


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
    assert "worse (p = 0.031)" in texts
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
    made: list[str] = []

    def run(clamp: Clamp, seed: int) -> float:
        if len(made) == 17:
            raise KeyboardInterrupt
        made.append(clamp.name)  # type: ignore[attr-defined]
        return noisy(clamp, seed)

    with pytest.raises(KeyboardInterrupt):
        pg.compare(run, rules=["inward"], seeds=6, keep=tmp_path / "kept")
    assert len(list((tmp_path / "kept").iterdir())) == 17
    made.append("again")
    asked: list[tuple[int, int]] = []
    found = pg.compare(
        run, rules=["inward"], seeds=6, keep=tmp_path / "kept", on_trial=lambda one, done, of: asked.append((done, of))
    )
    assert len(made) == 18 + 30 - 17
    assert asked == [(done, 30) for done in range(17, 30)]
    made.clear()
    made.extend(["fresh"] * 20)
    assert found.values == pg.compare(run, rules=["inward"], seeds=6).values
    damaged = next((tmp_path / "kept").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:50])
    count = len(made)
    assert pg.compare(run, rules=["inward"], seeds=6, keep=tmp_path / "kept").values == found.values
    assert len(made) == count + 1


def test_a_function_that_holds_another_number_or_function_is_another_run() -> None:
    def made(scale: float, of: Callable[..., Any] = torch.sin) -> Callable[..., Any]:
        return lambda clamp: of(clamp(torch.ones(1) * scale, 0, 1))

    class Held:
        def __init__(self, of: Callable[..., Any]) -> None:
            self.of = of

        def __call__(self, clamp: Clamp) -> Any:
            return self.of(clamp)

    sources = [
        source_of(one)
        for one in (
            made(1),
            made(2),
            made(1, torch.cos),
            noisy,
            slopes,
            Held(noisy),
            Held(slopes),
            torch.sin,
            torch.cos,
        )
    ]
    sources += [source_of(functools.partial(noisy, seed=1)), source_of(functools.partial(noisy, seed=2))]
    assert len(set(sources)) == len(sources)
    assert source_of(made(1)) == sources[0]
    assert source_of(Held(noisy)) == source_of(Held(noisy))


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


def test_it_needs_torch_alone() -> None:
    program = (
        "import sys, pseudograd as pg, torch\n"
        "def run(clamp, seed):\n"
        "    x = torch.rand(3, requires_grad=True)\n"
        "    clamp(x * 3, 0, 1).sum().backward()\n"
        "    return x.grad.sum().item()\n"
        "str(pg.compare(run, rules=['inward'], seeds=3)), str(pg.tune(run, budget=20, rules=['inward'])), torch\n"
        "heavy = {'matplotlib', 'rich', 'sklearn', 'scipy', 'jinja2', 'pseudograd.report'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
