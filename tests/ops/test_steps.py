"""sign, heaviside and abs: what a call computes, where a slope ends, and rules.custom(f), which does all that other rules do."""

import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.testing.contract.equality import assert_same_bits
from pseudograd.testing.measure import transforms

from ..choices import folded, one_in
from ..watching import Watching

X = torch.tensor([-math.inf, -2.0, -1.0, -0.0, 0.0, 0.5, 1.0, math.inf, math.nan])
every_step = pytest.mark.parametrize("step", [pg.sign, pg.heaviside], ids=["sign", "heaviside"])


@pytest.mark.parametrize(
    ("f", "name"),
    [
        (pg.abs, "abs"),
        *((partial(pg.sign, rule=rule), "sign") for rule in ("window", "arctan")),
        *((partial(pg.heaviside, at_zero=0.5, rule=rule), "heaviside") for rule in ("window", "arctan")),
    ],
)
def test_backward_does_not_compute_the_values_again(f: Callable[[Tensor], Tensor], name: str) -> None:
    """No slope of these reads y."""
    x = X.clone().requires_grad_()
    with Watching() as forward:
        y = f(x)
    with Watching() as backward:
        y.sum().backward()
    assert name in forward.names
    assert "where" in backward.names
    assert name not in backward.names


@pytest.mark.parametrize(("at_zero", "calls_it"), [(0, False), (1, False), (0.5, True), (2, True), (-1, True)])
def test_heaviside_is_torch_s_and_one_comparison_with_0_or_1(at_zero: float, calls_it: bool) -> None:
    """A comparison in place takes a tenth of the time of torch.heaviside."""
    with Watching() as watching:
        pg.heaviside(X, at_zero=at_zero)
    assert ("heaviside" in watching.names) == calls_it
    for x in (X, X.reshape(3, 3).t(), X.double(), X.half()):
        expected = torch.heaviside(x, torch.full((), at_zero, dtype=x.dtype))
        assert torch.equal(pg.heaviside(x, at_zero=at_zero), expected)
        assert torch.equal(torch.vmap(partial(pg.heaviside, at_zero=at_zero))(x), expected)


@pytest.mark.program
def test_compilers_and_other_tensors_meet_torch_s_own_heaviside() -> None:
    """A subclass sees the function that the program called, and an error names it."""
    code: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        code.append(graph.print_readable(print_output=False))
        return graph

    for at_zero in (0, 1):
        y = torch.compile(lambda x, at=at_zero: pg.heaviside(x, at_zero=at), backend=backend, fullgraph=True)(X)
        assert torch.equal(y, torch.heaviside(X, torch.tensor(float(at_zero))))
    assert ["torch.heaviside" in text for text in code] == [True, True]
    names: list[str] = []

    class Named(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
            names.append(getattr(func, "__name__", ""))
            return super().__torch_function__(func, types, args, kwargs or {})

    assert type(pg.heaviside(X.as_subclass(Named))) is Named
    assert "heaviside" in names
    with pytest.raises(NotImplementedError, match="aten::heaviside"):
        pg.heaviside(torch.eye(2).to_sparse())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("rule", "slope"), [("arctan", 1 / math.pi**2), ("fast_sigmoid", 1.0)])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_a_slope_ends_where_squares_would_overflow(rule: str, slope: float, scale: float, dtype: torch.dtype) -> None:
    """The slope is 0 from an eighth of the root of the largest number on, and has the formula's value just below."""
    largest = torch.finfo(dtype).max
    end = torch.tensor(math.sqrt(largest) / 8 * scale, dtype=dtype)
    below = torch.nextafter(end, torch.zeros_like(end))
    x = torch.stack([below, -below, end, -end, end * 1.5, -end * 64]).requires_grad_()
    slope = slope / scale if rule == "arctan" else slope
    expected = torch.tensor([slope, slope, 0.0, 0.0, 0.0, 0.0], dtype=dtype)
    for create_graph in (False, True):
        y = pg.sign(x, rule=getattr(pg.rules, rule)(scale=scale))
        (grad_x,) = torch.autograd.grad(y, x, torch.full_like(x, largest / 64), create_graph=create_graph)
        torch.testing.assert_close(grad_x.detach(), expected, rtol=1e-5, atol=0)


def arctan_slope(x: Tensor) -> Tensor:
    """The operations of the row, in its order; u = |x| because scale is 1."""
    turn = x.abs() * math.pi
    return (turn * turn + 1).reciprocal() * 1.0


def _points(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    x = torch.tensor([-30.0, -2.0, -1.0, -0.5, -1e-3, -0.0, 0.0, 1e-3, 0.25, 0.5, 1.0, 7.0]).reshape(4, 3).to(dtype)
    grad = torch.tensor([1.0, -1.0, 0.5, -0.25, 2.0, -3.0, 1.0, -1.0, 0.0, 1e-3, -1e3, 1.0]).reshape(4, 3).to(dtype)
    return x, grad


@folded
@every_step
@pytest.mark.parametrize("way", [*transforms.REVERSE, *transforms.FORWARD_MODE], ids=lambda way: way.__name__)
def test_custom_with_the_slope_of_arctan_has_its_bits(step: Callable[..., Tensor], way: Callable[..., Tensor]) -> None:
    ours, row = partial(step, rule=pg.rules.custom(arctan_slope)), partial(step, rule="arctan")
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        if dtype is not torch.float32 and way is not transforms.gradient_by_backward:
            continue
        x, grad = _points(dtype)
        assert_same_bits(ours(x), row(x), "forward, not recording")
        assert_same_bits(ours(x.clone().requires_grad_()), row(x), "forward")
        gradient = way(ours, x, grad)
        assert_same_bits(gradient, way(row, x, grad), way.__name__)
        assert_same_bits(gradient, transforms.gradient_by_backward(row, x, grad), "and plain backward")
        assert gradient.count_nonzero() >= 10


COMPILED = {
    "backward": transforms.gradient_by_backward,
    "func.grad": transforms.gradient_by_func_grad,
    "vjp": transforms.gradient_by_vjp,
    "vmap of grad": transforms.gradient_by_vmap_of_grad,
    "jacrev": transforms.gradient_by_jacrev,
    "jvp": transforms.diagonal_by_jvp,
}


@pytest.mark.program
@pytest.mark.parametrize(("way", "place"), one_in(2, COMPILED, ["before", "inside"]))
def test_custom_compiles(way: str, place: str) -> None:
    """The rule is made once outside, or anew inside the compiled function."""
    x, grad = _points()
    rule = pg.rules.custom(arctan_slope)

    def f(x: Tensor) -> Tensor:
        return pg.heaviside(x, rule=rule if place == "before" else pg.rules.custom(arctan_slope))

    ask = COMPILED[way]
    if way == "backward":
        gradient = ask(torch.compile(f, backend="aot_eager", fullgraph=True), x, grad)
    else:
        gradient = torch.compile(lambda x, grad: ask(f, x, grad), backend="aot_eager", fullgraph=True)(x, grad)
    assert_same_bits(gradient, transforms.gradient_by_backward(partial(pg.heaviside, rule="arctan"), x, grad), way)


def test_a_rule_with_a_function_of_a_module_is_one_rule_and_is_pickled() -> None:
    rule = pg.rules.custom(arctan_slope)
    assert rule == pg.rules.custom(slope=arctan_slope)
    again = pickle.loads(pickle.dumps(rule))
    assert (again, hash(again)) == (rule, hash(rule))
    assert repr(again) == repr(rule) == f"custom(slope={arctan_slope.__module__}.arctan_slope)"
    x, grad = _points()
    first, second = (transforms.gradient_by_backward(partial(pg.sign, rule=r), x, grad) for r in (again, rule))
    assert_same_bits(first, second, "pickled")


@pytest.mark.program
def test_two_lambdas_of_one_name_do_not_collide() -> None:
    """Every way finds a function by its name, and these two functions have the same qualified name."""
    rules = {factor: pg.rules.custom(lambda x, factor=factor: torch.full_like(x, factor)) for factor in (2.0, 3.0)}
    assert rules[2.0] != rules[3.0]
    assert repr(rules[2.0]) != repr(rules[3.0])
    x, grad = _points()
    for (factor, rule), is_first in ((item, is_first) for is_first in (True, False) for item in rules.items()):
        f = partial(pg.sign, rule=rule)
        for way in list(COMPILED.values())[:4]:
            assert_same_bits(way(f, x, grad), grad * factor, way.__name__)
        if is_first:
            compiled = torch.compile(lambda x, f=f: f(x), backend="aot_eager", fullgraph=True)
            assert_same_bits(transforms.gradient_by_backward(compiled, x, grad), grad * factor, "compiled")


@every_step
def test_grad_is_blocked_where_a_slope_is_0_and_followed_where_it_crosses_0(step: Callable[..., Tensor]) -> None:
    x = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
    step(x, rule=pg.rules.custom(lambda x: (x > 0).to(x.dtype))).backward(
        torch.tensor([torch.inf, -torch.inf, torch.inf])
    )
    assert x.grad.tolist() == [0, 0, torch.inf]
    x = torch.tensor([-0.5, 0.0, 0.5], requires_grad=True)
    grad = torch.tensor([1.0, -2.0, 0.0], requires_grad=True)
    (first,) = torch.autograd.grad(step(x, rule=pg.rules.custom(torch.sin)), x, grad, create_graph=True)
    of_x, of_grad = torch.autograd.grad(first.sum(), (x, grad))
    torch.testing.assert_close(of_x, (grad * x.cos()).detach())
    torch.testing.assert_close(of_grad, x.detach().sin())
    assert first[1] == 0


@pytest.mark.parametrize("slope", [torch.Tensor.exp, torch.exp, torch.nn.Tanh()], ids=["method", "function", "module"])
def test_functions_methods_and_modules_of_torch_are_slopes(slope: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([-1.0, 0.5], requires_grad=True)
    pg.sign(x, rule=pg.rules.custom(slope)).sum().backward()
    assert torch.equal(x.grad, slope(x.detach()))
