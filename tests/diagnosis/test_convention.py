"""The finding `convention`: what it says, and whether it is right that it matters."""

from __future__ import annotations

import contextlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import pseudograd
from pseudograd import diagnose, pin_edge
from pseudograd.diagnosis.count.sensitivity import Sensitivity
from pseudograd.diagnosis.judge.findings.convention import verdict
from pseudograd.torch_table.eras import CLOSED_ERA, installed_era

from ..choices import folded, slow_but

IS_CLOSED = installed_era() == CLOSED_ERA


def _trainings() -> Any:
    pytest.importorskip("sklearn")
    path = Path(__file__).parents[2] / "scripts" / "kink_trainings.py"
    spec = importlib.util.spec_from_file_location("kink_trainings", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# Of `scripts/kink_trainings.py`, which says the same of all of them with more seeds and steps: what is said in torch's two eras.
CHOICE = {
    ("first layer 0, relu", "relu"): ("decides", "decides"),
    ("first layer 0, leaky relu", "leaky_relu"): ("falls", "falls"),
    ("gain abs(0)", "abs"): ("decides", "decides"),
    ("IoU of boxes on a grid", "clamp"): ("falls", "falls"),
    ("CNN, pool of a 1x1 convolution", "max_pool"): ("", ""),
    ("dropout before the relu", "relu"): ("", ""),
    ("deviation at its bound", "clamp"): ("decides", "decides"),
    ("binary weights", "hardtanh"): ("decides", "decides"),
}


@pytest.mark.parametrize(("name", "family"), slow_but([*CHOICE][::3], CHOICE, pytest.mark.program))
def test_a_training_and_the_same_under_the_other_convention(name: str, family: str) -> None:
    trainings = _trainings()
    (program,) = [one for one in trainings.PROGRAMS if (one.name, one.family) == (name, family)]
    row = trainings.measured(program, steps=40, seeds=2)
    assert row.said == CHOICE[name, family][not IS_CLOSED]
    assert row.is_right


def _find(p: torch.Tensor, steps: int, **options: Any) -> Any:
    q = nn.Parameter(torch.ones(2))
    with diagnose(sensitivity=True, **options) as d:
        for _ in range(steps):
            p.grad = q.grad = None
            (p.abs() + q * q).sum().backward()
            with torch.no_grad():
                p -= 0.1 * p.grad  # type: ignore[operator]
                q -= 0.1 * q.grad  # type: ignore[operator]
    return [one for one in d.findings if one.code == "convention"]


def test_what_it_says() -> None:
    (one,) = _find(nn.Parameter(torch.zeros(2)), 6)
    line = one.where.rpartition(":")[2]
    assert one.number == "PG210"
    assert re.fullmatch(
        rf"All of this update is convention \(another one changes it by 1\.2 times its size\) at line {line}: torch / TensorFlow and JAX "
        r"disagree there, which multiply a gradient by 0 and 1\. It decides this training: it stays high, and parameter \d of shape \(2,\) "
        r"does not move",
        one.evidence,
    )
    assert one.cause == "100 % of what enters abs stands exactly at a kink or a tie, where it has no slope"
    assert one.next_step == "with pseudograd.pin_edge(abs='jax'): ...  # around the training: as JAX"
    assert one.share > 0.5


@pytest.mark.parametrize(
    ("share", "moved", "said"),
    [(0.9, 0.0, "decides"), (0.5, 0.0, "decides"), (0.9, 0.5, "some"), (0.2, 0.0, "falls"), (0.2, 0.5, "falls")],
)
def test_a_parameter_decides_where_it_is_mostly_convention_and_does_not_move(
    share: float, moved: float, said: str
) -> None:
    """The update as a whole is below a tenth of it, in the median."""

    def of(name: str | None, *shares: float) -> Sensitivity:
        steps = tuple(enumerate(shares, 1))
        return Sensitivity("abs", "jax", "a.py:1", name, 0.0, 0.0, 0.0, 1.0, (1.0, 1.0), steps, moved)

    assert verdict(of(None, *[0.05] * 6), [of("p", *[share] * 6)]) == said


def test_few_steps_a_small_share_and_what_is_deliberate() -> None:
    (finding,) = _find(nn.Parameter(torch.zeros(2)), 2)
    assert finding.evidence.endswith("2 steps are too few to say whether it matters")
    assert finding.share == 0.0
    assert _find(nn.Parameter(torch.full((2,), 0.05)), 6) == []
    assert _find(nn.Parameter(torch.zeros(2)), 6, ignore=["test_convention.py:*"]) == []


def test_the_next_step_works() -> None:
    """Pasted around the training it moves what did not move."""
    p = nn.Parameter(torch.zeros(2))
    (one,) = _find(p, 6)
    pin = eval(re.search(r"pseudograd\.pin_edge\(.*?\)", one.next_step)[0], {"pseudograd": pseudograd})  # type: ignore[index]
    assert not p.any()
    with pin:
        _find(p, 1)
    assert p.all()


def test_where_no_pin_reaches_it_that_is_said() -> None:
    p = nn.Parameter(torch.zeros(2))
    with diagnose(sensitivity=True) as d:
        for _ in range(6):
            p.grad = None
            torch.nn.functional.l1_loss(p, torch.zeros(2)).backward()
    (one,) = [one for one in d.findings if one.code == "convention"]
    assert one.next_step.startswith(
        "Write this call out in torch's own functions: pin_edge does not reach the abs inside l1_loss"
    )


AT_A_KINK: dict[str, Any] = {
    "clamp": lambda p: torch.clamp(p, 0, 1),
    "tensor bounds": lambda p: torch.clamp(p, torch.zeros(4), torch.ones(4)),
    "relu": torch.relu,
    "relu6": functional.relu6,
    "abs": torch.abs,
    "leaky_relu": functional.leaky_relu,
    "hardtanh": lambda p: functional.hardtanh(p, 0.0, 1.0),
    "selu": functional.selu,
    "maximum": lambda p: torch.maximum(p, torch.zeros(4)),
    "fmax": lambda p: torch.fmax(p, torch.zeros(4)),
    "margin_ranking_loss": lambda p: functional.margin_ranking_loss(p, torch.zeros(4), torch.ones(4), reduction="none"),
    "quantile": lambda p: p.quantile(0.5) * torch.ones(4),
}


def _of_convention(name: str, pin: Any) -> list[Any]:
    """Of a parameter at a kink that would not move by itself, and hardly moves."""
    p = nn.Parameter(torch.tensor([0.0, 0.0, 0.0, -1.0]))
    weights = torch.arange(1.0, 5.0)
    with pin, diagnose(sensitivity=True) as d:
        for _ in range(8):
            p.grad = None
            ((AT_A_KINK[name](p) + 0.1 * p) * weights).sum().backward()
    return [one for one in d.findings if one.code == "convention"]


@folded
@pytest.mark.parametrize("name", AT_A_KINK)
def test_nothing_is_told_under_the_pin_that_is_advised(name: str) -> None:
    """Also where it pins what the installed torch does, so that torch's own node runs."""
    found = _of_convention(name, contextlib.nullcontext())
    if name == "quantile" and IS_CLOSED:  # where torch does as the others
        assert found == []
        return
    (one,) = found
    assert "nan" not in one.evidence
    pin = eval(re.search(r"pseudograd\.pin_edge\(.*?\)", one.next_step)[0], {"pseudograd": pseudograd})  # type: ignore[index]
    assert _of_convention(name, pin) == []


@pytest.mark.parametrize("name", ["relu", "abs"])
def test_a_pin_of_another_family_settles_nothing(name: str) -> None:
    other = {"relu": "abs", "abs": "relu"}[name]
    assert len(_of_convention(name, pin_edge(**{other: installed_era()}))) == 1
    assert len(_of_convention(name, pin_edge(installed_era()))) == 1


def test_a_pin_that_has_ended_settles_nothing() -> None:
    with pin_edge(installed_era(), abs=installed_era()):
        pass
    assert len(_of_convention("abs", contextlib.nullcontext())) == 1
    assert len(_of_convention("clamp", contextlib.nullcontext())) == 1


@pytest.mark.parametrize("outer", [{"edge": installed_era()}, {"clamp": installed_era()}])
def test_pins_inside_each_other_settle_what_each_of_them_names(outer: Any) -> None:
    """The first enters no mode of torch, so that the second has none around it either."""
    era = installed_era()
    with pin_edge(**outer):
        assert _of_convention("relu", pin_edge(relu=era)) == []
        assert _of_convention("clamp", pin_edge(relu=era)) == []
        assert len(_of_convention("leaky_relu", pin_edge(relu=era))) == 1
        assert len(_of_convention("relu", contextlib.nullcontext())) == 1, "the inner one has ended"
