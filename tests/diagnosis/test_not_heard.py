"""Steps of torch's own optimisers, which make half of the calls of a training step, are not heard. Nothing else is lost."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.count.recorder import Recorder, _is_looked_at
from pseudograd.torch_table.private import mode_stack

from .checks import Heard

OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "SGD, foreach": lambda parameters: torch.optim.SGD(parameters, 0.1, weight_decay=0.1, foreach=True),
    "Adam": lambda parameters: torch.optim.Adam(parameters, 0.1, weight_decay=0.1, amsgrad=True),
    "AdamW, fused": lambda parameters: torch.optim.AdamW(parameters, 0.1, fused=True),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, 0.01, centered=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, 0.1),
}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> None:
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


@pytest.fixture
def calls_of_recorder(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    before = Recorder.before_call

    def before_call(self: Recorder, func: Any, args: Any, kwargs: Any) -> int:
        names.append(getattr(func, "__name__", ""))
        return before(self, func, args, kwargs)

    monkeypatch.setattr(Recorder, "before_call", before_call)
    return names


@pytest.fixture(autouse=True)
def _the_stack_is_as_it_was() -> Iterator[None]:
    before = mode_stack()
    yield
    assert mode_stack() == before


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_step_is_not_heard_and_changes_nothing(name: str, calls_of_recorder: list[str]) -> None:
    plain, watched = net(), net()
    train(plain, OPTIMISERS[name](plain.parameters()))
    optimizer, zero_grad = OPTIMISERS[name](watched.parameters()), Optimizer.zero_grad
    with diagnose(watched) as d:
        train(watched, optimizer)
    assert Optimizer.zero_grad is zero_grad
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))
    assert sorted(set(calls_of_recorder)) == ["backward", "linear", "mean", "randn", "relu", "square"]
    assert d.errors == []
    assert d.structural == []  # that a weight decays is no cut of the program
    assert [(site.op, site.calls) for site in d.sites][-1] == ("relu", 4)
    calls_of_recorder.clear()
    with diagnose(watched):  # that changes gradients, and setting them to None does not
        optimizer.zero_grad(set_to_none=False)
    assert any("zero_" in name for name in calls_of_recorder)


def test_a_mode_of_the_program_sees_what_it_saw() -> None:
    calls = []
    for is_watched in (False, True):
        model, mode = net(), Heard()
        optimizer = OPTIMISERS["SGD"](model.parameters())
        with mode, diagnose(model) if is_watched else contextlib.nullcontext():
            mode.names.clear()  # a diagnosis that begins looks at the model
            optimizer.step()
            train(model, optimizer)
            calls.append(list(mode.names))
    assert calls[0] == calls[1]


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **kwargs or {})


def test_a_dispatch_mode_of_the_program_sees_what_it_saw() -> None:
    operators = []
    for context in (contextlib.nullcontext(), diagnose(sensitivity=True)):
        gain = nn.Parameter(torch.ones(2))
        with context, Operators() as mode:
            gain.clamp(0, 1).sum().backward()
        operators.append(mode.names)
    assert operators[0] == operators[1]


def step_with_a_closure(model: nn.Module, x: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


def step_with_a_hook(model: nn.Module, x: Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.register_step_pre_hook(lambda *_: model(x).square().mean().backward())
    optimizer.step()


class Own(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["model"](self.param_groups[0]["x"]).square().mean().backward()
        return super().step(closure)


def step_of_the_program(model: nn.Module, x: Tensor) -> None:
    optimizer = Own(model.parameters(), 0.1)
    optimizer.param_groups[0].update(model=model, x=x)
    optimizer.step()


@pytest.mark.parametrize("program", [step_with_a_closure, step_with_a_hook, step_of_the_program])
def test_code_of_the_program_in_a_step_is_heard(program: Callable[..., None], calls_of_recorder: list[str]) -> None:
    model, x = net(), torch.randn(8, 4)
    with diagnose(model) as d:
        program(model, x)
    assert {"linear", "relu"} <= set(calls_of_recorder)
    assert [(site.op, site.calls) for site in d.sites][-1] == ("relu", 1)
    assert d.errors == []


def test_after_a_step_that_raises(calls_of_recorder: list[str]) -> None:
    """Calls between the failed step and the next backward are not heard. They are neither counted nor given the location "?"."""
    model = net()
    failing = torch.optim.SparseAdam(model.parameters())
    with diagnose(model) as d:
        for _ in range(3):
            model(torch.randn(8, 4)).square().mean().backward()
            with pytest.raises(RuntimeError, match="does not support dense gradients"):
                failing.step()
        calls_of_recorder.clear()
        train(model, torch.optim.SGD(model.parameters(), 0.1), 3)
    assert "relu" in calls_of_recorder
    assert all(site.where.startswith("tests") or "torch" in site.where for site in d.sites)
    assert sum(site.calls for site in d.sites if site.op == "relu") in (3, 6)  # 6 where torch says what it makes
    assert d.errors == []


def test_a_parameter_that_had_a_gradient_in_the_closure_of_a_step_is_looked_at_no_more() -> None:
    used, unused = (nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = torch.optim.SGD([used, unused], 0.1)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = used.square().sum()
        loss.backward()
        return loss

    with diagnose() as d:
        for _ in range(2):
            optimizer.step(closure)
    (known,) = d._recorder.optimisers._records.values()
    assert ([leaf.tensor() is unused for leaf in known.pending], known.steps) == ([True], 2)
    leaf = d._recorder.leaves.leaf_of(used)
    assert (bool(leaf.step_saw_gradient), bool(leaf.step_missed_gradient), leaf.is_stepped) == (True, False, True)


def test_entries_are_looked_at_in_ever_fewer_backwards() -> None:
    assert [backward for backward in range(1, 600) if _is_looked_at(backward)] == [3, 8, 32, 128, 512]
