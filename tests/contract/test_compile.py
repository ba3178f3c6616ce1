"""torch.compile gives the values of eager: what test_matrix.py does not show."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.testing.contract.equality import assert_same_values
from pseudograd.testing.measure import transforms

from ..choices import slow_but


@pytest.fixture(autouse=True)
def _compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _compiled(f: Callable[..., Tensor], **options: object) -> Callable[..., Tensor]:
    return torch.compile(f, backend="aot_eager", fullgraph=True, **options)


@pytest.mark.program
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_compiled_bound_is_rounded_to_the_dtype(dtype: torch.dtype) -> None:
    """-0.3 and 0.7 are no numbers of any dtype: at the bound means at the rounded one, compiled too."""

    def f(x: Tensor) -> Tensor:
        return pg.clamp(x, -0.3, 0.7, rule="zero", edge="open")

    x = torch.tensor([-0.3, 0.0, 0.7, 0.5], dtype=torch.float64).to(dtype)
    expected = torch.tensor([0, 1, 0, 1], dtype=dtype)
    for g in (f, _compiled(f)):
        assert_same_values(transforms.gradient_by_backward(g, x, torch.ones_like(x)), expected, "gradient")


@pytest.mark.program
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_rule_object_may_be_made_while_compiling(dynamic: bool) -> None:
    compiled = _compiled(lambda x: pg.clamp(x, -1, 1, rule=pg.rules.leaky(0.25)), dynamic=dynamic)
    x = torch.tensor([-2.0, 0.0, 2.0])
    assert transforms.gradient_by_backward(compiled, x, torch.full_like(x, 2)).tolist() == [0.5, 2, 0.5]


_FACTOR = 2.0


def _times_a_global(grad: Tensor, x: Tensor, y: Tensor, min: object, max: object) -> Tensor:
    return grad * _FACTOR


@pytest.mark.usefixtures("table_as_it_was")
def test_a_compiled_transform_reads_again_what_a_users_formula_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    pg.register_rule("clamp", formula="k * grad", source="a test", is_linear=True)(_times_a_global)
    compiled = _compiled(torch.func.grad(lambda x: pg.clamp(x, -1, 1, rule="_times_a_global").sum()))
    for factor in (2.0, 3.0):
        monkeypatch.setitem(globals(), "_FACTOR", factor)
        assert compiled(torch.tensor([-2.0, 0.0, 2.0])).tolist() == [factor, 1, factor]


@pytest.mark.parametrize("rule", slow_but(["inward"], ["zero", "inward", "identity"], pytest.mark.program))
def test_a_compiled_call_on_cpu_saves_x_and_no_bools(rule: str) -> None:
    """A compiler may choose what it saves: bools are fewer bytes, and take ten times as long to read."""
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    saved: list[torch.dtype] = []

    def backward(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        saved.extend(value.dtype for value in inputs)
        return make_boxed_func(graph)

    backend = aot_autograd(
        fw_compiler=lambda graph, inputs: make_boxed_func(graph),
        bw_compiler=backward,
        partition_fn=min_cut_rematerialization_partition,
    )
    x = torch.linspace(-2, 2, 5, requires_grad=True)
    torch.compile(lambda x: pg.clamp(x * 2, -1, 1, rule=rule), backend=backend, fullgraph=True)(x).sum().backward()
    assert x.grad is not None
    assert saved
    assert torch.bool not in saved
