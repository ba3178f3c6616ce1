"""A sentence of the report is true where it stands, absent where it would be false, and its advice, pasted, works."""

import contextlib
import copy
import itertools
import json
import linecache
import math
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import pseudograd as pg
from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.run import parse_condition
from pseudograd.listen import frames
from pseudograd.torch_table.eras import installed_era
from pseudograd.torch_table.private import tells_unpack_hooks
from pseudograd.wording import percent

from ..choices import one_in
from . import trainers
from .checks import codes, define, diagnosed, follow, line_of, only, site_of, starved
from .trainers import steps

# --- dead: nothing leaves at all ---------------------------------------------------------------------------------------

MOVING: dict[str, Callable[[Tensor], Tensor]] = {
    "flip": lambda x: x.flip(0),
    "index": lambda x: x[torch.tensor([3, 2, 1, 0])],
    "cumsum": lambda x: x.flip(0).cumsum(0),
    "fft": lambda x: torch.fft.fft(x).real.flip(0),
}


@pytest.mark.parametrize(("op", "detail"), one_in(2, MOVING, ["full", "counts"]))
def test_an_op_that_moves_or_mixes_elements_is_not_dead(op: str, detail: str) -> None:
    w = nn.Parameter(torch.tensor([4.0, 3.0, 2.0, 1.0]))
    d = diagnosed(lambda: MOVING[op](w * 2)[0], detail=detail)
    assert w.grad.any()
    assert codes(d) == []
    assert all(site.cut == 0 for site in d.sites if site.op != "mul"), d.sites


def test_an_activation_that_is_flat_everywhere_is_dead_and_leaky_revives_it() -> None:
    x = nn.Parameter(torch.full((3,), -2.0))

    def step() -> None:
        torch.relu(x * 2).sum().backward()

    with diagnose() as d:
        step()
    assert "all of 3 arriving gradients are cut" in only(d, "starved").also[0]
    x.grad = None
    follow(only(d, "starved").next_step, step)
    assert x.grad.ne(0).all()


def test_an_op_that_lets_one_through_does_not_cut_all() -> None:
    x = nn.Parameter(torch.cat([torch.zeros(1), torch.full((1499,), 50.0)]))
    d = diagnosed(lambda: functional.hardsigmoid(x * 1).sum())
    finding = only(d, "dead")
    assert finding.evidence == "1,499 of 1,500 arriving gradients are cut in 1 call"
    assert finding.cause == "the slope of this hardsigmoid is 0 for nearly all of them"


def _overwritten(h: Tensor) -> Tensor:
    h = h * 1
    h[:] = 1.0
    return h.sum()


CHOICES: dict[str, Callable[[Tensor], Tensor]] = {
    "a weight of 0": lambda h: 0.0 * h.exp().sum(),
    "a mask of zeros": lambda h: (h.exp() * torch.zeros(4, 3)).sum(),
    "a choice of none": lambda h: torch.where(torch.zeros(4, 3).bool(), h.exp(), 0.0).sum(),
    "a branch that is masked": lambda h: h.exp().masked_fill(torch.ones(4, 3).bool(), 0.0).sum(),
    "all is overwritten": lambda h: _overwritten(h.exp()),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_is_no_fault(choice: str) -> None:
    layer = nn.Linear(2, 3)
    with diagnose(layer) as d:
        h = layer(torch.randn(4, 2))
        ((h * h).sum() + CHOICES[choice](h)).backward()
    assert codes(d) == []


BESIDE: dict[str, Callable[[Tensor], Tensor]] = {
    "x - floor(x)": lambda x: x - x.floor(),
    "a period": lambda x: x - 5.0 * torch.round(x / 5.0),
    "an angle by div": lambda x: x - torch.div(x, 2, rounding_mode="floor") * 2,
    "floor minus x": lambda x: x.trunc() - x,
    "symlog": lambda x: x.sign() * x.abs().log1p(),
    "signed root": lambda x: (x.abs() + 1).sqrt() * torch.sgn(x),
}
CUTTING: dict[str, Callable[[Tensor], Tensor]] = {
    "beside another": lambda x: x - (x * x).round(),
    "behind": lambda x: torch.stack([x.round(), x]),
    "times another": lambda x: (x + 1).sign() * (x * 2),
}


@pytest.mark.parametrize(("name", "is_leaf"), one_in(2, [*BESIDE, *CUTTING], [True, False]))
def test_a_step_whose_input_goes_on_beside_it_is_no_cut(name: str, is_leaf: bool) -> None:
    """Another slope would make the gradient wrong, or 0."""
    w, f = nn.Parameter(torch.linspace(-3, 3, 8)), {**BESIDE, **CUTTING}[name]
    d = diagnosed(lambda: f(w if is_leaf else w * 3).square().sum(), times=2)
    assert codes(d) == ([] if name in BESIDE else ["cut"])
    assert d.calm == []


# --- cut and edge ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("outside", "expected"), [(4, {"are cut", "exactly at a bound"}), (0, {"exactly at a bound"})])
def test_the_share_at_the_bound_is_an_edge_and_hides_no_cut(outside: int, expected: set[str]) -> None:
    """What stands outside is cut in either era; what stands at the bound in one."""
    x = torch.tensor([-1.0] * outside + [0.0] * 4 + [1.0] * 6, requires_grad=True)
    d = diagnosed(lambda: x.clamp(0.0, 2.0).sum())
    texts = [text for finding in d.findings for text in (finding.evidence, *finding.also)]
    assert {part for part in ("are cut", "exactly at a bound") if any(part in text for text in texts)} == expected


@pytest.mark.parametrize(
    ("back", "advises"), [(0, "None"), (1, "None"), (5, "with pseudograd"), (100, "with pseudograd")]
)
def test_inward_is_advised_for_what_leads_back(back: int, advises: str) -> None:
    """Of 100 that stand below, so many have a gradient that leads back inside."""
    x = nn.Parameter(torch.full((100,), -1.0))
    towards = torch.where(torch.arange(100) < back, -1.0, 1.0)

    def step() -> None:
        (x.clamp(0.0, 2.0) * towards).sum().backward()

    with diagnose() as d:
        step()
    site = site_of(d, "clamp")
    assert site.recoverable == back
    (cut,) = [finding for finding in d.findings if finding.code in ("cut", "starved")]
    advice = cut.next_step
    assert advice.startswith(advises)
    assert ("99.0 % of what is cut would only lead further outside" in advice) == (back == 1)
    if advises.startswith("with"):
        assert f"it passes {percent(back / 100)} of what is cut" in advice
        x.grad = None
        follow(advice, step)
        assert int(torch.count_nonzero(x.grad)) == back


STEEP: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": lambda z: (2 * z.exp()).clamp(max=9),
    "cube": lambda z: z.pow(3).clamp(-1, 1),
    "cosh": lambda z: z.cosh().clamp(max=9),
    "inverse": lambda z: z.reciprocal().clamp(max=0.1),
    "quotient": lambda z: (z / (z + 1)).clamp(max=0.5),
}
SLOW: dict[str, Callable[[Tensor], Tensor]] = {
    "square": lambda z: z.pow(2).clamp(max=1),
    "scale": lambda z: (z * 3 / 2).clamp(max=1),
    "beside a mean": lambda z: (z + z.exp() * torch.ones(4)).clamp(max=1),
}


@pytest.mark.parametrize("towards", [0, 100])
@pytest.mark.parametrize("op", [*STEEP, *SLOW])
def test_no_rule_is_advised_behind_an_op_whose_slope_grows_without_end(op: str, towards: int) -> None:
    """With `inward` behind a cube, gradient descent ends in NaN where it trained with torch's own."""
    p = nn.Parameter(torch.full((4,), 3.0))
    d = diagnosed(lambda: (({**STEEP, **SLOW}[op](p) - towards).square() + p.square()).sum())
    advised = only(d, "cut").next_step
    is_steep = f"outside, the slope of {'div' if op == 'quotient' else ''}" in advised
    assert (is_steep, "override(clamp" in advised) == ((op in STEEP, op in SLOW) if not towards else (False, False))


GUARDED: dict[str, Callable[[Tensor], Tensor]] = {
    "sqrt": lambda p: (p.square().clamp(min=1e-12).sqrt() - 1).square().sum(),
    "log": lambda p: -(p * 1e-3).clamp(min=1e-8).log().sum(),
    "log, and all is cut": lambda p: -(p * 1e-10).clamp(min=1e-8).log().sum(),
    "log, between two bounds": lambda p: -(1 - (1 - p / 4).clamp(1e-6, 1 - 1e-6)).log().sum(),
    "division, from 0.05 on": lambda p: (torch.ones(3) / (p * 1).clamp(min=0.05)).sum(),
    "a floor of anything": lambda p: -(p * 1).clamp(min=0.3).tanh().sum(),
    "a range in front of exp": lambda p: (p * 3).clamp(-20, 2).exp().sum(),
    "inverse root, from 0.01 on": lambda p: (p * 1).clamp(0.01, 9).pow(-0.5).sum(),
}


@pytest.mark.parametrize("detail", ["full", "counts"])
@pytest.mark.parametrize("op", GUARDED)
def test_no_rule_is_advised_at_a_guard_of_the_op_that_follows(op: str, detail: Literal["full", "counts"]) -> None:
    """Passed by `inward`, the gradients at such a guard throw the parameter off."""
    p = nn.Parameter(torch.tensor([1e-7, 0.5, 2.0]))
    optimizer = torch.optim.SGD([p], 0.1)
    with diagnose(detail=detail) as d:
        GUARDED[op](p).backward()
        optimizer.step()
    (finding,) = [finding for finding in d.findings if finding.code in ("cut", "starved")]
    assert "of their size" not in finding.evidence or detail == "full"
    assert finding.next_step.startswith("None, if it is a floor or guards the op that follows")


# values at a bound, and an op behind the clamp that cuts there
ENDS: dict[str, tuple[list[float], Callable[[Tensor], Tensor]]] = {
    "relu": ([-1.0, 0.5], lambda p: torch.relu(p).clamp(0, 1)),
    "round": ([0.5, 0.1], lambda p: torch.round(p * 4).clamp(-2, 2)),
    "tanh": ([30.0, 0.1], lambda p: (1 - torch.tanh(p) ** 2).clamp(min=0)),
    "relu, further off": ([-1.0, 0.5], lambda p: (torch.relu(p).reshape(2, 1) * 0.5).clamp(0, 1)),
}
PASSES: dict[str, tuple[list[float], Callable[[Tensor], Tensor]]] = {
    "no op": ([0.0, 0.5], lambda p: (p * 1).clamp(0, 1)),
    "leaky": ([0.0, 0.5], lambda p: functional.leaky_relu(p).clamp(0, 1)),
    "another way": ([-1.0, 0.4], lambda p: (torch.relu(p) + (p + 1)).clamp(0, 2)),
}


@pytest.mark.skipif(not tells_unpack_hooks, reason="on torch 2.8 no node is run once more")
@pytest.mark.parametrize("case", [*ENDS, *PASSES])
def test_no_pin_is_advised_where_an_op_behind_the_clamp_cuts_the_gradient_anyway(case: str) -> None:
    start, forward = (ENDS | PASSES)[case]
    p = nn.Parameter(torch.tensor(start))
    d = diagnosed(lambda: forward(p).sum() + p.sum(), times=2)
    assert ("pin_edge" in str(d)) == (case in PASSES)


# of a parameter with 2 among its values: what is advised
CLIPS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "clamp": (lambda p, b: p.clamp(0, 1), "(0, 1)"),
    "one side": (lambda p, b: torch.clamp_max(p, 1.0), "(None, 1.0)"),
    "a tensor": (lambda p, b: p.clamp(max=b.detach()), "(None, high)"),
    "in front of a root": (lambda p, b: p.clamp(1e-5, 1).sqrt(), "(1e-05, 1)"),
    "read twice alike": (lambda p, b: p.clamp(0, 1) + torch.clamp(p, 0, 1), "(0, 1)"),
    "read without the clamp": (lambda p, b: p + p.clamp(0, 1), ""),
    "the other half": (lambda p, b: p.clamp(max=1) + 2 * p.clamp(min=1), ""),
    "computed": (lambda p, b: (p * 1).clamp(0, 1), ""),
    "computed by the same line": (lambda p, b: sum(x.clamp(0, 1) for x in (p, p * 2)), ""),
    "other bounds by the same line": (lambda p, b: sum(p.clamp(0, high) for high in (1, 1.5)), ""),
}


@pytest.mark.parametrize("is_stepped", [True, False])
@pytest.mark.parametrize("case", CLIPS)
def test_a_clamp_of_a_parameter_itself_is_advised_to_become_a_projection(case: str, is_stepped: bool) -> None:
    read, bounds = CLIPS[case]
    pixel, high = nn.Parameter(torch.tensor([2.0, 0.5, 0.5])), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([pixel if is_stepped else nn.Parameter(torch.ones(1)), high], 0.1)
    d = steps(None, lambda: read(pixel, high).sum(), 2, optimizer)
    advice = next(finding.next_step for finding in d.findings if finding.code in ("cut", "edge"))
    if not (bounds and is_stepped):
        assert advice.startswith(("with pseudograd.override(", "None, if "))
        return
    line, then = advice.split("  # ")
    assert line == f"pseudograd.optim.project(optimizer, {{pixel: {bounds}}})"
    edits, _, why = then.partition("; compare a training with it")
    assert "once, after the optimizer was made, if no other line should see it outside this range; then read" in edits
    assert why == (", as what follows may be steep at the bound" if case == "in front of a root" else "")
    assert ("low and high are the bounds of this clamp" in then) == (case == "a tensor")
    follow(line, id, optimizer=optimizer, pixel=pixel, high=high.detach())
    assert pixel.detach().max() <= 1


class _Climb(torch.optim.SGD):
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        assert closure is not None
        closure()
        with torch.no_grad():
            self.param_groups[0]["params"][0].add_(0.01)
        return closure()


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, _Climb])
def test_no_projection_is_advised_where_a_step_reads_the_parameter_outside_its_range(
    kind: type[torch.optim.SGD],
) -> None:
    """binary_cross_entropy raises an error there."""
    p = nn.Parameter(torch.full((3,), 1.4))
    optimizer = kind([p], lr=1.0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy(p.clamp(0.02, 0.98), torch.tensor([0.0, 1.0, 0.0]))
        loss.backward()
        return loss

    with diagnose() as d:
        for _ in range(3):
            optimizer.step(closure)
    assert only(d, "starved").next_step.startswith("with pseudograd.override(clamp=")


def test_a_quantiser_that_is_a_relu_as_well_needs_no_larger_scale() -> None:
    x = nn.Parameter(torch.linspace(-3, 1, 16))
    d = diagnosed(lambda: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 15).sum())
    assert only(d, "cut").next_step.startswith("None, if one side is cut on purpose. Else compare")


RESTS: dict[str, Callable[[Tensor], Tensor]] = {
    "a penalty": lambda x: (x - x.clamp(0, 1)).square().mean(),
    "a penalty by mse": lambda x: functional.mse_loss(x.clamp(0, 1), x),
    "a scaled penalty": lambda x: (0.5 * (x * 2).clamp(0, 2) - x).norm(),
    "a soft threshold": lambda x: (x - x.clamp(-0.2, 0.2) - torch.tensor([-2.0, 0.0, -2.0])).square().sum(),
}


@pytest.mark.parametrize("start", [[-1.0, 0.5, 2.0], [0.0, 0.0, 0.0]], ids=["outside", "at the bound"])
@pytest.mark.parametrize("rest", RESTS)
def test_a_clamp_that_is_subtracted_from_its_input_is_calm(rest: str, start: list[float]) -> None:
    """A rule would take the gradient of what stands outside away."""
    x = torch.tensor(start, requires_grad=True)
    d = steps(None, lambda: RESTS[rest](x) + (0.1 * x - 0.1).square().sum(), 3, torch.optim.SGD([x], 0.1))
    assert codes(d) == []
    assert any("its difference from its own input goes on" in line for line in d.calm) or not any(start)


CEILINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "of each": lambda e: e.square().clamp(max=4).mean(),
    "from 0": lambda e: e.square().clamp(0, 4).sum() / 5,
}


@pytest.mark.parametrize("ceiling", CEILINGS.values(), ids=CEILINGS)
def test_no_rule_is_advised_at_a_ceiling_of_the_loss(ceiling: Callable[[Tensor], Tensor]) -> None:
    """It leaves outliers out; with `inward` they decide the fit."""
    w, target = nn.Parameter(torch.zeros(1)), torch.tensor([1.0, 1.1, 0.9, 1.0, 30.0])
    d = steps(None, lambda: ceiling(w - target), 5, torch.optim.SGD([w], 0.1))
    assert only(d, "cut").next_step.startswith("None, if it is a ceiling that leaves out the largest terms of the loss")


# the slope outside is meant to be 0, but in those of ELSE
MEANT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a relu": lambda x, w: x.clamp(min=0),
    "a soft threshold": lambda x, w: (x.abs() - 0.3 * w).clamp(min=0),
    "an overlap": lambda x, w: (torch.min(x, w) - torch.max(x - w, 0.2 * w)).clamp(min=0),
    "a window": lambda x, w: (1 - (x - 0.4 * w).abs().sum(-1, keepdim=True) / (0.3 * w)).clamp(0, 1),
    "a round window": lambda x, w: ((0.15 * w - (x - 0.5 * w)[:, None].norm(dim=1)) / 0.2).clamp(0, 1),
    "an activation": lambda x, w: functional.linear((x * 4).clamp(-1, 1), nn.Parameter(torch.ones(1, 1))),
    "in front of a pool": lambda x, w: functional.linear(
        functional.avg_pool2d((x * 4).clamp(-1, 1)[None], 1), nn.Parameter(torch.ones(1, 1))
    ),
    "a gate": lambda x, w: torch.mm(-x * (x * 3 + 0.5).clamp(0, 1), nn.Parameter(torch.ones(1, 1))),
    "a picture": lambda x, w: x.clamp(0, 1),
    "actions of an actor": lambda x, w: torch.mm(torch.cat([x, x.clamp(0, 1)], 1), nn.Parameter(torch.ones(2, 1))),
    "all outside": lambda x, w: (x * w - 9).clamp(min=0),
}


ELSE = ("a picture", "actions of an actor", "all outside")


@pytest.mark.parametrize("meant", MEANT)
def test_no_rule_is_advised_where_the_slope_outside_is_meant_to_be_0(meant: str) -> None:
    """Passed by `inward`, the gradients from far outside mislead the training of an activation, and more that of a window."""
    w, x = nn.Parameter(torch.ones(2)), torch.tensor([[-0.5], [0.1], [0.5]])
    d = steps(None, lambda: (MEANT[meant](x * w[:1], w[1:]) * 2 - 3).square().sum(), 2, torch.optim.SGD([w], 1e-4))
    advice = next(finding.next_step for finding in d.findings if finding.code in ("cut", "starved"))
    assert advice.startswith("None, if the slope outside is meant to be 0") == (meant not in ELSE)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_that_hides_x_makes_no_advice_of_what_is_not_known(use_reentrant: bool) -> None:
    x = torch.tensor([-3.0, 0.3, 3.0], requires_grad=True)
    y = lambda: checkpoint(lambda x: (x * 2).clamp(-1, 1), x, use_reentrant=use_reentrant)  # noqa: E731
    advice = only(diagnosed(lambda: (y() * torch.tensor([1.0, 1.0, 1.0])).tanh().sum()), "cut").next_step
    assert ("nobody saw here whether" in advice, "override" in advice) == (not use_reentrant, use_reentrant)


@pytest.mark.parametrize("way", ["another line", "another clamp"])
def test_a_parameter_at_the_bound_of_one_of_its_ways(way: str) -> None:
    """By another line it trains. Behind another clamp at its bound, a projection would bring it nothing."""
    gate = nn.Parameter(torch.zeros(3))

    def loss() -> Tensor:
        inner = gate.clamp(0, 1)
        y = inner + 0.1 * gate if way == "another line" else (2 * inner).clamp(0, 2)
        return (y - 0.5).square().sum()

    d = steps(None, loss, 3, torch.optim.SGD([gate], 0.1))
    is_older = installed_era() == "torch<=2.13"
    kinks = [finding for finding in d.findings if finding.expression == "gate.clamp(0, 1)" and finding.code == "kink"]
    assert len(kinks) == (is_older or way == "another clamp")
    assert ("so it never trains" in str(d)) == (way == "another clamp")
    if way == "another clamp" and not is_older:
        pin = "with pseudograd.pin_edge('torch<=2.13')"
        assert all(finding.next_step.startswith(pin) for finding in d.findings)
        follow(d.findings[0].next_step, lambda: loss().backward())
        assert gate.grad is not None
        assert gate.grad.all()


@pytest.mark.parametrize("start", [2.0, 1.0])
def test_a_clamped_parameter_of_a_model_that_starves_or_stands_at_the_bound_is_named_by_its_path(start: float) -> None:
    net = nn.Sequential(nn.ParameterDict({"gain": torch.full((3,), start)}))
    adam = torch.optim.Adam(net.parameters(), 0.1)
    with diagnose() as d:
        for _ in range(2):
            net[0]["gain"].clamp(0, 1).sum().backward()
            adam.step()
    (finding, *_) = [finding for finding in d.findings if finding.code in ("starved", "kink")]
    assert finding.next_step.startswith(
        "pseudograd.optim.project(adam, {net.get_parameter('0.gain'): (0, 1)})  # once,"
    )


class Gain(nn.Module):
    def __init__(self, start: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((3,), start))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain.clamp(0, 1)


@pytest.mark.parametrize("start", [2.0, 1.0])
@pytest.mark.parametrize("are_modules", [True, False])
def test_one_clamp_of_several_parameters_is_a_projection_of_each(are_modules: bool, start: float) -> None:
    net = nn.Sequential(Gain(start), Gain(start))
    loss = (lambda: net(torch.ones(3))) if are_modules else lambda: sum(p.clamp(0, 1) for p in net.parameters())
    d = steps(net, lambda: loss().sum(), 3)
    (finding, *_) = [finding for finding in d.findings if finding.code in ("starved", "kink")]
    assert "{parameter: (0, 1)})  # once for each parameter that this line clamps, after" in finding.next_step


# --- a wind-up ---------------------------------------------------------------------------------------------------------


def _steps(
    z: Tensor, loss: Callable[[Tensor, int], Tensor], after: Callable[[Tensor], object] = id, steps: int = 20
) -> Diagnosis:
    numbers, optimizer = itertools.count(), torch.optim.SGD([z], 0.1)
    held = torch.no_grad()(lambda: after(z))
    return trainers.steps(None, lambda: loss(z, next(numbers)), steps, optimizer, held)


def _away(z: Tensor, number: int) -> Tensor:
    return (-z).sum()


LOW, HIGH = torch.tensor(-0.5), torch.tensor(0.5)
SILENT: dict[str, tuple[Callable[[Tensor, int], Tensor], Callable[[Tensor], object]]] = {
    "a projection": (_away, lambda z: z.copy_(z.clamp(-0.5, 0.5))),
    "a projection by tensors": (_away, lambda z: z.copy_(z.maximum(LOW).minimum(HIGH))),
    "a picture in the loss's line": (lambda z, n: (-z).sum() + 0 * z.detach().clamp(-0.5, 0.5).max().item(), id),
    "a clamp that cuts": (lambda z, n: (-z.clamp(-0.5, 0.5)).sum() - 0.1 * z.sum(), id),
    "inward": (lambda z, n: (-pg.clamp(z, -0.5, 0.5)).sum() - 0.1 * z.sum(), id),
    "an importance weight": (lambda z, n: (-(2 * z).exp().clamp(max=1.2).detach() * z).sum(), id),
    "to and fro": (lambda z, n: (-1.0) ** n * pg.clamp(z, -0.5, 0.5, rule="identity").sum(), id),
}


@pytest.mark.parametrize("case", SILENT)
def test_a_value_that_is_held_or_turns_does_not_wind_up(case: str) -> None:
    d = _steps(nn.Parameter(torch.linspace(-0.4, 0.4, 5)), *SILENT[case])
    assert "wind-up" not in codes(d), d.findings


ROUND: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda z: pg.clamp(z, -0.5, 0.5, rule="identity"),
    "detached after": lambda z: z + (z.clamp(-0.5, 0.5) - z).detach(),
    "detached before": lambda z: z - z.detach() + z.detach().clamp(-0.5, 0.5),
    "without grad": lambda z: z + (torch.no_grad()(lambda: z.clamp(-0.5, 0.5))() - z.detach()),
}


@pytest.mark.parametrize(("way", "turns"), one_in(2, ROUND, [False, True]))
def test_a_value_that_winds_up_and_turns_is_a_finding(way: str, turns: bool) -> None:
    z = nn.Parameter(torch.linspace(-0.4, 0.4, 5))
    d = _steps(z, lambda z, n: ROUND[way](z).sum() * (1 if turns and n >= 15 else -1), steps=30)
    finding = only(d, "wind-up")
    assert re.search("over (1[0-6]|2\\d|30) steps", finding.evidence)
    assert finding.next_step.startswith("pseudograd.optim.project(optimizer, {z: (-0.5, 0.5)})")
    assert "steep" not in finding.next_step
    optimizer = torch.optim.SGD([z], 0.1)
    follow(finding.next_step, id, optimizer=optimizer, z=z)
    assert z.detach().abs().max() <= 0.5


def test_a_projection_of_a_value_that_winds_up_in_front_of_a_pole_is_compared() -> None:
    z = nn.Parameter(torch.full((3,), 0.5))
    d = _steps(z, lambda z, n: pg.clamp(z, 0.01, 1, rule="identity").log().sum(), steps=30)
    assert only(d, "wind-up").next_step.endswith("as what follows may be steep at the bound")


def test_a_projection_under_no_grad_is_no_kink_but_the_clamp_of_the_loss_is() -> None:
    p = nn.Parameter(torch.zeros(4))
    with diagnose() as d:
        with torch.no_grad():
            p.clamp_(0, 1)
            p.copy_(p.clamp(0, 1))
        (p * 2).sum().backward()
    assert codes(d) == []
    with diagnose() as d:
        for mode in (torch.no_grad(), contextlib.nullcontext()):  # an evaluation before the first step
            with mode:
                y = p.clamp(0, 1)
        y.sum().backward()
    assert d.findings[0].code == "kink"


def test_a_clamp_at_its_bound_whose_result_is_detached_is_no_kink() -> None:
    """The divergence of a policy from its own copy, as in the loss of KTO."""
    net = nn.Linear(8, 3)
    copied = copy.deepcopy(net).requires_grad_(False)

    def loss() -> Tensor:
        x = torch.linspace(-1, 1, 32).reshape(4, 8)
        ratio = net(x) - copied(x)
        return torch.sigmoid(ratio.mean().clamp(min=0).detach() - ratio).mean()

    assert codes(steps(net, loss, 4)) == []


def test_an_op_of_ours_has_no_kink_of_torch() -> None:
    p = nn.Parameter(torch.zeros(4))
    d = diagnosed(lambda: pg.clamp(p, 0.0, 1.0, rule="identity").sum())
    assert codes(d) == []


# --- vanishing ----------------------------------------------------------------------------------------------------------


def _mlp(
    depth: int, activation: Callable[[], nn.Module], norm: Callable[[int], nn.Module] | None = None
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in [4, *[32] * (depth - 2)]:
        layers += [nn.Linear(width, 32), *([norm(32)] if norm else []), activation()]
    return nn.Sequential(*layers, nn.Linear(32, 1))


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


NETS: dict[str, Callable[[], nn.Module]] = {
    "residual": lambda: nn.Sequential(
        nn.Linear(4, 32), *(Residual(nn.Linear(32, 32), nn.Sigmoid()) for _ in range(16))
    ),
    "normalised": lambda: _mlp(16, nn.ReLU, nn.LayerNorm),
}


@pytest.mark.parametrize("name", NETS)
def test_no_gradient_vanishes_in_a_usual_network(name: str) -> None:
    net = NETS[name]()
    assert codes(diagnosed(lambda: net(torch.randn(64, 4)).square().mean(), net)) == []


def test_a_gradient_that_vanishes_is_a_finding_with_its_fall_and_its_cause() -> None:
    """The advice ends it: see the test above."""
    net = _mlp(10, nn.Sigmoid)
    d = diagnosed(lambda: net(torch.randn(64, 4)).square().mean(), net)
    (finding,) = d.findings
    assert finding.code == "vanish"
    assert "(0.weight)" in finding.evidence
    assert "each sigmoid multiplies it by at most 1/4" in finding.cause
    assert "Put a residual connection around each layer; or take relu" in finding.next_step
    norms = [float(parameter.grad.norm()) for parameter in net.parameters() if parameter.grad is not None]
    assert finding.share == pytest.approx(1 - norms[0] / norms[-2], rel=1e-6)


# --- what is deliberate --------------------------------------------------------------------------------------------------


def _cut_three(ignore: list[str]) -> Diagnosis:
    x, teacher = nn.Parameter(torch.tensor([3.0, 0.5])), nn.Parameter(torch.tensor([5.0]))
    with diagnose(nn.ParameterDict({"student": x, "teacher": teacher}), ignore=ignore) as d:
        second = x.clamp(0, 2)  # pseudograd: deliberate, the picture's range
        # pseudograd: deliberate
        third = x.clamp(0, 1.5)
        first = x.clamp(0, 1)
        (first + second + third).sum().backward()
    return d


def test_a_comment_mutes_its_line_and_is_counted() -> None:
    d = _cut_three([])
    assert [finding.expression for finding in d.findings if finding.code == "cut"] == ["x.clamp(0, 1)"]
    assert starved(d) == ["teacher"]
    assert d.muted == d.to_json()["muted"] == 2
    assert "deliberate: 2 findings left out: a comment at the line, ignore or select says so" in str(d)
    assert sorted(site.is_deliberate for site in d.sites if site.op == "clamp") == [False, True, True]


@pytest.mark.parametrize("pattern", ["test_true_findings.py:*", "*:{line}"])
def test_patterns_mute_lines_and_parameters(pattern: str) -> None:
    d = _cut_three([pattern.format(line=line_of("first = x.clamp(0, 1)")), "teach*"])
    assert (codes(d), d.starved) == ([], [])
    assert parse_condition("cut")(d) == parse_condition("any")(d) == parse_condition("vanish>0.5")(d) == []


# --- a next step works, wherever it is pasted ----------------------------------------------------------------------------


@pytest.mark.parametrize(("folder", "is_same"), [("models", True), ("other", False)])
def test_a_relative_path_is_that_of_the_folder_in_which_the_program_is(
    folder: str, is_same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "gate.py").touch()
    monkeypatch.chdir(tmp_path / "models")
    assert frames.is_same_line("gate.py:7", f"{folder}/gate.py:7") is is_same


_IN_A_FUNCTION = "def f(p):\n    return p.clamp(-1, 1).sum()\n{step}f(p).backward()\n"
_AROUND_THE_LINE = "{step}p.clamp(-1, 1).sum().backward()\n"
_ON_TWO_LINES = "def f(p):\n    return torch.clamp(\n        p, -1, 1).sum()\n{step}f(p).backward()\n"
_TWICE = (
    "def f(p):\n    return p.clamp(-1, 1).sum()\ndef g(p):\n    return p.clamp(-1, 1).sum()\n{step}f(p).backward()\n"
)


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "cell"])
@pytest.mark.parametrize("program", [_IN_A_FUNCTION, _AROUND_THE_LINE, _ON_TWO_LINES])
def test_an_override_works_where_it_moves_its_own_line(program: str, is_file: bool, tmp_path: Path) -> None:
    before, after = (torch.full((4,), 5.0, requires_grad=True) for _ in range(2))
    with diagnose() as d:
        _run_program(program.format(step=""), tmp_path / "train.py", is_file, before)
    line = only(d, "starved").next_step.partition("If it subtracts it: ")[2].split("#")[0].replace(": ...", ":\n    ")
    pasted = "import pseudograd\n" + program.format(step=line)
    _run_program(pasted, tmp_path / "train.py" if is_file else tmp_path / "again.py", is_file, after)
    assert torch.equal(torch.zeros(4), before.grad)
    assert torch.equal(torch.ones(4), after.grad)


def _run_program(source: str, file: Path, is_file: bool, p: Tensor) -> None:
    if is_file:
        file.write_text(source)
    else:
        linecache.cache[str(file)] = (len(source), None, source.splitlines(True), str(file))
    exec(compile(source, str(file), "exec"), {"torch": torch, "p": p})


def test_an_override_at_one_of_two_equal_calls_names_its_line_after_the_edit(tmp_path: Path) -> None:
    with diagnose() as d:
        _run_program(_TWICE.format(step=""), tmp_path / "train.py", True, torch.full((4,), 5.0, requires_grad=True))
    step = only(d, "starved").next_step
    assert "train.py:2')" in step
    assert "with the line as it is after this edit" in step


def test_no_advice_for_a_line_that_nobody_saw() -> None:
    g = nn.Parameter(torch.tensor(5.0))
    with diagnose() as d:
        thread = threading.Thread(target=lambda: g.clamp(0, 2).sum().backward())
        thread.start()
        thread.join()
    assert all("'?'" not in finding.next_step for finding in d.findings)
    enter = "Enter pseudograd.diagnose before this call, in the thread"
    assert any(enter in finding.next_step for finding in d.findings)


def test_no_override_is_advised_that_reaches_nothing() -> None:
    """Nobody has written this out, and torch keeps it private."""
    x = nn.Parameter(torch.full((3,), 9.0))
    scale = torch.tensor([0.1]), torch.tensor([0.0])
    d = diagnosed(lambda: torch._fake_quantize_learnable_per_tensor_affine(x, *scale, -8, 7).sum())
    assert d.findings
    assert all("override(" not in finding.next_step for finding in d.findings)


def test_the_page_s_placeholders_are_data_where_a_program_holds_them(tmp_path: Path) -> None:
    loss = define("# %TEXT% and %DATA%\nreturn w.clamp(-1, 1).sum()", tmp_path / "program.py", "w")
    d = diagnosed(lambda: loss(nn.Parameter(torch.full((4,), 5.0))))
    page = d.write_html(tmp_path / "page.html").read_text()
    data = re.search(r'id="data">(.*?)</script>', page, re.S)
    (site, *_) = json.loads(data[1])["sites"]
    lines = ["def program(w):", "    # %TEXT% and %DATA%", "    return w.clamp(-1, 1).sum()"]
    assert (site["source"]["first"], site["source"]["line"], site["source"]["lines"]) == (1, 3, lines)
    assert site["source"]["columns"] == ([11, 25] if sys.version_info >= (3, 11) else None)


@pytest.mark.parametrize(("start", "is_outside"), [([0.0, 0.2, 0.5, 1.0], True), ([0.0, 0.0], False)])
def test_a_pin_is_known_also_where_it_pins_what_this_torch_does(start: list[float], is_outside: bool) -> None:
    """No mode is entered then, and another torch would do the same: the eras do not differ there."""

    def find_codes(*contexts: contextlib.AbstractContextManager[object]) -> list[str]:
        p, d = nn.Parameter(torch.tensor(start)), diagnose()
        with contextlib.ExitStack() as stack:
            for context in [*contexts, d] if is_outside else [d, *contexts]:
                stack.enter_context(context)
            p.clamp(0.0, 2.0).sum().backward()
        return codes(d)

    assert set(find_codes()) <= {"edge", "kink"}
    assert find_codes() != []
    own = find_codes(pg.pin_edge(installed_era()))
    assert own == [] if installed_era() == "torch<=2.13" else "edge" not in own
    assert find_codes() != [], "what was pinned before is not pinned any more"


def _boxes(p: nn.Parameter) -> Tensor:
    """What stands outside moves further, by another way to the loss, and nothing arrives there."""
    overlap = torch.min(p, torch.ones(3)).clamp(0) * torch.tensor([0.0, 1.0, 0.0])
    return (overlap - 0.4).square().sum() + 0.3 * (p * torch.tensor([1.0, 0.0, -1.0])).sum()


def _floor(p: nn.Parameter) -> Tensor:
    """The guard that `nonfinite` advises: what stands below it would only go further down."""
    return (p - torch.tensor([0.0, 0.4, 0.4])).clamp(min=1e-12).sqrt().sum() + 0.1 * p.sum()


def _margin(p: nn.Parameter) -> Tensor:
    near, far = (p - 0.2).abs(), (p - torch.tensor([0.0, 3.0, 0.4])).abs()
    return (0.1 + near - far).clamp(min=0).mean() + nn.functional.margin_ranking_loss(near, far, torch.ones(3), 0.1)


@pytest.mark.parametrize("loss", [_boxes, _floor, _margin])
def test_hinges_and_values_moved_by_other_ways_are_no_findings(loss: Callable[[nn.Parameter], Tensor]) -> None:
    p = nn.Parameter(torch.tensor([-0.5, 0.5, 1.5]))
    assert codes(steps(None, lambda: loss(p), 25, torch.optim.SGD([p], 0.05))) == []


HIGHS = itertools.cycle((1 - 1e-6, 0.9))
HINGES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "0": (lambda x: x.clamp(min=0.0).tanh(), "as at a hinge, or at a guard against 0"),
    "1e-6": (lambda x: x.clamp(min=1e-6).tanh(), "as at a hinge, or at a guard against 0"),
    "2e-6": (lambda x: x.clamp(min=2e-6).tanh(), ""),
    "-1e-6": (lambda x: x.clamp(min=-1e-6).tanh(), ""),
    "two guards": (lambda x: -x.abs().clamp(-1 + 1e-6, 1 - 1e-6), "as at a guard"),
    "one guard": (lambda x: -x.abs().clamp(-1 + 1e-6, 0.9), ""),
    "two guards, and then one": (lambda x: -x.abs().clamp(-1 + 1e-6, next(HIGHS)), ""),
}


@pytest.mark.parametrize("name", HINGES)
def test_a_lower_bound_of_0_and_guards_are_calm(name: str) -> None:
    function, calm = HINGES[name]
    x = torch.tensor([-1.0, 0.5, 1.5, 1 - 1e-6], requires_grad=True)
    d = diagnosed(lambda: function(x).sum(), times=2)
    assert codes(d) == ([] if calm else ["cut"])
    assert [line.endswith(calm) for line in d.calm] == [True] * bool(calm)


def test_the_clamp_that_nonfinite_advises_in_front_of_a_softmax_is_no_cut() -> None:
    x = torch.tensor([60.0, 0.1, 0.2, 61.0], requires_grad=True)
    d = diagnosed(lambda: ((x - torch.inf).reshape(2, 2).clamp(-1e30, 1e30).softmax(1) * x.reshape(2, 2)).sum())
    assert "cut" not in codes(d)


@pytest.mark.parametrize(
    ("lowest", "causes"), [(0.0, []), (-30.0, ["outside its range stand 1 below and 1 that are nan"])]
)
def test_a_clamp_is_not_blamed_for_what_nan_cuts(lowest: float, causes: list[str]) -> None:
    p = torch.tensor([1.0, -1.0, math.exp(lowest)], requires_grad=True)

    def loss() -> Tensor:
        y = torch.log(p)
        return -y.clamp(min=-20).sum()

    assert [finding.cause for finding in diagnosed(loss).findings if finding.code == "cut"] == causes
    assert diagnosed(lambda: (3 * p[:2]).log().clamp(min=0).sum()).calm == []


FLOORS: dict[str, Callable[[Tensor], Tensor]] = {
    "of each": lambda kl: kl.clamp(min=0.25).sum(),
    "of the sum": lambda kl: 0.1 * kl.mean().clamp_min(5.0),
    "of a mean": lambda kl: kl.mean(0).clamp(min=0.25).sum(),
}


@pytest.mark.parametrize("floor", FLOORS.values(), ids=FLOORS)
def test_free_bits_are_calm(floor: Callable[[Tensor], Tensor]) -> None:
    x = torch.full((4, 3), 0.1, requires_grad=True)
    with diagnose() as d:
        for _ in range(3):
            (floor(x.square() / 2) + 0.01 * x.sum()).backward()
    assert codes(d) == []
    assert any(line.endswith("as with free bits, or at another floor of a loss") for line in d.calm)


def test_the_advice_at_a_detach_holds_for_a_tensor_of_two_losses() -> None:
    """In a GAN the tensor itself in both losses would run backward a second time."""
    g, critic = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (g, critic)]
    with diagnose() as d:
        for _ in range(3):
            fake = g(torch.ones(1, 2)).detach()
            critic(fake).sum().backward()
            (-critic(fake)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    assert any("and .detach() in each other loss" in finding.next_step for finding in d.findings)
