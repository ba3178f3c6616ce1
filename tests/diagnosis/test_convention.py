"""The finding `convention`: what it says, and whether it is right that it matters."""

import contextlib
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import pseudograd
from pseudograd import diagnose, pin_edge
from pseudograd.torch_table.eras import CLOSED_ERA, installed_era

from ..choices import folded, slow_but
from .checks import diagnosed, only
from .trainers import steps

IS_CLOSED = installed_era() == CLOSED_ERA


# Programs of `scripts/kink_trainings.py`, which measures all of them with more seeds and steps: the verdict in torch's two eras.
CHOICE = {
    ("first layer 0, relu", "relu"): ("decides", "decides"),
    ("gain abs(0)", "abs"): ("decides", "decides"),
    ("IoU of boxes on a grid", "clamp"): ("falls", "falls"),
    ("dropout before the relu", "relu"): ("", ""),
    ("binary weights", "hardtanh"): ("decides", "decides"),
}


@pytest.mark.program
@pytest.mark.parametrize(("name", "family"), CHOICE)
def test_the_verdict_is_right_about_the_other_convention(name: str, family: str, script: Any) -> None:
    pytest.importorskip("sklearn")
    trainings = script("kink_trainings")
    (program,) = [program for program in trainings.PROGRAMS if (program.name, program.family) == (name, family)]
    row = trainings.measured(program, steps=40, seeds=2)
    assert row.said == CHOICE[name, family][not IS_CLOSED]
    assert row.is_right


def _find(p: torch.Tensor, count: int, is_held: bool = True, **options: Any) -> Any:
    q = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([p, q] if is_held else [q], 0.1)
    d = steps(None, lambda: (p.abs() + q * q).sum(), count, optimizer, sensitivity=True, **options)
    return [finding for finding in d.findings if finding.code == "convention"]


def test_the_finding_names_the_convention_and_the_pin() -> None:
    (finding,) = _find(nn.Parameter(torch.zeros(2)), 6)
    line = finding.where.rpartition(":")[2]
    assert (finding.number, finding.share > 0.5) == ("PG210", True)
    assert re.fullmatch(
        rf"All of this update is convention \(another one changes it by 1\.2 times its size\) at line {line}: torch / TensorFlow and JAX "
        r"disagree there, which multiply a gradient by 0 and 1\. It may decide this training: its share stays high, and p "
        r"does not move; where a training under the other convention ends was not measured",
        finding.evidence,
    )
    assert finding.cause == "100 % of what enters abs stands exactly at a kink or a tie, where it has no slope"
    assert finding.next_step == (
        f"with pseudograd.pin_edge(abs={installed_era()!r}): ...  # keeps it so on every torch. Train with abs='jax' beside it, "
        "from the same seeds, before you choose"
    )


def test_a_share_that_is_high_on_one_parameter_alone_is_not_said_to_stay_high() -> None:
    p, q = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.full((2,), 4.0))
    with diagnose(sensitivity=True) as d:
        for step in range(8):
            p.grad = q.grad = None
            ((p.abs() + 0.01 * step * p).sum() + (1 + step) * q.sum()).backward()
    finding = only(d, "convention")
    assert (
        "It may decide this training: most of the update of p is convention, and p does not move; where"
        in finding.evidence
    )


def test_few_steps_a_small_share_what_is_deliberate_and_what_nothing_steps() -> None:
    assert _find(nn.Parameter(torch.zeros(2)), 6, is_held=False) == []
    (finding,) = _find(nn.Parameter(torch.zeros(2)), 2)
    assert finding.evidence.endswith("2 steps are too few to say whether it matters")
    assert finding.share == 0.0
    assert _find(nn.Parameter(torch.full((2,), 0.05)), 6) == []
    assert _find(nn.Parameter(torch.zeros(2)), 6, ignore=["test_convention.py:*"]) == []


def test_inside_a_loss_of_torch_no_pin_is_advised() -> None:
    p = nn.Parameter(torch.zeros(2))
    d = diagnosed(lambda: functional.l1_loss(p, torch.zeros(2)), times=6, sensitivity=True)
    advice = "Write this call out in torch's own functions: pin_edge does not reach the abs inside l1_loss"
    assert only(d, "convention").next_step.startswith(advice)


AT_A_KINK: dict[str, Any] = {
    "clamp": lambda p: torch.clamp(p, 0, 1),
    "tensor bounds": lambda p: torch.clamp(p, torch.zeros(4), torch.ones(4)),
    "relu": torch.relu,
    "abs": torch.abs,
    "leaky_relu": functional.leaky_relu,
    "maximum": lambda p: torch.maximum(p, torch.zeros(4)),
    "fmax": lambda p: torch.fmax(p, torch.zeros(4)),
    "margin_ranking_loss": lambda p: functional.margin_ranking_loss(p, torch.zeros(4), torch.ones(4), reduction="none"),
}


def _find_convention(name: str, pin: Any) -> list[Any]:
    """Of a parameter at a kink that would not move by itself, and hardly moves."""
    p = nn.Parameter(torch.tensor([0.0, 0.0, 0.0, -1.0]))
    weights = torch.arange(1.0, 5.0)
    with pin:
        d = diagnosed(lambda: ((AT_A_KINK[name](p) + 0.1 * p) * weights).sum(), times=8, sensitivity=True)
    return [finding for finding in d.findings if finding.code == "convention"]


@folded
@pytest.mark.parametrize("name", slow_but([*AT_A_KINK][::2], AT_A_KINK))
def test_the_advised_pin_settles_the_finding(name: str) -> None:
    """Also if it pins to the installed torch, so that torch's own node runs."""
    (finding,) = _find_convention(name, contextlib.nullcontext())
    assert "nan" not in finding.evidence
    match = re.search(r"pseudograd\.pin_edge\(.*?\)", finding.next_step)
    assert _find_convention(name, eval(match[0], {"pseudograd": pseudograd})) == []


def test_no_pin_is_advised_that_keeps_a_nan() -> None:
    p = nn.Parameter(torch.tensor([0.0, 1.0, 2.0]))
    with diagnose(sensitivity=True) as d:
        torch.maximum(p, torch.zeros(3)).sqrt().sum().backward()
        torch.optim.SGD([p], 0.1).step()
    assert "convention" not in [finding.code for finding in d.findings]
    assert "nonfinite" in [finding.code for finding in d.findings]


@pytest.mark.skipif(IS_CLOSED, reason="this era passes at each guard")
def test_no_training_is_advised_that_a_guard_would_break() -> None:
    p = nn.Parameter(torch.zeros(2))
    d = diagnosed(lambda: (p - p.detach()).square().clamp(min=0).sqrt().sum(), times=6, sensitivity=True)
    assert "guard" in [finding.code for finding in d.findings]
    assert "convention" not in [finding.code for finding in d.findings]


def test_a_pin_of_another_family_or_one_that_has_ended_settles_nothing() -> None:
    era = installed_era()
    with pin_edge(era, abs=era):
        pass
    for name, pin in (("relu", pin_edge(abs=era)), ("abs", pin_edge(relu=era)), ("abs", pin_edge(era))):
        assert len(_find_convention(name, pin)) == 1
    for name in ("abs", "clamp"):
        assert len(_find_convention(name, contextlib.nullcontext())) == 1


@pytest.mark.parametrize("outer", [{"edge": installed_era()}, {"clamp": installed_era()}])
def test_pins_inside_each_other_settle_what_each_of_them_names(outer: Any) -> None:
    """The outer pin enters no mode of torch, so that the inner pin has none around it either."""
    era = installed_era()
    with pin_edge(**outer):
        assert _find_convention("relu", pin_edge(relu=era)) == []
        assert _find_convention("clamp", pin_edge(relu=era)) == []
        assert len(_find_convention("leaky_relu", pin_edge(relu=era))) == 1
        assert len(_find_convention("relu", contextlib.nullcontext())) == 1, "the inner pin has ended"
