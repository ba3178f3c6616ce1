"""Trainings side by side: a convention decides where a training under the other one is seen to end elsewhere, and nowhere else."""

import contextlib
import functools
import itertools
import json
import math
import re
import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pseudograd import diagnose, pin_edge
from pseudograd.diagnosis import run as command
from pseudograd.diagnosis.processes import fields_of
from pseudograd.diagnosis.side_by_side import compare_losses, train_side_by_side
from pseudograd.listen.program.follow import Part, Run
from pseudograd.listen.program.signals import Stopped
from pseudograd.rewrite.context import Rewriting
from pseudograd.torch_table.eras import CLOSED_ERA, installed_era

from ..commands import answer

Training = Callable[[list[float]], None]  # it adds its losses to a list
IS_CLOSED = installed_era() == CLOSED_ERA


def descend(losses: list[float], loss_of: Callable[[], torch.Tensor], rate: float, steps: int, *leaves: Any) -> None:
    optimizer = torch.optim.SGD(leaves, rate)
    for _ in range(steps):
        loss = loss_of()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


def deviation(losses: list[float]) -> None:
    """At a bound, from which only one of the conventions leads away."""
    log_std, y = nn.Parameter(torch.tensor(-2.0)), torch.linspace(-2, 2, 64)
    loss_of = lambda: ((s := log_std.clamp(-2.0, 2.0)) + 0.5 * (y / s.exp()) ** 2).mean()  # noqa: E731
    descend(losses, loss_of, 0.003, 30, log_std)


def gain(losses: list[float], steps: int = 20, target: float = 1.0) -> None:
    p = nn.Parameter(torch.zeros(1))
    descend(losses, lambda: ((p.abs() - target) ** 2).sum(), 0.1, steps, p)


def gate(losses: list[float]) -> None:
    """The layer beside the gate learns what the gate does not."""
    torch.manual_seed(0)
    g, w, x = nn.Parameter(torch.ones(4)), nn.Parameter(0.1 * torch.randn(4, 8)), torch.randn(64, 8)
    y = x @ (0.5 * torch.randn(8, 4))
    loss_of = lambda: ((nn.functional.hardtanh(g, 0.0, 1.0) * (x @ w.T) - y) ** 2).mean()  # noqa: E731
    descend(losses, loss_of, 0.2, 40, g, w)


def unseeded(losses: list[float]) -> None:
    gain(losses, target=next(_random))


def failing(losses: list[float]) -> None:
    """It stops under the other convention."""
    p = nn.Parameter(torch.zeros(1))

    def loss_of() -> torch.Tensor:
        loss = ((p.abs() - 1) ** 2).sum()
        assert loss > 0.5
        return loss

    descend(losses, loss_of, 0.1, 20, p)


def inside_a_loss(losses: list[float]) -> None:
    """No pin reaches the abs."""
    p = nn.Parameter(torch.zeros(2))
    descend(losses, lambda: nn.functional.l1_loss(p, torch.zeros(2)), 0.1, 20, p)


def many_lines(losses: list[float]) -> None:
    a, b, c, d, e = leaves = [nn.Parameter(torch.zeros(())) for _ in range(5)]

    def loss_of() -> torch.Tensor:
        y = a.abs()
        y = y + b.abs()
        y = y + c.abs()
        y = y + d.abs()
        return (y + e.abs() - 1) ** 2

    descend(losses, loss_of, 0.02, 20, *leaves)


_random = itertools.count(1.0)


def train(training: Training, context: Any = None) -> tuple[list[float], int]:
    """The losses, and the exit status."""
    losses: list[float] = []
    with contextlib.suppress(AssertionError), context or contextlib.nullcontext():
        training(losses)
        return losses, 0
    return losses, 1


def run_of(losses: list[float], status: int = 0, is_pinned: bool = True, **fields: Any) -> Run:
    content = {"is_scaled": False, "backwards": len(losses), **fields, "losses": losses, "is_pinned": is_pinned}
    return Run(status, (Part(1, None, True, content),))


def at_line(where: str, **pin: Any) -> Rewriting:
    context = pin_edge(**pin)
    context.lines = [where]
    return context


@functools.cache
def conventions(training: Training, steps: int | None = None) -> list[Any]:
    """The findings after the training ran beside itself, here in one process."""

    def run_again(pin: Any, where: str, count: int) -> Run:
        context = None if pin is None else at_line(where, **dict([pin]))
        losses, status = train(training, context)
        return run_of(losses[:count], status, context is None or bool(context.report().rewritten))

    with diagnose(sensitivity=True) as d:
        losses, status = train(training)
    done = train_side_by_side(run_of(losses, status, **fields_of(d)), run_again, steps)
    return [finding for finding in done.parts[0].content["findings"] if finding.code == "convention"]


def evidence(training: Training, steps: int | None = None) -> str:
    (finding,) = conventions(training, steps)
    return str(finding.evidence.partition(". ")[2])


def test_a_training_that_ends_elsewhere_is_decided() -> None:
    text = re.sub(r"0\.00020\d+", "0.000208", evidence(gain))
    assert text == (
        "It decides this training: its share stays high, and leaves[0] does not move; the loss of the last backward is 1 as it is "
        "(in two runs, to the bit) "
        "and 0.000208 under pin_edge(abs='jax') at this line, and apart in each of the last 5 backward passes"
    )
    assert evidence(gain, steps=20).startswith("It decides the first 20 steps: ")


def test_another_pin_is_advised_only_where_the_training_ends_better_under_it() -> None:
    """On one torch that is so, on the other one it ends worse."""
    (finding,) = conventions(deviation)
    assert "It decides this training" in finding.evidence
    end = "on every torch" if IS_CLOSED else "beside it, from more seeds, before you choose"
    assert finding.next_step.endswith(end)


def test_a_training_that_ends_the_same_is_not_decided() -> None:
    text = evidence(gate)
    assert text.startswith("It did not decide this training, though ")
    assert "as it is (in two runs, to the bit) and" in text
    assert "Train with" not in conventions(gate)[0].next_step


@pytest.mark.parametrize(
    ("training", "reason"),
    [
        (
            unseeded,
            r"compared, as a second run as it is begins with a loss of \d+, not \d+, so the program does not repeat",
        ),
        (failing, r"compared, as the program under .* at this line ended with status 1 after 2 of 20 backward passes"),
        (inside_a_loss, "compared, as no pin reaches this call"),
        (functools.partial(gain, steps=6), "compared, as it needs 8 backward passes, and there were 6"),
    ],
)
def test_nothing_is_decided_where_nothing_can_be_compared(training: Training, reason: str) -> None:
    text = evidence(training)
    assert text.startswith("It may decide this training: ")
    assert re.search(reason, text)


def test_each_line_without_a_training_of_its_own_has_a_reason() -> None:
    texts = [finding.evidence for finding in conventions(many_lines)]
    assert len(texts) == 5
    assert sum("only the 4 lines with the largest shares get a training" in text for text in texts) == 1


FLAT, FALLING = [1.0] * 40, [8.0, *[0.01] * 39]
CASES: dict[str, tuple[list[float], list[float], list[float], bool | None]] = {
    "the same": (FLAT, FLAT, FLAT, False),
    "a little more than a hundredth": (FLAT, FLAT, [1.011] * 40, True),
    "a little less than a hundredth": (FLAT, FLAT, [1.009] * 40, False),
    "a little more than a thousandth of the start": (FALLING, FALLING, [0.0185] * 40, True),
    "a little less than a thousandth of the start": (FALLING, FALLING, [8.0, *[0.0175] * 39], False),
    "equal at the end, and one never moved": ([0.0, 0.2, *[0.0] * 38], [0.0, 0.2, *[0.0] * 38], [0.0] * 40, None),
    "more than ten times the noise": (FLAT, [1.0, *[1.01] * 39], [1.11] * 40, True),
    "less than ten times the noise": (FLAT, [1.0, *[1.01] * 39], [1.09] * 40, False),
    "in all of the last ten steps": (FLAT, FLAT, [*[1.0] * 30, *[2.0] * 10], True),
    "in nine of the last ten steps": (FLAT, FLAT, [*[1.0] * 31, *[2.0] * 9], None),
    "now above and now below": (FLAT, FLAT, [0.5, 1.5] * 20, None),
    "not finite": (FLAT, FLAT, [math.nan] * 40, True),
    "not finite without it": ([math.inf] * 40, [math.inf] * 40, FLAT, True),
    "not finite either way": ([math.nan] * 40, [math.nan] * 40, [math.nan] * 40, None),
    "a second run that is not finite": (FLAT, [math.nan] * 40, [2.0] * 40, None),
}


@pytest.mark.parametrize("name", CASES)
def test_losses_end_elsewhere_only_where_they_are_apart_each_time(name: str) -> None:
    own, again, other, end = CASES[name]
    assert compare_losses(own, again, other, "the pin")[0] is end


def test_a_pin_is_limited_to_its_lines() -> None:
    p = nn.Parameter(torch.zeros(2))
    line = sys._getframe().f_lineno + 2
    with at_line(f"test_side_by_side.py:{line}", abs=1.0) as context:
        y = p.abs()
        z = p.abs() * 10
    (y + z).sum().backward()
    assert p.grad.tolist() == [1.0, 1.0]
    assert [site.calls for site in context.report().rewritten] == [1]


def test_a_signal_ends_the_further_runs_and_keeps_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    with diagnose(sensitivity=True) as d:
        losses, _ = train(gain)
    runs = iter([run_of(losses, **fields_of(d))])

    def run(*_: object, **__: object) -> Run:
        for result in runs:
            return result
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(command.programs, "run", run)
    done = command._run_side_by_side([], {"options": {}, "steps": None})
    assert done.status == 143
    (finding,) = [finding for finding in done.parts[0].content["findings"] if finding.code == "convention"]
    assert "ends was not measured" in finding.evidence


@pytest.mark.parametrize("is_scaled", [True, False])
def test_losses_that_a_scaler_multiplies_are_not_compared(is_scaled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scale of the other training may be another one."""
    process = types.SimpleNamespace(mark=lambda: None)
    options = {"whatif": [], "detail": "full", "ignore": (), "sensitivity": True}
    follower = command._Follower({"keeps_losses": True, "options": options, "steps": None}, process)
    p, scaler = nn.Parameter(torch.zeros(1)), torch.amp.GradScaler("cpu", enabled=is_scaled)
    optimizer = torch.optim.SGD([p], 0.1)
    for _ in range(9):
        optimizer.zero_grad()
        scaler.scale(((p.abs() - 1) ** 2).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    content = follower.content()
    follower.diagnosis.__exit__()
    asked_again: list[object] = []

    def run_again(pin: object, where: str, count: int) -> Run:
        asked_again.append(pin)
        return run_of([1.0] * count)

    done = train_side_by_side(Run(0, (Part(1, None, True, content),)), run_again, None)
    (finding,) = [finding for finding in done.parts[0].content["findings"] if finding.code == "convention"]
    assert ("cannot be compared, as a GradScaler multiplies its losses" in finding.evidence) == is_scaled
    assert bool(asked_again) != is_scaled


@pytest.mark.program
@pytest.mark.usefixtures("in_copies")
def test_the_command_trains_each_line_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of two lines at a kink one decides."""
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "gain, gate = torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))\n"
        "optimizer = torch.optim.SGD([gain, gate], 0.1)\n"
        "for _ in range(20):\n"
        "    y = gain.abs()\n"
        "    y = y + 1e-4 * torch.nn.functional.hardtanh(gate, 0, 1)\n"
        "    optimizer.zero_grad(), ((y - 1) ** 2).sum().backward(), optimizer.step()\n"
    )
    monkeypatch.chdir(tmp_path)
    code, _, err = answer(capfd, "diagnose", "--side-by-side", "--json", "report.json", "train.py")
    assert code == 0
    assert "diagnose: one more run, with pin_edge(hardtanh='jax') at train.py:6\n" in err
    findings = json.loads(Path("report.json").read_text())["findings"]
    said = {row["where"]: row["evidence"].partition(". ")[2][:14] for row in findings if row["code"] == "convention"}
    assert said == {"train.py:5": "It decides thi", "train.py:6": "It did not dec"}
