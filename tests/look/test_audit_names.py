"""The name that an audit gives: every rule of the table from its behaviour alone, and none for what only looks like one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd import rules
from pseudograd.rule import OPS
from pseudograd.testing.contract.cases import Case, cases_of

from ..choices import folded
from .functions import above, below, clamped, inside, inward, of

LOW, HIGH = -0.7, 1 / 3  # neither is a point of the grid


def _named(f: Callable[[Tensor], Tensor], low: float = -2.0, high: float = 2.0) -> str | None:
    return pg.audit(f, low, high, points=101).rule


def _again(name: str) -> Callable[[Tensor], Tensor]:
    """The function that a name stands for, by running it as it is written."""
    return lambda x: eval(name, {**vars(pg.ops), **vars(pg), "rules": rules, "x": x})  # type: ignore[no-any-return]


_CASES = [case for case in cases_of(OPS["clamp"]) if not (case.maximize and (case.is_linear or case.parameters))]


@folded
@pytest.mark.parametrize("case", _CASES, ids=str)
def test_every_rule_of_the_clamp_with_every_edge(case: Case) -> None:
    f = case.function()
    name = _named(lambda x: f(x, LOW, HIGH))
    assert name is not None
    parameters = [f"{key}={value:.9g}" for key, value in case.parameters]
    written = f"rules.{case.rule.name}({', '.join(parameters)})" if parameters else f'"{case.rule.name}"'
    assert f"clamp(x, {LOW}, {HIGH}, rule={written}" in name
    assert (f'edge="{case.edge}"' in name) == (not case.rule.ignores_edge)
    assert ("maximize=True" in name) == case.maximize


_OTHERS = {
    "lower_bound/inward": (lambda x: pg.lower_bound(x, 0.25), 'clamp(x, 0.25, rule="inward", edge="closed")'),
    "upper_bound/sign": (
        lambda x: pg.upper_bound(x, 0.25, rule="sign", edge="half"),
        'clamp(x, max=0.25, rule="sign", edge="half")',
    ),
    "relu": (pg.relu, 'relu(x, rule="zero", edge="open")'),
    "relu of torch": (torch.relu, 'relu(x, rule="zero", edge="open")'),
    "relu/leaky": (
        lambda x: pg.relu(x, rule=rules.leaky(0.02), edge="half"),
        'relu(x, rule=rules.leaky(slope=0.02), edge="half")',
    ),
    "abs": (torch.abs, "abs(x, edge=0)"),
    "abs, -1 at 0": (lambda x: pg.abs(x, edge=-1), "abs(x, edge=-1)"),
    "round": (pg.round, 'round(x, rule="identity")'),
    "round of torch": (torch.round, 'round(x, rule="zero")'),
    "a decimal": (lambda x: pg.round(x, decimals=1), 'round(x, decimals=1, rule="identity")'),
    "floor": (pg.floor, 'floor(x, rule="identity")'),
    "ceil": (lambda x: pg.ceil(x, rule="zero"), 'ceil(x, rule="zero")'),
    "trunc": (pg.trunc, 'trunc(x, rule="identity")'),
    "sign/window": (
        lambda x: pg.sign(x, rule=rules.window(0.6, 0.3)),
        "sign(x, at_zero=0, rule=rules.window(scale=0.6, height=0.3))",
    ),
    "heaviside/triangle": (
        lambda x: pg.heaviside(x, rule=rules.triangle(0.6, 0.3)),
        "heaviside(x, at_zero=1, rule=rules.triangle(scale=0.6, height=0.3))",
    ),
    "sign/arctan": (
        lambda x: pg.sign(x, at_zero=1, rule=rules.arctan(0.3)),
        "sign(x, at_zero=1, rule=rules.arctan(scale=0.3))",
    ),
    "sign/sigmoid": (
        lambda x: pg.sign(x, rule=rules.sigmoid(0.2, 3)),
        "sign(x, at_zero=0, rule=rules.sigmoid(scale=0.2, height=3.0))",
    ),
    "sign/fast_sigmoid": (
        lambda x: pg.sign(x, rule=rules.fast_sigmoid(0.04)),
        "sign(x, at_zero=0, rule=rules.fast_sigmoid(scale=0.04))",
    ),
    "sign/gaussian": (
        lambda x: pg.sign(x, rule=rules.gaussian(0.5)),
        "sign(x, at_zero=0, rule=rules.gaussian(scale=0.5))",
    ),
    "sign/identity": (lambda x: pg.sign(x, rule="identity"), 'sign(x, at_zero=0, rule="identity")'),
    "scale_grad": (lambda x: pg.scale_grad(x, 0.3), "scale_grad(x, 0.3)"),
    "reverse_grad": (lambda x: pg.reverse_grad(x, 0.3), "reverse_grad(x, 0.3)"),
    "clip_grad": (lambda x: pg.clip_grad(x, 0.3), "clip_grad(x, 0.3)"),
    "fake_quantize": (
        lambda x: pg.fake_quantize(x, 0.25, 0, -3, 4, rule=rules.elastic(0.5), edge="half"),
        "fake_quantize(x, scale=0.25, zero_point=0, quant_min=-3, quant_max=4, "
        'rule=rules.elastic(width=0.5), edge="half")',
    ),
}


@folded
@pytest.mark.parametrize("name", _OTHERS)
def test_other_ops_and_what_stands_behind_x(name: str) -> None:
    f, expected = _OTHERS[name]
    assert _named(f) == expected
    x = torch.linspace(-2, 2, 41, dtype=torch.float64)
    for grad in (1.0, -1.0):
        assert torch.allclose(pg.gradient(_again(expected), x, grad), pg.gradient(f, x, grad), rtol=1e-9)


def test_relu6_has_its_name() -> None:
    assert _named(torch.nn.ReLU6(), -1, 7) == 'relu6(x, rule="zero", edge="open")'


@pytest.mark.usefixtures("table_as_it_was")
def test_a_registered_rule_is_a_rule_like_any_other() -> None:
    @pg.register_rule("clamp", formula="grad / 3", source="this test", is_linear=True)
    def a_third(grad: Tensor, x: Tensor, y: Tensor, min: Tensor, max: Tensor) -> Tensor:
        return grad / 3

    assert _named(lambda x: pg.clamp(x, -1, 1, rule="a_third")) == 'clamp(x, -1, 1, rule="a_third", edge="closed")'


# --- what has no name ---------------------------------------------------------------------------------------------------


def _signs(x: Tensor) -> Tensor:
    return torch.sign(x - clamped(x))


_ALTERED: dict[str, Callable[[Tensor], Tensor]] = {
    "inside 3 % too small": of(clamped, lambda g, x: torch.where(inside(x), 0.97 * g, 0.0)),
    "outside 3 % off on one side": of(
        clamped, lambda g, x: torch.where(below(x), 0.1 * g, torch.where(above(x), 0.103 * g, g))
    ),
    "outward passes below": of(clamped, lambda g, x: torch.where((below(x) & (g < 0)) | (above(x) & (g < 0)), 0.0, g)),
    "blocked above alone": of(clamped, lambda g, x: torch.where(above(x) & (g < 0), 0.0, g)),
    "open at one end": of(clamped, lambda g, x: torch.where((x >= -1) & (x < 1), g, 0.0)),
    "half at one end": of(clamped, lambda g, x: torch.where(x == 1, 0.5 * inward(g, x), inward(g, x))),
    "identity, 0 at one bound": of(clamped, lambda g, x: torch.where(x == -1, 0.0, g)),
    "a window that is too wide": of(clamped, lambda g, x: torch.where(x.abs() <= 1.001, g, 0.0)),
    "half of the sign": of(clamped, lambda g, x: torch.where(inside(x), g, 0.5 * _signs(x))),
    "a constant outside": of(clamped, lambda g, x: torch.where(inside(x), g, 0.01)),
    "elastic without its limit": of(
        clamped, lambda g, x: torch.where(inward(g, x) == g, g, -g * (x - clamped(x)).abs() / 0.8)
    ),
    "inverting, 3 % off": of(clamped, lambda g, x: g * 1.03 * torch.where(g < 0, 1 - x, x + 1) / 2),
    "clipped outside": of(clamped, lambda g, x: torch.where(inside(x), g, g.clamp(-1.5, 1.5))),
    "small grads are dropped": of(clamped, lambda g, x: torch.where(g.abs() < 0.01, 0.0, inward(g, x))),
    "divided by the largest": of(clamped, lambda g, x: inward(g, x) / g.abs().max()),
    "values a little off": of(lambda x: clamped(x) * 1.00001, inward),
    "rounding, 2 % too small": of(torch.round, lambda g, x: 0.98 * g),
    "abs with half a slope at 0": of(torch.abs, lambda g, x: torch.where(x == 0, 0.5 * g, g * torch.sign(x))),
    "a window open at one end": of(torch.sign, lambda g, x: torch.where((x >= -1) & (x < 1), g, 0.0)),
    "arctan, one side wider": of(
        torch.sign, lambda g, x: g / (1 + (torch.pi * x * torch.where(x > 0, 1.0, 1.03)) ** 2)
    ),
    "relu, its slope by the sign of grad": of(torch.relu, lambda g, x: torch.where(x > 0, g, 0.1 * g.clamp(min=0))),
}


@folded
@pytest.mark.parametrize("name", _ALTERED)
def test_none_for_what_only_looks_like_a_rule(name: str) -> None:
    assert _named(_ALTERED[name]) is None


def test_the_product_of_the_notebooks_is_inward_but_for_half_precision() -> None:
    found = pg.audit(of(clamped, lambda g, x: g * (g * (x - clamped(x)) >= 0)), -2, 2, points=201)
    assert found.rule == 'clamp(x, -1, 1, rule="inward", edge="closed")'
    assert found.rule_note.startswith("float16 passes what float64 blocks, such as grad = ")
    for answer in (found.float16, found.bfloat16):
        assert answer.word == "underflows"
        assert answer.share is not None
        assert 0.01 < answer.share < 0.5
    assert found.infinite_grad.word == "makes NaN"
    assert found.infinite_grad.share == 1
    compared = pg.audit(of(clamped, inward), -2, 2, points=201)
    assert (compared.rule, compared.rule_note) == ('clamp(x, -1, 1, rule="inward", edge="closed")', "")
    assert (compared.float16.word, compared.infinite_grad.word) == ("as float64", "no NaN")


def test_a_detach_trick_has_the_gradients_and_not_the_values() -> None:
    found = pg.audit(lambda x: x + (x.clamp(-0.3, 0.7) - x).detach(), -2, 2)
    assert found.rule is None
    assert found.rule_note.startswith('the gradients of clamp(x, -0.3, 0.7, rule="identity"), but its values differ')


def test_what_a_name_does_not_promise_is_noted() -> None:
    found = pg.audit(of(clamped, lambda g, x: torch.where(x.isnan(), 0.0, inward(g, x))), -2, 2, points=201)
    assert found.rule == 'clamp(x, -1, 1, rule="inward", edge="closed")'
    assert found.rule_note == "at x = nan the slope is 0 instead of 1"


_OF_THEIR_OWN_KIND: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "leaky_relu": (lambda x: pg.ops.leaky_relu(x, 0.2), "leaky_relu(x, negative_slope=0.2)"),
    "leaky_relu of torch": (torch.nn.functional.leaky_relu, "leaky_relu(x, negative_slope=0.01)"),
    "gelu": (pg.gelu, 'gelu(x, rule="exact")'),
    "gelu of tanh": (lambda x: pg.gelu(x, approximate="tanh"), 'gelu(x, approximate="tanh", rule="exact")'),
    "jumprelu": (
        lambda x: pg.jumprelu(x, 1.0, bandwidth=0.5),
        'jumprelu(x, threshold=1, bandwidth=1, window_to_x=False, rule="zero")',
    ),
    "jumprelu, window to x": (
        lambda x: pg.jumprelu(x, 1.0, bandwidth=0.5, window_to_x=True),
        'jumprelu(x, threshold=1, bandwidth=0.5, window_to_x=True, rule="window")',
    ),
    "jumprelu, gaussian to x": (
        lambda x: pg.jumprelu(x, 0.5, bandwidth=0.25, window_to_x=True, rule="gaussian"),
        'jumprelu(x, threshold=0.5, bandwidth=0.25, window_to_x=True, rule="gaussian")',
    ),
    "fake_quantize, scale in float32": (
        lambda x: pg.fake_quantize(x, 0.1, 0, -8, 7),
        'fake_quantize(x, scale=0.1, zero_point=0, quant_min=-8, quant_max=7, rule="zero", edge="closed")',
    ),
}


@pytest.mark.parametrize("name", _OF_THEIR_OWN_KIND)
def test_ops_of_their_own_kind_are_named_and_the_name_works(name: str) -> None:
    f, expected = _OF_THEIR_OWN_KIND[name]
    found = _named(f, -2.0, 3.0)
    assert found == expected
    assert _named(_again(found), -2.0, 3.0) == expected


def test_what_passes_everything_has_no_name() -> None:
    assert _named(lambda x: x * 1.0) is None
    assert _named(lambda x: x.clamp(-1e9, 1e9)) is None
