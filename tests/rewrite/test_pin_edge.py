"""pin_edge against what torch 2.13 and 2.15 themselves gave, element for element, whatever torch runs this."""

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudograd.kernels import bits
from pseudograd.rewrite.context import Rewriting
from pseudograd.rewrite.edges import rule_named
from pseudograd.rewrite.mode import Replacement
from pseudograd.rewrite.override import override
from pseudograd.rewrite.pin_edge import pin_edge
from pseudograd.torch_table.eras import ERAS, installed_era, measure
from pseudograd.torch_table.forms import edge_cases
from pseudograd.torch_table.records import EDGE

from ..choices import every_pair, folded
from .eras import GRAD, VALUES, cases, composites, gradients

MEASURED = json.loads((Path(__file__).parent / "eras.json").read_text())
CASES = {name: (function, bounds) for name, function, bounds in cases()}
COMPOSITES = {name: (function, bounds) for name, function, bounds in composites()}
WAYS = {way.text: way for way in edge_cases()}
SHARES = {"closed": 1.0, "open": 0.0, "half": 0.5}


def forced(edge: str, elsewhere: str) -> Rewriting:
    """A pinned edge that also rewrites where the installed torch does the same by itself."""
    return Rewriting("forced", {EDGE: Replacement(rule_named(edge, elsewhere))})


@folded
@pytest.mark.parametrize(("name", "era", "least"), every_pair([*CASES, *COMPOSITES], ERAS, [0, 1 << 62]))
def test_an_era_is_that_torchs_own_gradient(name: str, era: str, least: int) -> None:
    """Also if the pin names the installed era and has to rewrite. From the second call on the call is not read again."""
    case = {**CASES, **COMPOSITES}[name]
    with bits.save_bits_from(least), forced(era, "") as context:
        for _ in range(3):
            assert gradients(*case) == MEASURED[era][name]
    assert sum(site.calls for site in context.report().rewritten) == 3
    with pin_edge(era):
        assert gradients(*case) == MEASURED[era][name]


@folded
@pytest.mark.parametrize(("name", "edge", "elsewhere"), every_pair(CASES, SHARES, ERAS))
def test_an_edge_changes_the_edge_alone(name: str, edge: str, elsewhere: str) -> None:
    function, bounds = CASES[name]
    with forced(edge, elsewhere):
        pinned = gradients(function, bounds)
    wanted = [list(grads) for grads in MEASURED[elsewhere][name]]
    numbers = [float(b.detach()[0]) if isinstance(b, torch.Tensor) else b for b in bounds]
    y = function(
        torch.tensor(VALUES, dtype=torch.float64), *[b.detach() if isinstance(b, torch.Tensor) else b for b in bounds]
    )
    for i, (x, g) in enumerate(zip(VALUES, GRAD, strict=True)):
        crossed = None not in numbers and len(numbers) == 2 and numbers[0] > numbers[1]
        at = [not crossed and number is not None and x == number == float(y[i]) for number in numbers]
        if any(at):
            wanted[0][i] = SHARES[edge] * g + 0.0
            for which, grads in enumerate(wanted[1:]):
                tensors = [position for position, b in enumerate(bounds) if isinstance(b, torch.Tensor)]
                grads[i] = (1 - SHARES[edge]) * g + 0.0 if tensors[which] == at.index(True) else 0.0
    assert pinned == wanted


@folded
@pytest.mark.parametrize("name", WAYS)
def test_every_way_to_write_a_clamp_has_its_era(name: str) -> None:
    for era in ERAS:
        with pin_edge(era):
            assert measure(WAYS[name].f) == WAYS[name].slopes_in(era)


CALLS: dict[str, Any] = {
    "numbers": lambda x: torch.clamp(x, -1.0, 1.0),
    "tensors": lambda x: torch.clamp(x, torch.full_like(x, -1.0), torch.ones(())),
    "in place": lambda x: (x * 1).clamp_(-1.0, 1.0),
    "fmin": lambda x: torch.fmin(x, torch.full_like(x, 1.0)),  # torch 2.13's own fmax has another slope in forward mode
}


@folded
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("edge", [*SHARES, *ERAS])
def test_forward_mode_and_double_backward_have_the_same_slope(name: str, edge: str) -> None:
    """d/dx of grad_x * x is slope, and grad_x is linear in grad with the same slope."""
    x = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0], requires_grad=True)
    v = torch.tensor([1.0, -2.0, 3.0, -4.0, 5.0], requires_grad=True)
    f = CALLS[name]
    with pin_edge(edge):
        slope = torch.autograd.grad(f(x), x, torch.ones(5))[0]
        assert torch.equal(torch.func.vjp(f, x.detach())[1](v)[0], slope * v)
        assert torch.equal(torch.func.jvp(f, (x.detach(),), (v.detach(),))[1], slope * v)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x.detach(), v.detach())
            assert torch.equal(torch.autograd.forward_ad.unpack_dual(f(dual)).tangent, slope * v)
        (first,) = torch.autograd.grad(f(x) ** 2, x, v, create_graph=True)
        assert torch.equal(first, 2 * f(x) * slope * v)
        second_x, second_v = torch.autograd.grad(first.sum(), (x, v))
    assert torch.equal(second_x, 2 * slope * slope * v)
    assert torch.equal(second_v, 2 * f(x) * slope)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_bound_is_where_torch_rounds_it_to(dtype: torch.dtype) -> None:
    """0.3 and 0.7 fit no binary format: x at the rounded bound is at the bound."""
    x = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9, torch.nan], dtype=dtype, requires_grad=True)
    era = installed_era()
    plain = torch.autograd.grad(torch.clamp(x, 0.3, 0.7).sum(), x)[0]
    with forced(era, ""):
        assert torch.equal(torch.autograd.grad(torch.clamp(x, 0.3, 0.7).sum(), x)[0], plain)
    for edge, share in SHARES.items():
        with pin_edge(edge):
            grads = torch.autograd.grad(torch.clamp(x, 0.3, 0.7).sum(), x)[0]
        assert grads.tolist() == [0.0, share, 1.0, share, 0.0, 0.0]


@folded
@pytest.mark.parametrize("shapes", list(itertools.product(((), (3,), (2, 3)), repeat=3)), ids=str)
def test_three_dtypes_are_torchs_own(shapes: tuple[tuple[int, ...], ...]) -> None:
    chance = random.Random(str(shapes))
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    for kinds in [tuple(chance.choices(dtypes, k=3)) for _ in range(8)]:
        leaves = [
            torch.tensor(chance.choices((0.1, 0.3, -0.1, 0.7, 0.70001, 1 / 3), k=math.prod(shape)))
            .reshape(shape)
            .to(chance.choice(dtypes))
            .to(dtype)
            .requires_grad_()
            for shape, dtype in zip(shapes, kinds, strict=True)
        ]

        def grads() -> tuple[Tensor, ...]:
            y = torch.clamp(*leaves)  # noqa: B023
            return torch.autograd.grad(y, leaves, torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(y.dtype))  # noqa: B023

        try:
            wanted = grads()
        except RuntimeError:  # torch 2.13 cannot sum some of these
            continue
        with override(clamp="sign"), pin_edge(installed_era()):  # inside another context, so that it acts
            pinned = grads()
        assert [grad.dtype for grad in pinned] == [grad.dtype for grad in wanted]
        assert all(map(torch.equal, pinned, wanted)), kinds


@pytest.mark.parametrize("f", [torch.clamp_min, torch.fmax], ids=lambda f: f.__name__)
def test_a_share_of_nothing_is_nothing_of_an_infinite_gradient_too(f: Any) -> None:
    inf = torch.tensor([torch.inf])
    for edge, expected in (("open", [0.0, torch.inf]), ("closed", [torch.inf, 0.0])):
        x, bound = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        with pin_edge(edge):
            assert [grad.item() for grad in torch.autograd.grad(f(x, bound), (x, bound), inf)] == expected


@folded
@pytest.mark.parametrize("edge", [*ERAS, *SHARES])
@pytest.mark.parametrize("name", ["maximum", "minimum", "clamp_min", "clamp_max"])
def test_the_clamps_of_lists_have_the_edge_and_their_extremes_share_as_maximum_does(name: str, edge: str) -> None:
    x, y = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    with forced(edge, installed_era() if edge in SHARES else "") as context:
        of_lists = torch.autograd.grad(getattr(torch, f"_foreach_{name}")([x], [y])[0].sum(), (x, y))
        alone = torch.autograd.grad(getattr(torch, name)(x, y).sum(), (x, y))
    assert all(map(torch.equal, of_lists, alone))
    assert sum(site.calls for site in context.report().rewritten) == 2 * name.startswith("clamp")


@pytest.mark.parametrize("call", [lambda x, **out: torch.clamp(x, 0, 1, **out), torch.abs])
def test_out_that_is_none_is_out_left_out(call: Any) -> None:
    x = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
    with pin_edge("jax"):
        plain, written = (torch.autograd.grad(call(x, **out).sum(), x)[0] for out in ({}, {"out": None}))
    assert torch.equal(plain, written)
    with pin_edge("jax"), torch.no_grad():
        out = torch.empty(3)
        assert call(x, out=out) is out
