"""The finding `convention`: what it says, and whether it is right that it matters."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pseudograd import diagnose
from pseudograd.torch_eras import CLOSED_ERA, installed_era

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


@pytest.mark.parametrize(("name", "family"), CHOICE)
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


def test_few_steps_cannot_tell() -> None:
    (one,) = _find(nn.Parameter(torch.zeros(2)), 2)
    assert one.evidence.endswith("2 steps are too few to say whether it matters")
    assert one.share == 0.0


def test_no_finding_below_a_tenth() -> None:
    assert _find(nn.Parameter(torch.full((2,), 0.05)), 6) == []


def test_what_is_deliberate_is_not_told() -> None:
    assert _find(nn.Parameter(torch.zeros(2)), 6, ignore=["test_convention.py:*"]) == []


def test_the_next_step_works() -> None:
    """Pasted around the training it moves what did not move."""
    import pseudograd

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
