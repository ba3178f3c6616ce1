"""torch.compile gives the values of eager. Two rules per way of compiling by default, every rule with --slow."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pseudograd.testing.contract.cases import Case
from pseudograd.testing.contract.equality import assert_same_values
from pseudograd.testing.measure import transforms

from .cases import CASES

REVERSE = (transforms.by_func_grad, transforms.by_vmap_of_grad, transforms.by_vjp, transforms.by_jacrev)
FORWARD = (transforms.diagonal_by_jvp, transforms.diagonal_by_jacfwd)


def _usual(case: Case) -> bool:
    """One linear and one other rule, with an edge that differs from torch's newest."""
    return (case.op.name, case.rule.name, case.edge, case.maximize) in {
        ("clamp", "zero", "closed", False),
        ("clamp", "inward", "projected", True),
        ("replace_grad", "replace", None, False),
    }


def _adds_something(case: Case) -> bool:
    """Every case of clamp; of the other ops, which share its rules, those at their default edge, and every edge of fake_quantize."""
    plain = not case.parameters and not case.maximize
    return case.op.name == "clamp" or (plain and (case.edge == case.op.default_edge or case.op.name == "fake_quantize"))


COMPILED = [
    pytest.param(case, id=str(case), marks=() if _usual(case) else pytest.mark.slow)
    for case in CASES
    if _adds_something(case)
]


@pytest.fixture(autouse=True)
def _forget_what_was_compiled():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _op(case: Case) -> Callable[[Tensor], Tensor]:
    call = case.function()
    if case.op.name == "replace_grad":
        return lambda soft: call(soft.detach().round(), soft)
    inputs = case.samples()[-1].build(torch.float32)
    others = [value.reshape(-1)[0] if isinstance(value, Tensor) else value for value in inputs[1:]]
    return lambda x: call(x, *others)


def _points() -> tuple[Tensor, Tensor]:
    """Values on both sides of every bound of the samples and at them, with both signs of grad."""
    x = torch.tensor([-3.0, -2.0, -1.0, -0.5, 0.0, 0.25, 0.5, 0.7, 1.0, 1.5, 6.0, 7.0]).reshape(-1, 3)
    x = torch.cat([x, x])
    return x, torch.linspace(-2, 2, x.numel()).reshape(x.shape).where(torch.arange(8)[:, None] < 4, 1.5)


def _compiled(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(f, backend="aot_eager", fullgraph=True)


@pytest.mark.parametrize("case", COMPILED)
def test_compiled_alone(case: Case) -> None:
    f, (x, grad) = _op(case), _points()
    compiled = _compiled(f)
    assert_same_values(compiled(x), f(x), "forward, not recording")
    leaf = x.clone().requires_grad_()
    assert_same_values(compiled(leaf), f(x), "forward, recording")
    assert_same_values(
        transforms.by_backward(compiled, x, grad),
        transforms.by_backward(f, x, grad),
        "gradient",
        ulps=case.ulps,
        x=x,
        grad=grad,
    )


@pytest.mark.parametrize("case", COMPILED)
@pytest.mark.parametrize("transform", REVERSE, ids=lambda path: path.__name__)
def test_compiled_over_functorch(case: Case, transform: Callable[..., Tensor]) -> None:
    """Dynamo drops the backward of a Function it may look into; ours must survive."""
    f, (x, grad) = _op(case), _points()
    compiled = _compiled(lambda x, grad: transform(f, x, grad))
    assert_same_values(
        compiled(x, grad), transforms.by_backward(f, x, grad), transform.__name__, ulps=case.ulps, x=x, grad=grad
    )


@pytest.mark.parametrize("case", [p for p in COMPILED if p.values[0].is_linear])
@pytest.mark.parametrize("transform", FORWARD, ids=lambda path: path.__name__)
def test_compiled_forward_mode_of_linear_rules(case: Case, transform: Callable[..., Tensor]) -> None:
    f, (x, tangent) = _op(case), _points()
    compiled = _compiled(lambda x, tangent: transform(f, x, tangent))
    assert_same_values(compiled(x, tangent), transform(f, x, tangent), transform.__name__, ulps=case.ulps, x=x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_compiled_bound_is_rounded_to_the_dtype(dtype: torch.dtype) -> None:
    """-0.3 and 0.7 are no numbers of any dtype: at the bound means at the rounded one, compiled too."""
    import pseudograd as pg

    def f(x: Tensor) -> Tensor:
        return pg.clamp(x, -0.3, 0.7, rule="zero", edge="open")

    x = torch.tensor([-0.3, 0.0, 0.7, 0.5], dtype=torch.float64).to(dtype)
    expected = torch.tensor([0, 1, 0, 1], dtype=dtype)
    assert_same_values(transforms.by_backward(f, x, torch.ones_like(x)), expected, "eager")
    assert_same_values(transforms.by_backward(_compiled(f), x, torch.ones_like(x)), expected, "compiled")


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("rule", ["zero", "inward"])
def test_compiled_bounds_get_their_summed_gradients(rule: str, dynamic: bool) -> None:
    import pseudograd as pg

    def f(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return pg.clamp(x, low, high, rule=rule)

    leaves = [torch.linspace(-2, 2, 10).reshape(2, 5), torch.tensor([[-1.0], [-0.5]]), torch.tensor(1.0)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    grad = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5]).repeat(2, 1)
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    found = torch.autograd.grad(compiled(*leaves), leaves, grad)
    for ours, eager in zip(found, torch.autograd.grad(f(*leaves), leaves, grad), strict=True):
        assert_same_values(ours, eager, "gradient")


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_rule_object_made_while_compiling(dynamic: bool) -> None:
    import pseudograd as pg

    def f(x: Tensor) -> Tensor:
        return pg.clamp(x, -1, 1, rule=pg.rules.leaky(0.25))

    compiled = torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    x = torch.tensor([-2.0, 0.0, 2.0])
    assert transforms.by_backward(compiled, x, torch.full_like(x, 2)).tolist() == [0.5, 2, 0.5]
