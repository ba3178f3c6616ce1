"""What-ifs equal the program run with those rules, bit for bit; and where they would not, they give no number."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import pseudograd as pg
from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.count.further_backward import CHECKPOINT

from ..choices import folded, one_in
from .checks import diagnosed, line_of

BOUNDS = torch.tensor([-0.5, 0.0, 0.25, 0.5])
CLAMPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "numbers": lambda x, b: torch.clamp(x, -0.5, 0.5),
    "one number": lambda x, b: x.clamp(max=0.25) + torch.clamp_min(x, 0.0) + torch.clamp_max(x, 0.5),
    "tensors": lambda x, b: torch.clamp(x, b, b + 0.5),
    "min tensor": lambda x, b: torch.clamp(x, min=b) + torch.clamp_min(x, b),
    "max tensor": lambda x, b: torch.clamp(x, max=b) + torch.clamp_max(x, b),
    "fmin and fmax": lambda x, b: torch.fmin(x, b) + torch.fmax(x, b),
    "in place": lambda x, b: (x * 1).clamp_(-0.5, 0.5),
    "round": lambda x, b: torch.round(x) * x + torch.floor(x * 3) * x,
    "hardtanh": lambda x, b: torch.nn.functional.hardtanh(x, -0.5, 0.5) + torch.nn.functional.hardsigmoid(x * 4),
}
CHANGES: dict[str, Any] = {
    "inward": {"clamp": "inward"},
    "leaky": {"clamp": pg.rules.leaky(0.3)},
    "rounding": {"round": "identity"},
    "both": {"clamp": "identity", "relu": "elastic"},
    "closed": "closed",
    "half": "half",
    "older": "torch<=2.13",
    "newer": "torch>=2.14",
}


def _program(f: Callable[[Tensor, Tensor], Tensor]) -> tuple[nn.Module, nn.Parameter, Callable[[], Tensor]]:
    torch.manual_seed(0)
    net, bound = nn.Linear(3, 4), nn.Parameter(BOUNDS.clone())
    x = torch.randn(50, 3)
    with torch.no_grad():
        net.weight.mul_(2)

    def loss() -> Tensor:
        h = net(x)
        # Some exactly at the bound.
        h = torch.where(torch.arange(200).reshape(50, 4) % 5 == 0, h - h.detach() + BOUNDS, h)
        return (f(h, bound) * torch.linspace(-1, 1, 200).reshape(50, 4)).sum()

    return net, bound, loss


def _context(change: Any) -> Any:
    return pg.pin_edge(change) if isinstance(change, str) else pg.override(**change)


@folded
@pytest.mark.parametrize(("clamp", "change"), one_in(4, CLAMPS, CHANGES))
def test_equal_to_the_program_under_that_rule(clamp: str, change: str) -> None:
    net, bound, loss = _program(CLAMPS[clamp])
    leaves = [*net.parameters(), bound]
    before = torch.autograd.grad(loss(), leaves, allow_unused=True)
    with _context(CHANGES[change]):
        after = torch.autograd.grad(loss(), leaves, allow_unused=True)
    d = diagnosed(lambda: loss(), net, whatif={change: CHANGES[change]})
    assert d.inexact == {}
    answers = dict(zip(["weight", "bias", "bound"], zip(before, after, strict=True), strict=True))
    for name, at in (("as it is", 0), (change, 1)):
        for row in d.whatif[name]:
            gradient, old = answers[row.parameter][at], answers[row.parameter][0]
            assert row.norm == float(gradient.double().norm())
            assert row.zero == float((gradient == 0).double().mean())
            norms, product = row.norm * float(old.double().norm()), gradient.double().flatten() @ old.double().flatten()
            assert row.cosine == pytest.approx(float(product) / norms if norms else math.nan, nan_ok=True)
    answered = {name for name, (old, _) in answers.items() if old is not None}
    assert {row.parameter for row in d.whatif[change]} == answered


def _clamp_part(x: Tensor) -> Tensor:
    x[:1].clamp_(0, 1)
    return x


def _hooked(x: Tensor, hook: Callable[[Tensor], Tensor | None]) -> Tensor:
    x.register_hook(hook)
    return x.clamp(0, 1)


# of a program: what its sensitivity lacks, and what this change lacks in place of that
REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], Any, str, str]] = {
    "relu": (torch.relu, {"relu": "leaky"}, "", "relu does not keep its input; run the program under override instead"),
    "sign": (
        torch.sign,
        {"sign": "window"},
        "",
        "sign does not keep its input; run the program under override instead",
    ),
    "reentry": (lambda x: checkpoint(lambda x: x.clamp(0, 1), x, use_reentrant=True), "open", CHECKPOINT, ""),
    "a part": (
        _clamp_part,
        {"clamp": "inward"},
        "clamp in place on a part of a tensor hides its node; write it out of place to ask",
        "",
    ),
    "a hook": (
        lambda x: _hooked(x, lambda grad: grad * 2),
        "open",
        "the hook at tests/diagnosis/test_whatif.py:LINE may change gradients; ask without it, or let it return nothing at its end",
        "",
    ),
    "a hook that looks on": (lambda x: _hooked(x, lambda grad: None), "open", "", ""),
}


@pytest.mark.parametrize("case", REFUSED)
def test_no_number_where_it_would_not_be_exact(case: str) -> None:
    f, change, unsensed, inexact = REFUSED[case]
    p = nn.Parameter(torch.tensor([2.0, 0.5]))
    d = diagnosed(lambda: f(p * 1).sum(), whatif={"change": change}, sensitivity=True)
    unsensed = unsensed.replace("LINE", str(line_of("x.register_hook(hook)")))
    why = inexact or unsensed
    assert (list(d.unsensed), d.inexact) == ([unsensed] * bool(unsensed), {"change": [why]} if why else {})
    assert bool(d.whatif.get("change")) is not bool(why)
    assert (f"what if change: no numbers, because they would not be exact\n    {why}" in str(d)) is bool(why)


@pytest.mark.parametrize("reads_it", [True, False])
def test_a_loss_that_reads_a_gradient_has_no_number_and_one_beside_it_has(reads_it: bool) -> None:
    p = nn.Parameter(torch.tensor([2.0, 0.5]))
    with diagnose(whatif={"inward": {"clamp": "inward"}}) as d:
        for _ in range(2):
            y = p.clamp(0.0, 1.0).square().sum()
            (grad,) = torch.autograd.grad(y, p, create_graph=True)
            (y + grad.sum() if reads_it else y).backward()
    why = "the loss reads a gradient that create_graph made under torch's own rules"
    assert d.inexact == ({"inward": [why]} if reads_it else {})
    assert [row.zero for row in d.whatif.get("inward", ())] == ([] if reads_it else [0.0])


def test_leaves_that_are_made_in_each_step_share_one_reason() -> None:
    """As those of an implicit layer, whose hook or backward asks for several gradients by name."""
    w = nn.Parameter(torch.full((2, 2), 0.1))

    def solve(at: Tensor, value: Tensor, grad: Tensor) -> Tensor:
        for _ in range(3):
            grad = grad + torch.autograd.grad(value, at, grad, retain_graph=True)[0]
        return grad

    with diagnose(whatif={"inward": {"clamp": "inward"}}, sensitivity=True) as d:
        for _ in range(4):
            z = torch.tanh(torch.ones(2, 2) @ w)
            at = z.detach().requires_grad_()
            z.register_hook(partial(solve, at, torch.tanh(at @ w)))
            z.clamp(-1, 1).sum().backward()
    hook = (
        f"the hook at tests/diagnosis/test_whatif.py:{line_of('z.register_hook')} may change gradients; ask without it"
    )
    reasons = [
        "a leaf of shape (2, 2) gets its gradient in several parts",
        f"{hook}, or let it return nothing at its end",
    ]
    assert d.inexact["inward"] == sorted(d.unsensed) == reasons
