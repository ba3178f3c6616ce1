"""A program that uses this library, or runs under a pin or an override: ops have names, and the next step knows who chose the rule."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor

import pseudograd as pg

from ..choices import folded
from .trainers import steps

Contexts = Callable[[], AbstractContextManager[object]]
OURS: dict[str, tuple[Callable[[Tensor], Tensor], Contexts, str]] = {
    "an op": (lambda x: pg.clamp(x, 0, 1, rule="zero", edge="open"), nullcontext, "clamp/zero/open"),
    "an op without an edge": (pg.round, nullcontext, "round/identity"),
    "a rule that ignores the edge": (lambda x: pg.clamp(x, 0, 1, rule="identity"), nullcontext, "clamp/identity"),
    "an era": (lambda x: x.clamp(-1, 1), lambda: pg.pin_edge("torch>=2.14"), "torch.clamp as pinned to ERA"),
    "an edge": (lambda x: x.clamp(-1, 1), lambda: pg.pin_edge("half"), "torch.clamp as pinned to half, elsewhere ERA"),
    "a framework": (torch.abs, lambda: pg.pin_edge("jax"), "torch.abs as pinned to 1.0"),
    "an override": (lambda x: x.clamp(-1, 1), lambda: pg.override(clamp="inward"), "torch.clamp/inward/closed"),
}


@folded
@pytest.mark.parametrize("detail", ["full", "counts"])
@pytest.mark.parametrize("name", OURS)
def test_an_op_of_ours_has_its_name(name: str, detail: str) -> None:
    f, context, name_of_op = OURS[name]
    x = torch.tensor([-2.0, 0.0, 0.5, 2.0], requires_grad=True)
    with context(), pg.diagnose(detail=detail) as d:
        f(x).sum().backward()
    ops = [re.sub(r"torch[<>]=2\.1[34]", "ERA", site.op) for site in d.sites]
    assert name_of_op in ops or (name == "an era" and "clamp" in ops)  # the installed era is torch's own clamp
    assert not any("Pseudograd" in op for op in ops)


def _steps(train: Callable[[Tensor], Tensor]) -> list[str]:
    parameter = torch.nn.Parameter(torch.tensor([3.0, 3.0]))
    d = steps(None, lambda: train(parameter).sum(), 3, torch.optim.SGD([parameter], 0.1))
    return [finding.next_step for finding in d.findings]


def test_a_rule_of_ours_that_cuts_everything_is_to_be_changed_in_the_call() -> None:
    assert _steps(lambda x: pg.clamp(x, 0, 1, rule="zero"))[0].startswith("rule='inward'  # in this call")
    assert _steps(lambda x: pg.clamp(x, 0, 1, rule="inward")) == []


def test_a_loss_that_a_pin_stops_is_name_of_op_with_the_pin() -> None:
    """margin_ranking_loss of equal scores: under the newer era nothing passes its clamp, whatever torch is installed."""

    def loss(x: Tensor) -> Tensor:
        return torch.nn.functional.margin_ranking_loss(x[:1] * 0 + x[:1], x[1:], torch.ones(1))

    with pg.pin_edge("open"):
        (step, *_) = _steps(loss)
    assert step == (
        "pseudograd.pin_edge decides what passes here. Inside it, pseudograd.override can give this line alone another rule; "
        "compare a training with it."
    )
    with pg.pin_edge("closed"):
        assert _steps(loss) == []
