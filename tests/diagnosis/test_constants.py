"""The thresholds of the findings: the answer changes between a number just below a threshold and one at it or just above."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import pseudograd as pg
from pseudograd import diagnose
from pseudograd.diagnosis.count.norms import spacing
from pseudograd.diagnosis.count.sensitivity import Sensitivity
from pseudograd.diagnosis.count.stalls import Batch, ParameterSteps
from pseudograd.diagnosis.count.values import Climb, Values
from pseudograd.diagnosis.judge.dead_units import are_dead, calm_lines
from pseudograd.diagnosis.judge.findings import convention, stalled
from pseudograd.diagnosis.judge.norms import find_fall
from pseudograd.diagnosis.records import Partly
from pseudograd.listen.frames import NOWHERE
from pseudograd.torch_table.forms import SPELLINGS

from .checks import codes, diagnosed

# --- norms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("falls", "is_a_fall"),
    [
        pytest.param([0.595] * 10, False, id="5.95 factors of ten"),
        pytest.param([0.605] * 10, True, id="6.05 factors of ten"),
        pytest.param([3.0, *[0.54] * 9], False, id="4.86 beside the largest"),
        pytest.param([3.0, *[0.57] * 9], True, id="5.13 beside the largest"),
        pytest.param([2.6, 2.6, 2.6, 0.0], False, id="3 falls"),
        pytest.param([2.6, 2.6, 1.3, 1.3], True, id="4 falls"),
        pytest.param([2.6, 2.6, 2.6, 0.29], False, id="a small fall of 0.29"),
        pytest.param([2.6, 2.6, 2.6, 0.31], True, id="a small fall of 0.31"),
    ],
)
def test_a_gradient_vanishes_by_a_sum_of_falls(falls: Sequence[float], is_a_fall: bool) -> None:
    layers = [(f"layer {at}", 10.0 ** -sum(falls[:at])) for at in range(len(falls) + 1)]
    assert (find_fall(layers) is not None) == is_a_fall


# --- dead units -------------------------------------------------------------------------------------------------------


def _partly(dead: int, units: int, backwards: int = 3, chances: int = 128, **site: Any) -> Partly:
    cause: Any = SimpleNamespace(
        **{"is_own": False, "op": "relu", "family": "relu", "cut_share": 1.0, "elements": chances * units, **site}
    )
    return Partly("weight", (units, 2), 2 * units, 2 * dead, units, dead, backwards, cause, False)


@pytest.mark.parametrize(
    ("partly", "is_dead"),
    [
        (_partly(74, 100), False),
        (_partly(75, 100), True),
        (_partly(7, 7), False),
        (_partly(8, 8), True),
        (_partly(90, 100, backwards=2), False),
        (_partly(90, 100, backwards=3), True),
        (_partly(90, 100, chances=127), False),
        (_partly(90, 100, chances=128), True),
        (_partly(80, 100, cut_share=0.59), False),
        (_partly(80, 100, cut_share=0.61), True),
        (_partly(80, 100, family="where"), False),
    ],
)
def test_three_quarters_of_enough_units_are_a_finding(partly: Partly, is_dead: bool) -> None:
    assert are_dead(partly) == is_dead


@pytest.mark.parametrize(("count", "ends"), [(4, "of weight"), (5, "of weight and of 1 more")])
def test_a_calm_line_has_four_parameters(count: int, ends: str) -> None:
    assert [len(calm_lines([_partly(dead, 100)])) for dead in (49, 50)] == [0, 1]  # for half of the entries
    (line,) = calm_lines([_partly(5, 7)] * count)
    assert line.count("10 of 14 entries of weight") == 4
    assert line.endswith(ends)


# --- steps that rounding swallows -------------------------------------------------------------------------------------


def _steps(count: int = 1) -> ParameterSteps:
    return ParameterSteps(torch.ones(count), None)


@pytest.mark.parametrize(("looks", "ratio", "is_noise"), [(9, 1.0, False), (10, 1.9, True), (10, 2.0, False)])
def test_gradients_are_noise_if_their_sum_stays_small(looks: int, ratio: float, is_noise: bool) -> None:
    steps = _steps()
    steps.looks = looks
    steps.samples.squares.fill_(1 / ratio)
    steps.samples.total.fill_(1.0)
    assert steps.is_noise == is_noise


def _batch(steps: ParameterSteps) -> Batch:
    batch = Batch(torch.float32)
    batch._join([steps])
    return batch


_ONE = float(spacing(torch.ones(1)))  # the distance from 1 to the next number


@pytest.mark.parametrize(
    ("pull", "way", "is_strong"),
    [
        pytest.param(1e-4, None, False, id="faint beside its weight"),
        pytest.param(1.1e-4, None, True, id="a ten thousandth of its weight"),
        pytest.param(2**-20, 256 * _ONE, False, id="256 numbers to go"),
        pytest.param(2**-20, 257 * _ONE, True, id="257 numbers to go"),
        pytest.param(2**-20, 99.0, True, id="99 weights to go"),
        pytest.param(2**-20, 100.0, False, id="100 weights to go"),
        pytest.param(0.0, 1.0, False, id="no gradient"),
    ],
)
def test_a_faint_gradient_is_no_reason_to_move(pull: float, way: float | None, is_strong: bool) -> None:
    """way: how far a step leads until the loss is 0."""
    loss = None if way is None else torch.tensor(pull * way * 4096)
    pulls, batch = torch.full((1024,), pull), _batch(_steps(4096))  # each stands for four entries
    assert batch._are_strong(pulls, torch.ones(1024), loss).tolist() == [is_strong] * 1024


@pytest.mark.parametrize(("decay", "asks"), [(0.94, True), (0.96, False)])
def test_decay_and_gradient_are_in_balance(decay: float, asks: bool) -> None:
    tensor, steps = torch.full((1,), -1.0), _steps()
    tensor.grad = torch.ones(1)
    batch = _batch(steps)
    batch.before_step([steps], [tensor], {"lr": 0.1, "weight_decay": decay}, None)
    assert batch._wants_step.tolist() == [asks]


@pytest.mark.parametrize(
    ("expected", "came", "is_random"),
    [
        (4.9, 0.0, False),
        (5.0, 0.0, False),
        (10.0, 2.9, False),
        (10.0, 3.0, True),
        (10.0, 30.0, True),
        (10.0, 31.0, False),
        (1.0, 0.9, False),
        (1.0, 1.0, True),
    ],
)
def test_random_rounding_makes_as_many_moves_as_it_should(expected: float, came: float, is_random: bool) -> None:
    batch = Batch(torch.bfloat16)
    batch._expected_moves, batch._seen_moves = expected, came
    assert (batch.rounds_at_random, batch._is_undecided) == (is_random, expected < 5)


@pytest.mark.parametrize(
    ("moved", "size", "is_random"),
    [(0, None, False), (31, None, False), (32, None, True), (32, 0.1, False), (32, float("nan"), True)],
)
def test_random_rounding_moves_half_as_many_entries_as_if_each_move_met_any(
    moved: int, size: float | None, is_random: bool
) -> None:
    """100 moves among 100 entries would meet 63 of them. size: of a step, if the optimiser is known."""
    steps = _steps(100)
    steps.is_known, steps.samples.had_gradient[:] = size is not None, True
    if size is not None:
        steps.samples.sizes[1:] = 0.1
        steps.samples.sizes[0] = size
    if moved:
        steps.samples.moves[:moved] = 1
        steps.samples.moves[0] = 101 - moved
    assert steps.moves_on_average == is_random


@pytest.mark.parametrize(("size", "expected"), [(0.24, 0.24), (0.25, 0.0)])
def test_a_quarter_of_the_distance_is_a_small_step(size: float, expected: float) -> None:
    steps = _steps()
    batch = _batch(steps)
    batch.samples.sizes.fill_(size)
    batch._wants_step = torch.ones(1, dtype=torch.bool)
    batch._compare(torch.ones(1), torch.ones(1, dtype=torch.bool), {"lr": 0.1})
    assert batch._expected_moves == pytest.approx(expected)


@pytest.mark.parametrize(
    ("steps", "had", "still", "size", "is_stalled"),
    [
        (10, 100, 50, 100, False),
        (10, 100, 51, 100, True),
        (9, 100, 100, 100, False),
        (10, 7, 7, 100, False),
        (10, 8, 8, 100, True),
        (10, 2, 2, 2, True),
    ],
)
def test_most_of_enough_entries_stand_still(steps: int, had: int, still: int, size: int, is_stalled: bool) -> None:
    parameter = _steps(size)
    parameter.steps, parameter.is_known = steps, True
    parameter.samples.sizes.fill_(0.1)
    parameter.samples.had_gradient[:had] = True
    parameter.samples.moves[still:] = 1
    evidence: Any = SimpleNamespace(
        stalls=SimpleNamespace(parameters=lambda: [parameter]),
        deliberate=SimpleNamespace(parameter=lambda name: False),
        recorder=SimpleNamespace(optimisers=SimpleNamespace(all=[])),
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stalled, "_report", lambda dtype, rows, moving, evidence: rows)
        reports = list(stalled._find(evidence))
    assert bool(reports) == is_stalled


# --- shares of what arrives -------------------------------------------------------------------------------------------


_fake = torch.fake_quantize_per_tensor_affine


@pytest.mark.parametrize(
    ("code", "usual", "others", "least", "size", "f"),
    [
        pytest.param("cut", 0.5, 2.0, 50, 1000, lambda x: x.clamp(0, 1), id="a twentieth is cut"),
        pytest.param(
            "cut", 0.5, 99.0, 500, 1000, lambda x: _fake(x, 0.1, 0, -128, 127), id="half of what a quantiser gets"
        ),
        pytest.param(
            "dead", 1.0, -1.0, 9990, 10_000, lambda x: torch.relu(x).tanh(), id="all but a thousandth is dead"
        ),
        pytest.param("edge", 0.5, 1.0, 10, 10_000, lambda x: x.clamp(0, 1), id="a thousandth stands at a bound"),
    ],
)
def test_a_share_is_a_finding_from_its_limit_on(
    code: str, usual: float, others: float, least: int, size: int, f: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    for count in (least - 1, least):
        x = torch.full((size,), usual)
        x[:count] = others
        with diagnose() as d:
            f(nn.Parameter(x)).sum().backward()
        assert (code in codes(d)) == (count == least)


@pytest.mark.parametrize(("starving", "is_narrow"), [(9, False), (10, True)])
def test_a_window_is_too_narrow_for_half_of_the_thresholds(starving: int, is_narrow: bool) -> None:
    threshold = nn.Parameter(torch.full((20,), 0.3))
    x = torch.full((5, 20), 0.3)
    x[:, :starving] += torch.arange(1, starving + 1)
    d = diagnosed(lambda: pg.jumprelu(x, threshold, bandwidth=0.01).square().sum(), times=3)
    narrow = [finding for finding in d.findings if "too narrow" in finding.cause]
    assert bool(narrow) == is_narrow
    if is_narrow:
        assert d.findings == narrow
        # half of the distances are 0, the others 1 to 10: nine of ten thresholds are nearer than 8.1
        assert "bandwidth=16 " in narrow[0].next_step


@pytest.mark.parametrize(
    ("longest", "last", "runs_away"), [(8, 1.0, False), (9, 1.0, True), (9, 0.49, False), (9, 0.5, True)]
)
def test_a_value_runs_away_in_ten_steps(longest: int, last: float, runs_away: bool) -> None:
    x = torch.zeros(1)
    values = Values(SPELLINGS[torch.clamp], NOWHERE, x, 0.0, 1.0)
    climb: Any = SimpleNamespace(longest=longest, first=1.0, last=1.0 + last, lowest=1.0, highest=2.0)
    climb.update = lambda: climb
    values.climb = climb
    assert values.runs_away == runs_away


@pytest.mark.parametrize(
    ("x", "low", "high", "counts", "text"),
    [
        ([0.0, 1.0], 0.0, 1.0, (1, 1, True), "the bound 0 or 1"),
        ([0.0, 0.5], 0.0, 1.0, (1, 0, False), "the bound 0"),
        ([1.0, 1.0], None, 1.0, (0, 2, True), "the bound 1"),
        ([1.0, 1.0], 1.0, 1.0, (2, 0, True), "the bound 1"),
        ([1.0, 1.0], torch.ones(2), None, (2, 0, True), "a bound"),
        ([], 0.0, 1.0, (0, 0, False), "a bound"),
    ],
)
def test_values_at_a_bound_are_counted(x: list[float], low: Any, high: Any, counts: tuple[int, ...], text: str) -> None:
    values = Values(SPELLINGS[torch.clamp], NOWHERE, torch.tensor(x), low, high)
    assert (int(values.at_low), int(values.at_high), values.starts_on_a_bound) == counts
    assert (values.bounds_text, values.has_tensor_bound) == (text, isinstance(low, torch.Tensor))
    assert values.pair == f"{'low' if isinstance(low, torch.Tensor) else low}, {high}"
    values.add(torch.tensor(x), low, high)
    values.add(torch.tensor([2.0, -1.0, 0.5]), None if low is None else 0.0, high)
    values.end_step(True)
    below, above = low is not None, high is not None
    assert values.outside == below + above


def test_the_first_of_the_longest_stretches_of_rises_counts() -> None:
    climb = Climb()
    rises = (*(0, 1, 2, 3, 4, 4, 5), *(-1, 0, 1, 2, 3, 3, 4))  # two stretches of six steps with five rises
    for number in (*rises, *(-5, -4, -3, -2, -1, -9, -8, -7)):  # one of seven steps, which ends below its start
        climb.add(torch.tensor(float(number)))
    assert climb.update() is climb
    assert (climb.longest, climb.first, climb.last, climb.lowest, climb.highest) == (6, 0.0, 5.0, -9.0, 5.0)


def test_two_threads_end_a_step_of_one_clamp_at_once() -> None:
    values = Values(SPELLINGS[torch.clamp], NOWHERE, torch.zeros(1), 0.0, 1.0)
    values.add(torch.ones(1), 0.0, 1.0)

    class OtherThread:
        def __bool__(self) -> bool:
            values.end_step(True)
            return True

    values.end_step(OtherThread())
    assert not values.runs_away


# --- conventions ------------------------------------------------------------------------------------------------------


def _shares(*shares: float, moved: float = 1.0, parameter: str | None = None) -> Sensitivity:
    steps = tuple(enumerate(shares))
    return Sensitivity("abs", "jax", "a.py:1", parameter, 0.0, shares[0], shares[-1], 1.0, (1.0, 1.0), steps, moved)


@pytest.mark.parametrize(
    ("line", "parameters", "verdict"),
    [
        (_shares(*[0.09] * 9), [], ""),
        (_shares(*[0.11] * 9), [], "some"),
        (_shares(0.2, *[0.09] * 9), [], "falls"),
        (_shares(*[0.49] * 9), [], "some"),
        (_shares(*[0.51] * 9), [], "decides"),
        (_shares(*[0.51] * 4), [], "unknown"),
        (_shares(*[0.51] * 5), [], "decides"),
        (_shares(*[0.2] * 9), [_shares(*[0.51] * 9, moved=1.1e-3, parameter="p")], "some"),
        (_shares(*[0.2] * 9), [_shares(*[0.51] * 9, moved=0.9e-3, parameter="p")], "decides"),
        (_shares(*[0.2] * 9), [_shares(*[0.49] * 9, moved=0.0, parameter="p")], "some"),
        (_shares(*[0.05] * 6), [_shares(*[0.5] * 6, moved=0.0, parameter="p")], "decides"),
        (_shares(*[0.05] * 6), [_shares(*[0.9] * 6, moved=0.5, parameter="p")], "some"),
        (_shares(*[0.05] * 6), [_shares(*[0.2] * 6, moved=0.0, parameter="p")], "falls"),
    ],
)
def test_a_convention_decides_by_its_share(line: Sensitivity, parameters: list[Sensitivity], verdict: str) -> None:
    assert convention.verdict(line, parameters) == verdict
