"""torch.compile gives the values of eager. Two rules per way of compiling by default, every rule with --slow."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudograd.testing.contract.cases import Case
from pseudograd.testing.contract.equality import assert_same_values
from pseudograd.testing.measure import transforms

from ..choices import slow_but
from . import batches
from .cases import CASES

Way = Callable[..., Tensor]
REVERSE = (
    transforms.gradient_by_func_grad,
    transforms.gradient_by_vmap_of_grad,
    transforms.gradient_by_vjp,
    transforms.gradient_by_jacrev,
)
FORWARD = (transforms.diagonal_by_jvp, transforms.diagonal_by_jacfwd)


def _usual(case: Case) -> bool:
    """One linear and one other rule, with an edge that differs from torch's newest."""
    return (case.op.name, case.rule.name, case.edge, case.maximize) in {
        ("clamp", "zero", "closed", False),
        ("clamp", "inward", "inward", True),
        ("replace_grad", "replace", None, False),
    }


def _adds_something(case: Case) -> bool:
    """Every case of clamp; of the other ops, which share its rules, those at their default edge, and every edge of fake_quantize."""
    plain = not case.parameters and not case.maximize
    return case.op.name == "clamp" or (plain and (case.edge == case.op.default_edge or case.op.name == "fake_quantize"))


def _in_graphs(cases: list[Case]) -> list[Any]:
    """The cases of one graph: the usual ones each in its own, in the default run; the others by the dozen."""
    single = [[case] for case in cases if _usual(case)]
    several = batches.in_batches([case for case in cases if not _usual(case)])
    return [
        *(pytest.param(batch, id=batches.label(batch)) for batch in single),
        *(pytest.param(batch, id=batches.label(batch), marks=pytest.mark.slow) for batch in several),
    ]


COMPILED = [case for case in CASES if _adds_something(case)]


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


@pytest.mark.parametrize("cases", _in_graphs(COMPILED))
def test_compiled_alone(cases: list[Case]) -> None:
    batches.check_all(cases, _check_alone)


def _check_alone(cases: list[Case]) -> None:
    fs, (x, grad) = [_op(case) for case in cases], _points()
    compiled = _compiled(fs[0] if len(fs) == 1 else batches.SideBySide(fs))
    xs = x if len(fs) == 1 else torch.stack([x] * len(fs))
    grads = grad if len(fs) == 1 else torch.stack([grad] * len(fs))
    values, recorded = compiled(xs), compiled(xs.clone().requires_grad_())
    found = transforms.gradient_by_backward(compiled, xs, grads)
    for at, (case, f) in enumerate(zip(cases, fs, strict=True)):
        place = ... if len(fs) == 1 else at
        assert_same_values(values[place], f(x), f"{case}, forward, not recording")
        assert_same_values(recorded[place], f(x), f"{case}, forward, recording")
        expected = transforms.gradient_by_backward(f, x, grad)
        assert_same_values(found[place], expected, f"{case}, gradient", ulps=case.ulps, x=x, grad=grad)


def _check_together(transform: Way, expected: Way, cases: list[Case]) -> None:
    fs, (x, grad) = [_op(case) for case in cases], _points()
    found = batches.together(transform, fs, [x] * len(fs), [grad] * len(fs), _compiled)
    for case, f, ours in zip(cases, fs, found, strict=True):
        what = f"{case}, {transform.__name__}"
        assert_same_values(ours, expected(f, x, grad), what, ulps=case.ulps, x=x, grad=grad)


@pytest.mark.program
@pytest.mark.parametrize("cases", _in_graphs(COMPILED))
@pytest.mark.parametrize("transform", REVERSE, ids=lambda path: path.__name__)
def test_compiled_over_functorch(cases: list[Case], transform: Way) -> None:
    """Dynamo drops the backward of a Function it may look into; ours must survive."""
    batches.check_all(cases, partial(_check_together, transform, transforms.gradient_by_backward))


@pytest.mark.program
@pytest.mark.parametrize("cases", _in_graphs([case for case in COMPILED if case.is_linear]))
@pytest.mark.parametrize("transform", FORWARD, ids=lambda path: path.__name__)
def test_compiled_forward_mode_of_linear_rules(cases: list[Case], transform: Way) -> None:
    batches.check_all(cases, partial(_check_together, transform, transform))


@pytest.mark.parametrize(
    "dtype", slow_but([torch.float16], [torch.float16, torch.bfloat16, torch.float64], pytest.mark.program)
)
def test_compiled_bound_is_rounded_to_the_dtype(dtype: torch.dtype) -> None:
    """-0.3 and 0.7 are no numbers of any dtype: at the bound means at the rounded one, compiled too."""
    import pseudograd as pg

    def f(x: Tensor) -> Tensor:
        return pg.clamp(x, -0.3, 0.7, rule="zero", edge="open")

    x = torch.tensor([-0.3, 0.0, 0.7, 0.5], dtype=torch.float64).to(dtype)
    expected = torch.tensor([0, 1, 0, 1], dtype=dtype)
    assert_same_values(transforms.gradient_by_backward(f, x, torch.ones_like(x)), expected, "eager")
    assert_same_values(transforms.gradient_by_backward(_compiled(f), x, torch.ones_like(x)), expected, "compiled")


@pytest.mark.program
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("rule", ["zero", "inward", "identity"])
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


@pytest.mark.program
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_rule_object_made_while_compiling(dynamic: bool) -> None:
    import pseudograd as pg

    def f(x: Tensor) -> Tensor:
        return pg.clamp(x, -1, 1, rule=pg.rules.leaky(0.25))

    compiled = torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    x = torch.tensor([-2.0, 0.0, 2.0])
    assert transforms.gradient_by_backward(compiled, x, torch.full_like(x, 2)).tolist() == [0.5, 2, 0.5]


_FACTOR = 2.0


def _times_a_global(grad: Tensor, x: Tensor, y: Tensor, min: Any, max: Any) -> Tensor:
    return grad * _FACTOR


@pytest.mark.usefixtures("table_as_it_was")
def test_a_compiled_transform_reads_again_what_a_users_formula_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    import pseudograd as pg

    pg.register_rule("clamp", formula="k * grad", source="a test", is_linear=True)(_times_a_global)
    compiled = _compiled(torch.func.grad(lambda x: pg.clamp(x, -1, 1, rule="_times_a_global").sum()))
    for factor in (2.0, 3.0):
        monkeypatch.setitem(globals(), "_FACTOR", factor)
        assert compiled(torch.tensor([-2.0, 0.0, 2.0])).tolist() == [factor, 1, factor]


@pytest.mark.parametrize("rule", ["zero", "inward", "identity"])
def test_a_compiled_call_on_cpu_keeps_x_and_no_bools(rule: str) -> None:
    """Where a compiler may choose what it keeps: bools are fewer bytes, and take ten times as long to read."""
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    import pseudograd as pg

    kept: list[torch.dtype] = []

    def backward(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        kept.extend(value.dtype for value in inputs)
        return make_boxed_func(graph)

    backend = aot_autograd(
        fw_compiler=lambda graph, inputs: make_boxed_func(graph),
        bw_compiler=backward,
        partition_fn=min_cut_rematerialization_partition,
    )
    x = torch.linspace(-2, 2, 5, requires_grad=True)
    torch.compile(lambda x: pg.clamp(x * 2, -1, 1, rule=rule), backend=backend, fullgraph=True)(x).sum().backward()
    assert x.grad is not None
    assert kept
    assert torch.bool not in kept
