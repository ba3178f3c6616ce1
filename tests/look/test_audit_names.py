"""The name that an audit gives: every rule of the table from its behaviour alone, and none for what only looks like one."""

from collections.abc import Callable, Hashable

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd import rules
from pseudograd.look.audit_answers import name_rule
from pseudograd.look.measure import measure
from pseudograd.rule import OPS
from pseudograd.testing.contract.cases import Case, cases_of

from ..choices import as_parameters, folded, slow_but
from .functions import above, below, clamped, inside, inward, make_function

LOW, HIGH = -0.7, 1 / 3  # neither is a point of the grid


def _named(f: Callable[[Tensor], Tensor], low: float = -2.0, high: float = 2.0) -> str | None:
    """The name alone, without the other answers of an audit."""
    return name_rule(f, measure(f, low, high, 51, ()), {})[0]


def _called(name: str) -> Callable[[Tensor], Tensor]:
    """The function that a name stands for, by running it as it is written."""
    return lambda x: eval(name, {**vars(pg.ops), **vars(pg), "rules": rules, "x": x})  # type: ignore[no-any-return]


_CASES = [case for case in cases_of(OPS["clamp"]) if not (case.maximize and (case.is_linear or case.parameters))]


def _facts(case: Case) -> set[Hashable]:
    rule = case.rule.name
    kind = (case.is_linear, case.rule.ignores_edge)
    return {(rule, case.maximize), (rule, case.parameters), (case.edge, kind, case.maximize)}


@folded
@pytest.mark.parametrize("case", as_parameters([(case,) for case in _CASES], lambda cell: _facts(cell[0])))
def test_every_rule_of_the_clamp_with_every_edge(case: Case) -> None:
    f = case.function()
    name = _named(lambda x: f(x, LOW, HIGH))
    assert name is not None
    parameters = [f"{key}={value:.9g}" for key, value in case.parameters]
    written = f"rules.{case.rule.name}({', '.join(parameters)})" if parameters else f'"{case.rule.name}"'
    assert f"clamp(x, {LOW}, {HIGH}, rule={written}" in name
    assert (f'edge="{case.edge}"' in name) == (not case.rule.ignores_edge)
    assert ("maximize=True" in name) == case.maximize


NAMES = [
    'clamp(x, max=0.25, rule="sign", edge="half")',
    'relu(x, rule="zero", edge="open")',
    'relu(x, rule=rules.leaky(slope=0.02), edge="half")',
    "abs(x, edge=0)",
    "abs(x, edge=-1)",
    'round(x, rule="identity")',
    'round(x, decimals=1, rule="identity")',
    'floor(x, rule="identity")',
    'ceil(x, rule="zero")',
    'trunc(x, rule="identity")',
    "sign(x, at_zero=0, rule=rules.window(scale=0.6, height=0.3))",
    "heaviside(x, at_zero=1, rule=rules.triangle(scale=0.6, height=0.3))",
    "sign(x, at_zero=1, rule=rules.arctan(scale=0.3))",
    "sign(x, at_zero=0, rule=rules.sigmoid(scale=0.2, height=3.0))",
    "sign(x, at_zero=0, rule=rules.fast_sigmoid(scale=0.04))",
    "sign(x, at_zero=0, rule=rules.gaussian(scale=0.5))",
    'sign(x, at_zero=0, rule="identity")',
    "scale_grad(x, 0.3)",
    "reverse_grad(x, 0.3)",
    "clip_grad(x, 0.3)",
    'fake_quantize(x, scale=0.25, zero_point=0, quant_min=-3, quant_max=4, rule=rules.elastic(width=0.5), edge="half")',
    'fake_quantize(x, scale=0.1, zero_point=0, quant_min=-8, quant_max=7, rule="zero", edge="closed")',
    "leaky_relu(x, negative_slope=0.2)",
    'gelu(x, rule="exact")',
    'gelu(x, approximate="tanh", rule="exact")',
    'jumprelu(x, threshold=1, bandwidth=1, window_to_x=False, rule="zero")',
    'jumprelu(x, threshold=1, bandwidth=0.5, window_to_x=True, rule="window")',
    'jumprelu(x, threshold=0.5, bandwidth=0.25, window_to_x=True, rule="gaussian")',
]


@folded
@pytest.mark.parametrize("name", slow_but(NAMES[::2], NAMES))
def test_a_call_has_its_own_name(name: str) -> None:
    assert _named(_called(name), -2.0, 3.0) == name


def test_functions_of_torch_and_other_spellings_have_the_name_of_the_rule() -> None:
    assert _named(torch.relu) == 'relu(x, rule="zero", edge="open")'
    assert _named(torch.relu, 1, 2) is None, "there it is x, as abs is"
    assert _named(torch.round) == 'round(x, rule="zero")'
    assert _named(torch.nn.functional.leaky_relu) == "leaky_relu(x, negative_slope=0.01)"
    assert _named(torch.nn.ReLU6(), -1, 7) == 'relu6(x, rule="zero", edge="open")'
    assert _named(lambda x: pg.lower_bound(x, 0.25)) == 'clamp(x, 0.25, rule="inward", edge="closed")'


@pytest.mark.usefixtures("table_as_it_was")
def test_a_registered_rule_is_a_rule_like_any_other() -> None:
    @pg.register_rule("clamp", formula="grad / 3", source="this test", is_linear=True)
    def a_third(grad: Tensor, x: Tensor, y: Tensor, min: Tensor, max: Tensor) -> Tensor:
        return grad / 3

    assert _named(lambda x: pg.clamp(x, -1, 1, rule="a_third")) == 'clamp(x, -1, 1, rule="a_third", edge="closed")'


def _signs(x: Tensor) -> Tensor:
    return torch.sign(x - clamped(x))


_BACKWARDS_OF_CLAMP: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "inside 3 % too small": lambda g, x: torch.where(inside(x), 0.97 * g, 0.0),
    "outside 3 % off on one side": lambda g, x: torch.where(below(x), 0.1 * g, torch.where(above(x), 0.103 * g, g)),
    "outward passes below": lambda g, x: torch.where((below(x) & (g < 0)) | (above(x) & (g < 0)), 0.0, g),
    "blocked above alone": lambda g, x: torch.where(above(x) & (g < 0), 0.0, g),
    "open at one end": lambda g, x: torch.where((x >= -1) & (x < 1), g, 0.0),
    "half at one end": lambda g, x: torch.where(x == 1, 0.5 * inward(g, x), inward(g, x)),
    "identity, 0 at one bound": lambda g, x: torch.where(x == -1, 0.0, g),
    "a window that is too wide": lambda g, x: torch.where(x.abs() <= 1.001, g, 0.0),
    "half of the sign": lambda g, x: torch.where(inside(x), g, 0.5 * _signs(x)),
    "a constant outside": lambda g, x: torch.where(inside(x), g, 0.01),
    "elastic without its limit": lambda g, x: torch.where(inward(g, x) == g, g, -g * (x - clamped(x)).abs() / 0.8),
    "inverting, 3 % off": lambda g, x: g * 1.03 * torch.where(g < 0, 1 - x, x + 1) / 2,
    "clipped outside": lambda g, x: torch.where(inside(x), g, g.clamp(-1.5, 1.5)),
    "small grads are dropped": lambda g, x: torch.where(g.abs() < 0.01, 0.0, inward(g, x)),
    "infinite at a bound": lambda g, x: torch.where(x == 1, g * torch.inf, inward(g, x)),
    "divided by the largest": lambda g, x: inward(g, x) / g.abs().max(),
}
_UNNAMED: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: make_function(clamped, backward) for name, backward in _BACKWARDS_OF_CLAMP.items()},
    "values a little off": make_function(lambda x: clamped(x) * 1.00001, inward),
    "rounding, 2 % too small": make_function(torch.round, lambda g, x: 0.98 * g),
    "abs with half a slope at 0": make_function(torch.abs, lambda g, x: torch.where(x == 0, 0.5 * g, g * x.sign())),
    "a window open at one end": make_function(torch.sign, lambda g, x: torch.where((x >= -1) & (x < 1), g, 0.0)),
    "arctan, one side wider": make_function(
        torch.sign, lambda g, x: g / (1 + (torch.pi * x * torch.where(x > 0, 1.0, 1.03)) ** 2)
    ),
    "relu by the sign of grad": make_function(torch.relu, lambda g, x: torch.where(x > 0, g, 0.1 * g.clamp(min=0))),
    "the identity": lambda x: x * 1.0,
    "a clamp far away": lambda x: x.clamp(-1e9, 1e9),
    "a steep sigmoid": lambda x: torch.sigmoid(1e9 * x),
    "a tanh as steep as can be": lambda x: torch.tanh(1e300 * x),
}


@folded
@pytest.mark.parametrize("name", slow_but([*_UNNAMED][::2], _UNNAMED))
def test_a_function_that_only_looks_like_a_rule_has_no_name(name: str) -> None:
    assert _named(_UNNAMED[name]) is None


def test_the_product_of_the_notebooks_is_inward_but_for_half_precision() -> None:
    audit = pg.audit(make_function(clamped, lambda g, x: g * (g * (x - clamped(x)) >= 0)), -2, 2, points=201)
    assert audit.rule == 'clamp(x, -1, 1, rule="inward", edge="closed")'
    assert audit.rule_note.startswith("float16 passes what float64 blocks, such as grad = ")
    for answer in (audit.float16, audit.bfloat16):
        assert answer.word == "underflows"
        assert 0.01 < (answer.share or 0) < 0.5
    assert (audit.infinite_grad.word, audit.infinite_grad.share) == ("makes NaN", 1)
    compared = pg.audit(make_function(clamped, inward), -2, 2, points=201)
    assert (compared.rule, compared.rule_note) == ('clamp(x, -1, 1, rule="inward", edge="closed")', "")
    assert (compared.float16.word, compared.infinite_grad.word) == ("as float64", "no NaN")


def test_a_note_says_how_a_function_differs_from_its_rule() -> None:
    detached = pg.audit(lambda x: x + (x.clamp(-0.3, 0.7) - x).detach(), -2, 2, points=201)
    assert detached.rule is None
    text = 'the gradients of clamp(x, -0.3, 0.7, rule="identity"), but its values differ'
    assert detached.rule_note.startswith(text)
    backward = lambda g, x: torch.where(x.isnan(), 0.0, inward(g, x))  # noqa: E731
    audit = pg.audit(make_function(clamped, backward), -2, 2, points=201)
    assert audit.rule == 'clamp(x, -1, 1, rule="inward", edge="closed")'
    assert audit.rule_note == "at x = nan the slope is 0 instead of 1"
    assert (
        pg.audit(torch.nn.ReLU6(), -2, 2, points=201).rule_note
        == "at x = inf y is 6 instead of inf; at x = inf the slope is 0 instead of 1"
    )
