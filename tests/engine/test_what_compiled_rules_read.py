"""A compiled graph notices what a user's formula reads, and rule parameters may change from call to call."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

import pseudograd as pg
from pseudograd.testing.measure.transforms import gradient_by_backward

from ..choices import one_in, slow_but

pytestmark = pytest.mark.usefixtures("table_as_it_was")
K = 2.0
Function = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def _k_as_it_was() -> None:
    global K
    K = 2.0


def slope(x: Tensor) -> Tensor:
    return torch.full_like(x, 1.0) * K


def times_k(grad: Tensor, x: Tensor, y: Tensor, min: Any, max: Any) -> Tensor:
    return grad * K


def times_k_everywhere(grad: Tensor, x: Tensor) -> Tensor:
    return grad * K


WAYS: dict[str, Callable[[Function], Function]] = {
    "backward": lambda f: f,
    "grad": lambda f: grad(lambda x: f(x).sum()),
    "vmap(grad)": lambda f: vmap(grad(lambda x: f(x).sum())),
    "jvp": lambda f: lambda x: jvp(f, (x,), (torch.ones_like(x),))[1],
}


def _ask(way: str, f: Function, *more: Any) -> Function:
    """The derivative of the compiled f at each x, by this way."""
    compiled = torch.compile(WAYS[way](f), backend="aot_eager", fullgraph=True)
    return (lambda x: gradient_by_backward(compiled, x, torch.ones_like(x))) if way == "backward" else compiled


@pytest.mark.program
@pytest.mark.parametrize(("kind", "way"), one_in(4, ["custom", "clamp", "fake_quantize", "round"], WAYS))
def test_a_global_that_the_formula_reads(kind: str, way: str) -> None:
    global K
    register: dict[str, Any] = {"formula": "f", "source": "s", "is_linear": True}
    if kind in ("clamp", "fake_quantize"):
        pg.register_rule(kind, **register)(times_k)
    elif kind == "round":
        pg.register_rule(kind, **register)(times_k_everywhere)
    custom = pg.rules.custom(slope)
    f: Function = {
        "custom": lambda x: pg.sign(x, rule=custom),
        "clamp": lambda x: pg.clamp(x, -1, 1, rule="times_k"),
        "fake_quantize": lambda x: pg.fake_quantize(x, 0.25, quant_min=-4, quant_max=4, rule="times_k"),
        "round": lambda x: pg.round(x, rule="times_k_everywhere"),
    }[kind]
    ask, x = _ask(way, f), torch.full((2, 2), 3.0)
    for factor in (2.0, 5.0):
        K = factor
        assert ask(x).unique().tolist() == [factor]
    assert gradient_by_backward(f, x, torch.ones_like(x)).unique().tolist() == [5]


@pytest.mark.program
def test_a_closure_that_the_slope_reads() -> None:
    factor = 2.0

    def scaled(x: Tensor) -> Tensor:
        return torch.full_like(x, factor)

    rule = pg.rules.custom(scaled)
    ask, x = _ask("grad", lambda x: pg.sign(x, rule=rule)), torch.ones(2)
    assert ask(x).tolist() == [2, 2]
    factor = 5.0
    assert ask(x).tolist() == [5, 5]


RULES: dict[str, Function] = {
    "leaky": lambda x, s: pg.clamp(x, -1, 1, rule=pg.rules.leaky(s)),
    "elastic": lambda x, s: pg.clamp(x, -1, 1, rule=pg.rules.elastic(width=s)),
    "fake_quantize": lambda x, s: pg.fake_quantize(x, 0.5, quant_min=-2, quant_max=2, rule=pg.rules.leaky(s)),
    "window": lambda x, s: pg.sign(x, rule=pg.rules.window(scale=s)),
    "triangle": lambda x, s: pg.sign(x, rule=pg.rules.triangle(scale=4 * s, height=s)),
}


# Each rule takes the same way to its numbers, a table's parameter: a few of them show it.
@pytest.mark.program
@pytest.mark.parametrize(
    ("name", "dynamic", "way"),
    slow_but(
        [("elastic", False, "vmap(grad)"), ("window", True, "backward")],
        itertools.product(RULES, [None, True, False], ["backward", "vmap(grad)"]),
    ),
)
def test_a_parameter_and_the_sizes_of_x_change_from_step_to_step(name: str, dynamic: bool | None, way: str) -> None:
    """torch 2.8 and 2.10 put a size of x in the place of a symbolic number that only an object held."""
    f = RULES[name]
    derivative: Function = f if way == "backward" else lambda x, s: WAYS[way](lambda x: f(x, s))(x)
    compiled = torch.compile(derivative, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    shapes = [(2, 3), (3, 4), (5, 2), (4, 4)] if dynamic and way == "backward" else [(2, 3)] * 4
    for step, shape in zip((0.3, 0.2, 0.1, 0.45), shapes, strict=True):
        x = torch.linspace(-3, 2, shape[0] * shape[1]).reshape(shape)
        expected = gradient_by_backward(partial(f, s=step), x, torch.ones_like(x))
        ours = gradient_by_backward(partial(compiled, s=step), x, torch.ones_like(x)) if way == "backward" else None
        torch.testing.assert_close(compiled(x, step) if ours is None else ours, expected, rtol=1e-6, atol=0)


def test_a_wrong_parameter_is_refused_in_compiled_code_too() -> None:
    compiled = torch.compile(RULES["leaky"], backend="aot_eager")
    with pytest.raises(ValueError, match="leaky: slope must be finite and above 0"):
        compiled(torch.ones(2, requires_grad=True), -0.5)
