"""How much of a gradient is convention: as the program itself computes it under a pin of the other convention."""

import json
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pseudograd import diagnose, pin_edge
from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.count.sensitivity import Sensitivity
from pseudograd.torch_table.eras import CLOSED_ERA, OPEN_ERA, installed_era
from pseudograd.torch_table.private import tells_unpack_hooks

from ..choices import folded
from ..commands import answer
from .checks import diagnosed, make_function
from .trainers import steps

IS_CLOSED = installed_era() == CLOSED_ERA
OTHER_ERA = OPEN_ERA if IS_CLOSED else CLOSED_ERA
SMALL = torch.tensor([[1.0, 1.0, 0.0, 2.0, 2.0, 2.0], [0.0, 0.5, 0.0, 1.0, -1.0, -1.0]])
BOUND = torch.tensor([0.0, 1.0, 0.0, 2.0, 1.0, 0.0])

JAX, ERA = "jax", {"edge": OTHER_ERA}
Case = tuple[str, Callable[..., Tensor], tuple[Tensor, ...], dict[str, Any]]
CASES: dict[str, Case] = {
    "clamp": ("clamp", lambda x: x.clamp(0, 1), (SMALL,), ERA),
    "clamp_min": ("clamp", lambda x: torch.clamp_min(x, 0), (SMALL,), ERA),
    "clamp of tensors": ("clamp", lambda x, b: torch.clamp(x, b, b + 1), (SMALL, BOUND), ERA),
    "margin loss": (
        "clamp",
        lambda x: functional.margin_ranking_loss(x[0], x[1], torch.ones(6), reduction="none"),
        (torch.cat([SMALL[:1], SMALL[:1]]),),
        ERA,
    ),
    "relu": ("relu", torch.relu, (SMALL,), {"relu": 1}),
    "relu in place": ("relu", lambda x: functional.relu(x * 1, inplace=True), (SMALL,), {"relu": 1}),
    "relu6": ("relu6", functional.relu6, (SMALL,), {"relu6": 1}),
    "abs": ("abs", torch.abs, (SMALL,), {"abs": JAX}),
    "hardtanh": ("hardtanh", functional.hardtanh, (SMALL,), {"hardtanh": JAX}),
    "leaky_relu": ("leaky_relu", lambda x: functional.leaky_relu(x, 0.2), (SMALL,), {"leaky_relu": JAX}),
    "leaky_relu in place": ("leaky_relu", lambda x: nn.LeakyReLU(inplace=True)(x * 1), (SMALL,), {"leaky_relu": JAX}),
    "selu": ("selu", functional.selu, (SMALL,), {"selu": "tensorflow"}),
    "minimum": ("minimum", torch.minimum, (SMALL, BOUND), {"minimum": "tensorflow"}),
    "maximum": ("maximum", torch.max, (SMALL, BOUND), {"maximum": "tensorflow"}),
    "fmax": ("fmax", torch.fmax, (SMALL, BOUND), {"fmax": JAX} if IS_CLOSED else ERA),
}


def _loss(f: Callable[..., Tensor], leaves: list[Tensor]) -> Tensor:
    y = f(*leaves)
    return (y * torch.arange(1.0, y.numel() + 1).reshape(y.shape)).sum()


def _families(d: Diagnosis) -> list[Sensitivity]:
    """The records of whole families, not of a line or a parameter."""
    return [record for record in d.sensitivity if record.where is None and record.parameter is None]


def _leaves(values: tuple[Tensor, ...]) -> list[Tensor]:
    return [value.clone().requires_grad_() for value in values]


def _expected(f: Callable[..., Tensor], values: tuple[Tensor, ...], other: AbstractContextManager[Any]) -> float:
    leaves = _leaves(values)
    own = torch.autograd.grad(_loss(f, leaves), leaves)
    with other:
        under_it = torch.autograd.grad(_loss(f, leaves), leaves)
    before, after = (torch.cat([grad.flatten().double() for grad in grads]) for grads in (own, under_it))
    return float((after - before).norm() / before.norm()) if before.any() else math.inf


@folded
@pytest.mark.parametrize("name", CASES)
def test_the_share_is_that_of_the_program_under_the_pin(name: str) -> None:
    family, f, values, pin = CASES[name]
    d = diagnosed(lambda: _loss(f, _leaves(values)), sensitivity=True)
    assert d.errors == []
    assert d.unsensed == {}
    families = _families(d)
    assert [record.family for record in families] == [family]
    expected = _expected(f, values, pin_edge(**pin))
    assert families[0].share == pytest.approx(expected, rel=1e-6)
    assert expected > 0.01
    (line,) = {record.where for record in d.sensitivity} - {None}
    assert line.rpartition(":")[0].endswith("test_sensitivity.py")


def test_a_share_that_is_not_finite_is_no_multiple() -> None:
    p = nn.Parameter(torch.tensor([0.0, 0.5]))
    with diagnose(sensitivity=True) as d:
        torch.clamp(p, min=0).sqrt().sum().backward()
    assert "clamp not finite (not finite in the first step" in " ".join(str(d).split())


def test_the_share_is_measured_by_line_and_by_parameter() -> None:
    p, q = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))
    with diagnose(sensitivity=True) as d:
        first = p.abs()
        second = (q - 1).abs() * 2
        (first + second + p + q).sum().backward()
    # The gradient is six times 1. JAX's convention adds 1 at three entries by the first abs and 2 at the other three by the second.
    rows = {(record.where, record.parameter): record.share for record in d.sensitivity}
    assert len({where for where, _ in rows}) == 3
    by_line = [share for (where, name), share in rows.items() if where and name is None]
    assert sorted(by_line) == [pytest.approx(1 / math.sqrt(2)), pytest.approx(2 / math.sqrt(2))]
    assert rows[None, None] == pytest.approx(math.sqrt(5 / 2))


def test_a_family_that_leaves_its_kink_has_a_share_of_0_from_there_on() -> None:
    p = nn.Parameter(torch.zeros(2))
    family = steps(None, lambda: (p.abs() + p).sum(), 5, torch.optim.SGD([p], 1.0), sensitivity=2).sensitivity[0]
    assert family.steps == ((1, 1.0), (3, 0.0), (5, 0.0))
    assert (family.first, family.last, family.share, family.at_kink) == (1.0, 0.0, pytest.approx(1 / 3), (1.0, 0.0))


def test_a_leaky_relu_in_place_with_slope_0_has_no_share() -> None:
    """Its node keeps only the result, which is 0 at the kink and also for x = -1."""
    for slope, shares in ((0.0, []), (0.5, [pytest.approx(0.5 / (0.5**2 + 1**2 + 0.5**2) ** 0.5)])):
        p = nn.Parameter(torch.tensor([-1.0, 0.5, 0.0]))
        with diagnose(sensitivity=True) as d:
            functional.leaky_relu(p * 1, slope, inplace=True).sum().backward()
        assert d.errors == []
        assert [record.share for record in _families(d)] == shares


def test_a_gradient_that_the_convention_alone_brings() -> None:
    p = nn.Parameter(torch.zeros(2))
    d = diagnosed(lambda: p.abs().sum(), sensitivity=True)
    assert d.sensitivity[0].share == math.inf
    assert d.to_json()["sensitivity"][0]["share"] == "inf"
    assert d.metrics()["pseudograd/sensitivity/abs"] == math.inf


@pytest.mark.skipif(not tells_unpack_hooks, reason="torch 2.8 does not tell that a value comes from a checkpoint")
def test_what_has_side_effects_is_refused_with_the_reason() -> None:
    x, ran = torch.zeros(2, requires_grad=True), []
    counting = make_function("Counting", lambda ctx, x: x * 2, lambda ctx, grad: ran.append(grad) or grad * 2)
    with diagnose(sensitivity=True) as d:
        counting.apply(x).abs().sum().backward()
        checkpoint(torch.abs, x, use_reentrant=False).sum().backward()
    assert len(ran) == 1
    assert d.sensitivity == []
    (function, passes), (ckpt, more) = sorted(d.unsensed.items(), key=lambda item: "checkpoint" in item[0])
    assert "Counting would run once more" in function
    assert "checkpoint" in ckpt
    assert (passes, more) == (1, 1)
    assert "sensitivity not measured, or only in part, in 1 backward pass: " in str(d)
    with diagnose() as d:  # the clamp has entries at its bound, and an op nearer to the leaves
        counting.apply(x.detach().requires_grad_()).clamp(0, 1).sum().backward()
    assert (bool(d.findings), len(ran)) == (True, 2)


@pytest.mark.usefixtures("in_copies")
def test_every_2nd_step_is_measured_and_fail_on_exits_4(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\n"
        "p = torch.nn.Parameter(torch.zeros(2))\n"
        "for _ in range(12):\n"
        "    p.grad = None\n"
        "    (p.abs() + p).sum().backward()\n"
    )
    report = tmp_path / "report.json"
    options = ["--sensitivity-every", "2", "--json", str(report), "--fail-on", "convention"]
    code, _, text = answer(capfd, "diagnose", *options, str(program))
    assert code == 4
    assert f"diagnose: --fail-on holds at {program}:5" in text
    rows = json.loads(report.read_text())["sensitivity"]
    assert [step for step, _ in rows[0]["steps"]] == [1, 3, 5, 7, 9, 11]
    assert rows[0]["share"] == 1.0
    assert answer(capfd, "diagnose", "--sensitivity", "--json", str(report), str(program))[0] == 0
    assert len(json.loads(report.read_text())["sensitivity"][0]["steps"]) == 12


def test_wrapped_fake_and_other_tensors_are_left_alone() -> None:
    x = torch.zeros(3, requires_grad=True)
    with diagnose(sensitivity=True) as d:
        torch.func.grad(lambda z: (z.relu() + z.abs()).sum())(x.detach())
        torch.func.vmap(torch.func.grad(lambda z: z.relu().sort()[0].sum()))(torch.zeros(2, 3))
        torch.func.vmap(lambda z: z.relu().max(0)[0])(torch.zeros(2, 3, requires_grad=True)).sum().backward()
        torch.zeros(3, device="meta", requires_grad=True).relu().sum()
        with FakeTensorMode():
            fake = torch.zeros(3, requires_grad=True)
            (fake.relu().sum() + fake.abs().sum()).backward()
        with torch.inference_mode():
            torch.zeros(3).relu()
        torch.autograd.grad(x.relu(), x, torch.eye(3), is_grads_batched=True)
    assert d.errors == []


def test_no_convention_is_kept_under_which_the_loss_is_not_finite() -> None:
    gain, start = torch.nn.Parameter(torch.tensor(0.0)), torch.nn.Parameter(torch.tensor(0.5))
    optimizer = torch.optim.SGD([gain, start], 1e30)
    with diagnose(sensitivity=True) as d:
        for _ in range(6):
            optimizer.zero_grad()
            (start - 0.9 + gain.abs() + (gain - 1) ** 2 * start).pow(2).backward()
            optimizer.step()
    (finding,) = (finding for finding in d.findings if finding.code == "convention")
    assert finding.next_step.startswith("First mend what is not finite")
