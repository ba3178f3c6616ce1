"""Which steps a callback diagnoses, and that it leaves nothing behind."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

from pseudograd.integrations.sampling import Sampler


def _train(
    sampler: Sampler, steps: int, accumulate: int = 1, net: nn.Module | None = None
) -> list[tuple[int, dict[str, float]]]:
    """As a trainer drives it: (step, numbers) for all that was logged."""
    net = net or nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    logged: list[tuple[int, dict[str, float]]] = []
    done = 0
    for batch in range(steps * accumulate):
        sampler.begin_batch(done, net)
        net(torch.ones(1, 2)).sum().backward()
        if (batch + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            done += 1
        sampler.end_batch(done, lambda numbers, done=done: logged.append((done, numbers)))
        if sampler.stops:
            break
    sampler.close()
    return logged


def _sampler(every: int = 3, window: int = 1, stop_on: str | tuple[str, ...] = ()) -> Sampler:
    return Sampler(every, window=window, stop_on=stop_on)


def _diagnosed_steps(sampler: Sampler, start: int, end: int, each: int = 1) -> list[int]:
    """The diagnosed steps if each batch takes `each` steps of the optimiser."""
    net, diagnosed = nn.Linear(2, 1), []
    for step in range(start, end, each):
        sampler.begin_batch(step, net)
        if sampler._open is not None:
            diagnosed.append(step)
        sampler.end_batch(step + each, lambda numbers: None)
    return diagnosed


@pytest.mark.parametrize(
    ("every", "window", "steps", "logged"),
    [(3, 1, 7, [1, 4, 7]), (3, 2, 7, [2, 5]), (1, 1, 3, [1, 2, 3]), (2, 2, 5, [2, 4]), (100, 1, 4, [1])],
)
def test_the_steps_that_are_diagnosed(every: int, window: int, steps: int, logged: list[int]) -> None:
    diagnosed = _train(_sampler(every, window), steps)
    assert [step for step, _ in diagnosed] == logged
    assert [numbers["pseudograd/backwards"] for _, numbers in diagnosed] == [float(window)] * len(logged)


def test_the_batches_of_one_accumulated_step_are_diagnosed_together() -> None:
    diagnosed = _train(_sampler(2), 4, accumulate=3)
    assert [(step, numbers["pseudograd/backwards"]) for step, numbers in diagnosed] == [(1, 3.0), (3, 3.0)]


@pytest.mark.parametrize(
    ("every", "each", "begun"),
    [(3, 2, [0, 4, 6, 10]), (100, 3, [0, 102, 201, 300]), (4, 2, [0, 4, 8, 12]), (1, 2, [0, 2, 4, 6])],
)
def test_a_batch_may_take_several_steps(every: int, each: int, begun: list[int]) -> None:
    """As in Lightning's manual optimisation with two optimisers, each of which counts."""
    assert _diagnosed_steps(_sampler(every), 0, 400, each)[:4] == begun


@pytest.mark.parametrize(("start", "begun"), [(5, [6, 9]), (6, [6, 9]), (7, [9, 12])])
def test_a_training_that_goes_on_keeps_its_steps(start: int, begun: list[int]) -> None:
    sampler = _sampler(3)
    for _ in range(2):  # and again, after it has ended
        assert _diagnosed_steps(sampler, start, 14)[:2] == begun
        sampler.end()


class Unused(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 1)
        self.unused = nn.Parameter(torch.ones(3))


def test_the_training_stops_at_a_finding_of_stop_on_with_a_warning() -> None:
    sampler = _sampler(1, stop_on=("cut>0.5", "starved"))
    with pytest.warns(UserWarning, match="the training is stopped, as asked: starved"):
        assert len(_train(sampler, 5, net=Unused())) == 1
    assert sampler.stops
    assert [finding.parameter for finding in sampler.last.starved] == ["unused"]


def test_the_training_goes_on_without_such_a_finding() -> None:
    sampler = _sampler(1, stop_on="starved")
    assert len(_train(sampler, 3)) == 3
    assert not sampler.stops


def test_a_mode_is_entered_only_inside_a_window_and_close_ends_it() -> None:
    sampler, net = _sampler(3), nn.Linear(2, 1)
    for step in range(3):
        sampler.begin_batch(step, net)
        assert bool(_get_current_function_mode_stack()) == (step == 0)
        sampler.end_batch(step + 1, lambda numbers, step=step: None if step == 0 else pytest.fail("nothing is logged"))
    sampler.begin_batch(3, net)
    assert _get_current_function_mode_stack()
    sampler.close()
    sampler.close()
    assert not _get_current_function_mode_stack()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"every_n_steps": 0}, r"Sampler: every_n_steps must be a number of steps, 1 or more, got 0"),
        ({"every_n_steps": True}, r"every_n_steps must be a number of steps"),
        ({"every_n_steps": 2, "window": 3}, r"window must not exceed every_n_steps=2, got 3"),
        ({"stop_on": "nonsense"}, r"be a finding's code"),
        ({"detail": "half"}, r"detail must be 'full' or 'counts'"),
    ],
)
def test_wrong_arguments_are_told_before_any_training(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Sampler(**arguments)


def test_the_sensitivity_is_among_the_numbers() -> None:
    p = torch.nn.Parameter(torch.zeros(2))
    net = torch.nn.ParameterDict({"gain": p})
    sampler = Sampler(1, sensitivity=True)
    numbers_logged: list[dict[str, float]] = []
    sampler.begin_batch(0, net)
    (p.abs() + p).sum().backward()
    sampler.end_batch(1, numbers_logged.append)
    assert numbers_logged[0]["pseudograd/sensitivity/abs"] == 1.0
    assert numbers_logged[0]["pseudograd/sensitivity/abs/gain"] == 1.0
