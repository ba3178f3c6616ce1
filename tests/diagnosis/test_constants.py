"""The thresholds of the findings: the answer changes between a number just below a threshold and one at it or just above."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pseudograd as pg
from pseudograd import diagnose
from pseudograd.diagnosis.count.norms import spacing
from pseudograd.diagnosis.count.sensitivity import Sensitivity
from pseudograd.diagnosis.count.stalls import Batch, ParameterSteps
from pseudograd.diagnosis.count.values import Climb, Values
from pseudograd.diagnosis.judge.findings import convention, stalled
from pseudograd.listen.frames import NOWHERE
from pseudograd.torch_table.forms import SPELLINGS

from ..written import assert_written
from .checks import codes, diagnosed

# --- steps that rounding swallows -------------------------------------------------------------------------------------


def _steps(count: int = 1) -> ParameterSteps:
    return ParameterSteps(torch.ones(count), None)


def is_noise(looks: int, ratio: float) -> bool:
    """If so many gradients are noise, whose squares are this many times smaller than the square of their sum."""
    steps = _steps()
    steps.looks = looks
    steps.samples.squares.fill_(1 / ratio)
    steps.samples.total.fill_(1.0)
    return steps.is_noise


def _batch(steps: ParameterSteps) -> Batch:
    batch = Batch(torch.float32)
    batch._join([steps])
    return batch


def is_strong(pull: float, way: float | None = None) -> bool:
    """If a gradient of this size is a reason to move a weight of 1. way: how far a step leads until the loss is 0."""
    loss = None if way is None else torch.tensor(pull * way * 4096)
    pulls, batch = torch.full((1024,), pull), _batch(_steps(4096))  # each stands for four entries
    (answer,) = set(batch._are_strong(pulls, torch.ones(1024), loss).tolist())
    return answer


def wants_step(decay: float) -> list[bool]:
    """If a weight of -1 with a gradient of 1 asks for a step under this decay."""
    tensor, steps = torch.full((1,), -1.0), _steps()
    tensor.grad = torch.ones(1)
    batch = _batch(steps)
    batch.before_step([steps], [tensor], {"lr": 0.1, "weight_decay": decay}, None)
    return batch._wants_step.tolist()


def rounding(expected: float, came: float) -> str:
    """What is said of an optimiser that rounds, after so many expected moves, of which so many came."""
    batch = Batch(torch.bfloat16)
    batch._expected_moves, batch._seen_moves = expected, came
    kind = "at random" if batch.rounds_at_random else "to the nearest"
    return f"{kind}, undecided" if batch._is_undecided else kind


def moves_on_average(moved: int, size: float | None) -> bool:
    """If 100 moves among 100 entries, which would meet 63, meet so many. size: of a step, if the optimiser is known."""
    steps = _steps(100)
    steps.is_known, steps.samples.had_gradient[:] = size is not None, True
    if size is not None:
        steps.samples.sizes[1:] = 0.1
        steps.samples.sizes[0] = size
    if moved:
        steps.samples.moves[:moved] = 1
        steps.samples.moves[0] = 101 - moved
    return steps.moves_on_average


def expected_moves(size: float) -> float:
    """The moves that are expected of a step of this size, where the next number is 1 away."""
    steps = _steps()
    batch = _batch(steps)
    batch.samples.sizes.fill_(size)
    batch._wants_step = torch.ones(1, dtype=torch.bool)
    batch._compare(torch.ones(1), torch.ones(1, dtype=torch.bool), {"lr": 0.1})
    return round(float(batch._expected_moves), 6)


def is_stalled(steps: int, had: int, still: int, size: int) -> bool:
    """If a parameter stalls, of whose entries so many had a gradient, and so many stood still."""
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
        return bool(list(stalled._find(evidence)))


# --- shares of what arrives -------------------------------------------------------------------------------------------


def least(code: str, usual: float, others: float, size: int, around: int, f: Callable[[Tensor], Tensor]) -> int | None:
    """The least count of others beside the usual values that has this finding, of those from around - 1 on; None if all have."""
    has_finding = []
    for count in (around - 1, around):
        x = torch.full((size,), usual)
        x[:count] = others
        with diagnose() as d:
            f(nn.Parameter(x)).sum().backward()
        has_finding.append(code in codes(d))
    return around if has_finding == [False, True] else None


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


def runs_away(longest: int, last: float) -> bool:
    """If values between -1 and 2 run away, which rose so many times by this much."""
    values = Values(SPELLINGS[torch.clamp], NOWHERE, torch.zeros(1), 0.0, 1.0)
    climb: Any = SimpleNamespace(longest=longest, first=1.0, last=1.0 + last, lowest=1.0, highest=2.0)
    climb.update = lambda: climb
    values.climb = climb
    return values.runs_away


def values_at(x: list[float], low: Any, high: Any) -> str:
    """What is counted at the bounds of a clamp."""
    values = Values(SPELLINGS[torch.clamp], NOWHERE, torch.tensor(x), low, high)
    starts, at = "starts on " * values.starts_on_a_bound, f"{int(values.at_low)} {int(values.at_high)}"
    assert values.has_tensor_bound == isinstance(low, Tensor)
    assert values.pair == f"{'low' if isinstance(low, Tensor) else low}, {high}"
    values.add(torch.tensor(x), low, high)
    values.add(torch.tensor([2.0, -1.0, 0.5]), None if low is None else 0.0, high)
    values.end_step(True)
    assert values.outside == (low is not None) + (high is not None)
    return f"{at} {starts}{values.bounds_text}"


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


def verdict(line: Sensitivity, *parameters: Sensitivity) -> str:
    return convention.verdict(line, list(parameters)) or "nothing"


def shares(*shares: float, moved: float = 1.0, parameter: str | None = None) -> Sensitivity:
    steps = tuple(enumerate(shares))
    return Sensitivity("abs", "jax", "a.py:1", parameter, 0.0, shares[0], shares[-1], 1.0, (1.0, 1.0), steps, moved)


# --- all of these -----------------------------------------------------------------------------------------------------


def test_the_written_answers_change_at_their_thresholds() -> None:
    names = {"ONE": float(spacing(torch.ones(1))), "fake_quantize": torch.fake_quantize_per_tensor_affine}
    assert_written(Path(__file__).with_name("constants.txt"), {**globals(), **names})
