"""Which lowering runs in which context: the table at the head of engine.py."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import pseudograd as pg
from pseudograd import engine, kernels
from pseudograd.kernels import table
from pseudograd.kernels.residuals import INPUTS
from pseudograd.rule import OPS, Call, Rule, add_rule, make_call

from ..choices import folded
from ..watching import Watching


@pytest.fixture(autouse=True)
def _turn_native_off() -> Iterator[None]:
    """These tests use the kernels that every build has. tests/kernels has those in C."""
    with kernels.switch_off("native"):
        yield


@pytest.fixture
def formulas(table_as_it_was: None) -> list[str]:
    """Every rule of clamp once more as "<its name>_noted", the same row but that its formula leaves its name here when it runs."""
    ran: list[str] = []

    def noted(row: Rule) -> Rule:
        def pull(*args: Any, **kwargs: Any) -> Any:
            ran.append(row.name)
            return row.pull(*args, **kwargs)

        return row.replaced(name=f"{row.name}_noted", pull=pull)

    for row in list(OPS["clamp"].rules.values()):
        add_rule(OPS["clamp"], noted(row))
    return ran


def _lowering(y: Tensor) -> str:
    """By the node that it left in the graph of autograd."""
    return y.grad_fn.name()


EAGER = "PseudogradBackward"


def _x() -> Tensor:
    return torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)


def _clamp(x: Tensor, rule: str = "inward", **how: Any) -> Tensor:
    return pg.clamp(x, -1, 1, rule=f"{rule}_noted" if f"{rule}_noted" in OPS["clamp"].rules else rule, **how)


def test_not_recording_is_torch_s_own_op(formulas: list[str]) -> None:
    x = _x()
    for context in (contextlib.nullcontext(), torch.no_grad(), torch.inference_mode()):
        with context:
            y = _clamp(x if torch.is_grad_enabled() is False else x.detach())
        assert y.grad_fn is None
        assert y.tolist() == [-1, 0, 1]
    assert formulas == []


GRAD = torch.tensor([-2.0, -3.0, -4.0])


@pytest.mark.parametrize("kind", [Tensor, torch.nn.Parameter])
def test_eager_has_a_kernel(kind: type[Tensor], formulas: list[str]) -> None:
    x = torch.nn.Parameter(_x().detach()) if kind is torch.nn.Parameter else _x()
    y = _clamp(x)
    assert _lowering(y) == EAGER
    y.backward(GRAD)
    assert formulas == []
    assert x.grad.tolist() == [-2, -3, 0]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"rule": "elastic"}, [-2, -3, 2]),
        ({"edge": "half"}, [-2, -3, 0]),
        ({"maximize": True}, [0, -3, -4]),
    ],
    ids=str,
)
def test_eager_without_a_kernel_is_the_formula(formulas: list[str], how: dict[str, Any], expected: list[float]) -> None:
    x = _x()
    y = _clamp(x, **how)
    assert _lowering(y) == EAGER
    y.backward(GRAD)
    assert formulas == [how.get("rule", "inward")]
    assert x.grad.tolist() == expected


def test_a_backward_that_is_recorded_batched_or_watched_is_the_formula(formulas: list[str]) -> None:
    x, grads = _x(), torch.eye(3) - 0.5
    torch.autograd.grad(_clamp(x).sum(), x, create_graph=True)
    (batched,) = torch.autograd.grad(_clamp(x), x, grads, is_grads_batched=True)
    assert batched.tolist() == [[0, -0.5, 0], [-0.5, 0.5, 0], [-0.5, -0.5, 0.5]]
    y = _clamp(x)
    with Watching():
        y.backward(GRAD)
    assert x.grad.tolist() == [-2, -3, 0]
    meta = torch.empty(3, device="meta", requires_grad=True)
    _clamp(meta).sum().backward()
    assert formulas == ["inward"] * 4


@pytest.mark.parametrize(
    ("bounds", "is_formula"),
    [
        ((torch.tensor(-1.0, requires_grad=True), torch.tensor(1.0)), True),
        ((torch.tensor(-1.0), torch.tensor(1.0)), False),
        ((torch.tensor([-1.0], dtype=torch.float64), None), True),  # the result is of another dtype than x
    ],
    ids=["asks for a gradient", "asks for none", "of another dtype"],
)
def test_tensor_bounds(formulas: list[str], bounds: tuple[Any, Any], is_formula: bool) -> None:
    y = pg.clamp(_x(), *bounds, rule="inward_noted")
    assert _lowering(y) == EAGER
    y.sum().backward()
    assert formulas == ["inward"] * is_formula


def test_transforms_and_forward_mode_are_functional(formulas: list[str]) -> None:
    """Inside vmap requires_grad does not decide."""
    names: list[str] = []

    def f(x: Tensor) -> Tensor:
        y = _clamp(x)
        names.append(_lowering(y))
        return (y * GRAD).sum()

    assert torch.func.grad(f)(_x().detach()).tolist() == [-2, -3, 0]
    y = torch.func.vmap(_clamp)(x := _x())
    y.sum().backward()
    assert x.grad.tolist() == [0, 1, 1]
    with forward_ad.dual_level():
        dual = _clamp(forward_ad.make_dual(_x(), torch.ones(3)), rule="zero")
        assert forward_ad.unpack_dual(dual).tangent.tolist() == [0, 1, 0]
    assert names == ["PseudogradFunctionalGeneratedBackward"]
    assert "PseudogradFunctional" in _lowering(y)
    assert _lowering(dual) == "PseudogradFunctionalBackward"
    assert formulas == ["inward", "inward", "zero"]


@pytest.mark.parametrize(
    ("f", "label", "instead"),
    [
        (
            _clamp,
            "clamp/inward",
            "Use reverse mode, or a rule that is linear in grad: zero, identity, leaky (with an edge other than 'inward').",
        ),
        (lambda x: pg.clip_grad(x, 1.0), "clip_grad/clip", "Use reverse mode."),
    ],
    ids=["clamp", "clip_grad"],
)
def test_what_forward_mode_says_where_there_is_none(f: Callable[[Tensor], Tensor], label: str, instead: str) -> None:
    with pytest.raises(NotImplementedError) as caught:
        torch.func.jvp(f, (_x().detach(),), (torch.ones(3),))
    text = f"{label}: forward mode must not be used, the rule reads the incoming gradient. {instead}"
    assert str(caught.value) == text


def test_is_recording() -> None:
    x = _x()
    assert engine.is_recording(x)
    assert engine.is_recording(1.0, x)
    assert not engine.is_recording(x.detach(), 1.0)
    with torch.no_grad():
        assert not engine.is_recording(x)
    with forward_ad.dual_level():
        assert engine.is_recording(x.detach())
    torch.func.vmap(lambda x: x if engine.is_recording(x) else pytest.fail("not recording"))(x.detach())


def test_compiling_is_the_compiled_lowering() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph

    torch.compile(_clamp, backend=backend, fullgraph=True)(_x())
    torch.compile(lambda x: torch.func.grad(lambda x: _clamp(x).sum())(x), backend=backend, fullgraph=True)(
        _x().detach()
    )
    plain, functional = (graph.print_readable(print_output=False) for graph in graphs)
    assert "autograd_function_apply" in plain
    assert "_in_graph" in functional


_ONE = torch.tensor(1.0)
_FINITE = [(0.0, None), (None, 1.0), (0.0, 1.0), (0.5, 0.5)]
_INFINITE = [(-math.inf, 1.0), (0.0, math.inf), (math.inf, None), (None, -math.inf)]
_CROSSED = [(1.0, 0.0)]
_TENSORS = [(_ONE, None), (None, _ONE), (-1.0, _ONE), (-_ONE, _ONE)]
_PROMOTING = [(_ONE.double(), None), (None, _ONE.double()), (_ONE, _ONE.double()), (_ONE.double(), _ONE)]
# rule, edge -> the kernel and the bounds that it serves
_SERVED = {
    ("zero", "closed"): ("_pull_inside", _FINITE),
    ("zero", "open"): ("_pull_inside", _FINITE),
    ("inward", "closed"): ("_pull_inward", [*_FINITE, *_INFINITE, *_CROSSED, *_TENSORS]),
    ("inward", "open"): ("_pull_inward_off_bounds", _FINITE),
    ("sign", "closed"): ("_pull_sign_outside", _FINITE),
}


@folded
@pytest.mark.parametrize(("rule", "edge"), [(rule, edge) for rule in OPS["clamp"].rules for edge in OPS["clamp"].edges])
def test_which_kernel_serves_which_bounds(rule: str, edge: str) -> None:
    """Without a kernel the formula gives the same values, but several times slower. Only this test notices that."""
    call = make_call(OPS["clamp"], rule, edge)
    name, bounds = _SERVED.get((rule, edge), ("", []))
    for pair in [*_FINITE, *_INFINITE, *_CROSSED, *_TENSORS, *_PROMOTING]:
        served = any(pair is other for other in bounds)
        assert _serving(call, pair) == (name if served else None), pair
        assert _serving(call, pair, dtype=torch.int64) is None
        for place in (1, 2):
            if isinstance(pair[place - 1], Tensor):
                assert _serving(call, pair, wants=(True, place == 1, place == 2)) is None
    if not call.is_linear:
        assert _serving(make_call(OPS["clamp"], rule, edge, maximize=True), (0.0, 1.0)) is None


def _serving(
    call: Call,
    bounds: tuple[Any, Any],
    dtype: torch.dtype = torch.float32,
    wants: tuple[bool, ...] = (True, False, False),
) -> str | None:
    """The kernel that does not decline. Its result is thrown away."""
    saved = [torch.zeros(3, dtype=dtype), *bounds]
    for kernel in table._find_entries(call).kernels.get(INPUTS.name, ()):
        is_of_cpu = kernel.device in ("", "cpu")
        if is_of_cpu and kernel.backward(torch.zeros(3, dtype=dtype), saved, wants, call) is not None:
            return kernel.backward.__name__
    return None
