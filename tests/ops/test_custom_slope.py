"""rules.custom(f): with the slope of "arctan" it gives the bits of "arctan" under every way to ask for a gradient."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.rule import RuleLike
from pseudograd.testing.contract.equality import assert_same_bits
from pseudograd.testing.measure import transforms

from ..choices import one_in

STEPS = {"sign": pg.sign, "heaviside": pg.heaviside}
every_step = pytest.mark.parametrize("step", STEPS.values(), ids=STEPS.keys())


def arctan_slope(x: Tensor) -> Tensor:
    """The operations of the row, in its order; u = |x| because scale is 1."""
    u = x.abs()
    turn = u * math.pi
    return (turn * turn + 1).reciprocal() * 1.0


def _with(step: Callable[..., Tensor], rule: RuleLike) -> Callable[[Tensor], Tensor]:
    return lambda x: step(x, rule=rule)


def _points(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    x = torch.tensor([-30.0, -2.0, -1.0, -0.5, -1e-3, -0.0, 0.0, 1e-3, 0.25, 0.5, 1.0, 7.0]).reshape(4, 3).to(dtype)
    grad = torch.tensor([1.0, -1.0, 0.5, -0.25, 2.0, -3.0, 1.0, -1.0, 0.0, 1e-3, -1e3, 1.0]).reshape(4, 3).to(dtype)
    return x, grad


@every_step
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_backward(step: Callable[..., Tensor], dtype: torch.dtype) -> None:
    x, grad = _points(dtype)
    ours, row = (_with(step, rule) for rule in (pg.rules.custom(arctan_slope), "arctan"))
    assert_same_bits(ours(x), row(x), "forward, not recording")
    assert_same_bits(ours(x.clone().requires_grad_()), row(x), "forward")
    assert_same_bits(
        transforms.gradient_by_backward(ours, x, grad), transforms.gradient_by_backward(row, x, grad), "backward"
    )
    assert transforms.gradient_by_backward(ours, x, grad).count_nonzero() >= 10


@every_step
@pytest.mark.parametrize("way", transforms.REVERSE, ids=lambda way: way.__name__)
def test_reverse_mode(step: Callable[..., Tensor], way: Callable[..., Tensor]) -> None:
    x, grad = _points()
    found = way(_with(step, pg.rules.custom(arctan_slope)), x, grad)
    assert_same_bits(found, way(_with(step, "arctan"), x, grad), way.__name__)
    assert_same_bits(found, transforms.gradient_by_backward(_with(step, "arctan"), x, grad), "and plain backward")


@every_step
@pytest.mark.parametrize("way", transforms.FORWARD_MODE, ids=lambda way: way.__name__)
def test_forward_mode(step: Callable[..., Tensor], way: Callable[..., Tensor]) -> None:
    x, tangent = _points()
    found = way(_with(step, pg.rules.custom(arctan_slope)), x, tangent)
    assert_same_bits(found, way(_with(step, "arctan"), x, tangent), way.__name__)


@every_step
def test_double_backward(step: Callable[..., Tensor]) -> None:
    """The slope's own derivative: -2 pi^2 |x| sign(x) / (1 + (pi x)^2)^2."""
    x, grad = (value.double() for value in _points())
    x = torch.where(x == 0, 0.125, x)  # |x| has no slope there
    found = []
    for rule in (pg.rules.custom(arctan_slope), "arctan"):
        leaf, arriving = x.clone().requires_grad_(), grad.clone().requires_grad_()
        (first,) = torch.autograd.grad(step(leaf, rule=rule), leaf, arriving, create_graph=True)
        found.append(torch.autograd.grad(first.sum(), (leaf, arriving)))
    for ours, row in zip(*found, strict=True):
        assert_same_bits(ours, row, "double backward")
    expected = grad * -2 * math.pi**2 * x / (1 + (math.pi * x) ** 2) ** 2
    torch.testing.assert_close(found[0][0], expected)


@pytest.fixture
def _forget_what_was_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


COMPILED = {
    "backward": transforms.gradient_by_backward,
    "func.grad": transforms.gradient_by_func_grad,
    "vjp": transforms.gradient_by_vjp,
    "vmap of grad": transforms.gradient_by_vmap_of_grad,
    "jacrev": transforms.gradient_by_jacrev,
    "jvp": transforms.diagonal_by_jvp,
}


@pytest.mark.program
@pytest.mark.usefixtures("_forget_what_was_compiled")
@pytest.mark.parametrize(("way", "made"), one_in(2, COMPILED, ["before", "inside"]))
def test_compiled(way: str, made: str) -> None:
    """The rule made once outside, or anew inside the compiled function."""
    x, grad = _points()
    rule = pg.rules.custom(arctan_slope)

    def f(x: Tensor) -> Tensor:
        return pg.heaviside(x, rule=rule if made == "before" else pg.rules.custom(arctan_slope))

    ask = COMPILED[way]
    if way == "backward":
        found = ask(torch.compile(f, backend="aot_eager", fullgraph=True), x, grad)
    else:
        found = torch.compile(lambda x, grad: ask(f, x, grad), backend="aot_eager", fullgraph=True)(x, grad)
    assert_same_bits(found, transforms.gradient_by_backward(_with(pg.heaviside, "arctan"), x, grad), way)


def test_a_rule_with_a_function_of_a_module_is_pickled() -> None:
    rule = pg.rules.custom(arctan_slope)
    again = pickle.loads(pickle.dumps(rule))
    assert again == rule
    assert hash(again) == hash(rule)
    assert repr(again) == repr(rule) == f"custom(slope={arctan_slope.__module__}.arctan_slope)"
    x, grad = _points()
    assert_same_bits(
        transforms.gradient_by_backward(_with(pg.sign, again), x, grad),
        transforms.gradient_by_backward(_with(pg.sign, rule), x, grad),
        "pickled",
    )


def test_two_lambdas_of_one_name_do_not_collide() -> None:
    """Every way finds its rule by name; these two have one qualified name."""
    rules = [pg.rules.custom(lambda x, factor=factor: torch.full_like(x, factor)) for factor in (2.0, 3.0)]
    assert rules[0] != rules[1]
    assert repr(rules[0]) != repr(rules[1])
    x, grad = _points()
    for _ in range(2):
        for factor, rule in zip((2.0, 3.0), rules, strict=True):
            for way in (
                transforms.gradient_by_backward,
                transforms.gradient_by_func_grad,
                transforms.gradient_by_vmap_of_grad,
                transforms.diagonal_by_jvp,
            ):
                assert_same_bits(way(_with(pg.sign, rule), x, grad), grad * factor, way.__name__)


@pytest.mark.usefixtures("_forget_what_was_compiled")
def test_two_lambdas_of_one_name_do_not_collide_when_compiled() -> None:
    x, grad = _points()
    for factor in (2.0, 3.0):
        rule = pg.rules.custom(lambda x, factor=factor: torch.full_like(x, factor))
        for way in (transforms.gradient_by_func_grad, transforms.gradient_by_backward):
            compiled = torch.compile(_with(pg.sign, rule), backend="aot_eager", fullgraph=True)
            assert_same_bits(
                way(compiled if way is transforms.gradient_by_backward else _with(pg.sign, rule), x, grad),
                grad * factor,
                "",
            )


def test_one_function_is_one_rule() -> None:
    assert pg.rules.custom(arctan_slope) == pg.rules.custom(arctan_slope)
    assert pg.rules.custom(slope=arctan_slope) == pg.rules.custom(arctan_slope)


def test_grad_is_blocked_where_the_slope_is_0_even_if_it_is_infinite() -> None:
    rule = pg.rules.custom(lambda x: (x > 0).to(x.dtype))
    x = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
    pg.heaviside(x, rule=rule).backward(torch.tensor([torch.inf, -torch.inf, torch.inf]))
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, torch.inf]


@every_step
def test_the_second_derivative_follows_a_slope_that_crosses_0(step: Callable[..., Tensor]) -> None:
    x = torch.tensor([-0.5, 0.0, 0.5], requires_grad=True)
    grad = torch.tensor([1.0, -2.0, 3.0])
    (first,) = torch.autograd.grad(step(x, rule=pg.rules.custom(torch.sin)), x, grad, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, grad * x.detach().cos())
    assert first[1] == 0


@every_step
def test_a_grad_of_0_has_no_second_derivative_where_the_slope_crosses_0(step: Callable[..., Tensor]) -> None:
    x, grad = torch.tensor([0.0, 0.5], requires_grad=True), torch.zeros(2, requires_grad=True)
    (first,) = torch.autograd.grad(step(x, rule=pg.rules.custom(torch.sin)), x, grad, create_graph=True)
    by_x, by_grad = torch.autograd.grad(first.sum(), (x, grad))
    assert by_x.tolist() == [0, 0]
    torch.testing.assert_close(by_grad, x.detach().sin())


@pytest.mark.parametrize("slope", [torch.Tensor.exp, torch.exp, torch.nn.Tanh()], ids=["method", "function", "module"])
def test_torchs_own_functions_methods_and_modules_are_slopes(slope: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([-1.0, 0.5], requires_grad=True)
    pg.sign(x, rule=pg.rules.custom(slope)).sum().backward()
    assert torch.equal(x.grad, slope(x.detach()))
