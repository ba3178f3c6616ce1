"""Which lowering runs in which context: the table at the head of engine.py."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import pseudograd as pg
from pseudograd import engine, kernels
from pseudograd.rule import OPS, choose


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ran, in order: the lowerings' forwards, the kernels and the formula."""
    seen: list[str] = []

    def watch(owner: Any, name: str, label: str) -> None:
        right = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            seen.append(label)
            return right(*args, **kwargs)

        monkeypatch.setattr(owner, name, staticmethod(watched) if isinstance(owner, type) else watched)

    watch(engine.Pseudograd, "forward", "eager")
    watch(engine.PseudogradFunctional, "forward", "functional")
    watch(engine.PseudogradFunctional, "jvp", "jvp")
    watch(engine, "_pull", "formula")
    find = kernels.find

    def found(*args: Any) -> Any:
        kernel = find(*args)
        if kernel is not None:
            seen.append("kernel")
        return kernel

    monkeypatch.setattr(kernels, "find", found)
    return seen


def _x() -> Tensor:
    return torch.tensor([-2.0, 0.0, 2.0], requires_grad=True)


def _clamp(x: Tensor, **how: Any) -> Tensor:
    return pg.clamp(x, -1, 1, **how)


def test_not_recording_is_torch_s_own_op(calls: list[str]) -> None:
    x = _x()
    for call in (
        lambda: _clamp(x.detach()),
        lambda: _no_grad(lambda: _clamp(x)),
        lambda: _inference(lambda: _clamp(x)),
    ):
        y = call()
        assert y.grad_fn is None
        assert y.tolist() == [-1, 0, 1]
    assert calls == []


def _no_grad(f: Callable[[], Tensor]) -> Tensor:
    with torch.no_grad():
        return f()


def _inference(f: Callable[[], Tensor]) -> Tensor:
    with torch.inference_mode():
        return f()


def test_eager_has_a_kernel(calls: list[str]) -> None:
    _clamp(_x()).sum().backward()
    assert calls == ["eager", "kernel"]


@pytest.mark.parametrize("how", [{"rule": "elastic"}, {"edge": "half"}, {"maximize": True}], ids=str)
def test_eager_without_a_kernel_is_the_formula(calls: list[str], how: dict[str, Any]) -> None:
    _clamp(_x(), **how).sum().backward()
    assert calls == ["eager", "formula"]


def test_grad_mode_on_in_backward_is_the_formula(calls: list[str]) -> None:
    x = _x()
    torch.autograd.grad(_clamp(x).sum(), x, create_graph=True)
    assert calls == ["eager", "kernel", "formula"]


def test_a_batched_grad_is_the_formula(calls: list[str]) -> None:
    x = _x()
    (found,) = torch.autograd.grad(_clamp(x), x, torch.eye(3) - 0.5, is_grads_batched=True)
    assert calls == ["eager", "kernel", "formula"]
    assert found.shape == (3, 3)


def test_tensor_bounds_that_ask_for_gradients_are_the_formula(calls: list[str]) -> None:
    low = torch.tensor(-1.0, requires_grad=True)
    pg.clamp(_x(), low, torch.tensor(1.0)).sum().backward()
    assert calls == ["eager", "formula"]
    calls.clear()
    pg.clamp(_x(), low.detach(), torch.tensor(1.0)).sum().backward()
    assert calls == ["eager", "kernel"]
    calls.clear()
    pg.clamp(_x(), low.detach().double()[None], None).sum().backward()  # the result is of another dtype than x
    assert calls == ["eager", "formula"]


def test_functorch_is_functional(calls: list[str]) -> None:
    torch.func.grad(lambda x: _clamp(x).sum())(_x().detach())
    assert calls[0] == "functional"
    assert "eager" not in calls
    assert "kernel" not in calls


def test_inside_vmap_requires_grad_does_not_decide(calls: list[str]) -> None:
    x = _x()
    torch.func.vmap(_clamp)(x).sum().backward()
    assert calls[0] == "functional"
    assert x.grad.tolist() == [0, 1, 1]


def test_forward_mode_is_functional(calls: list[str]) -> None:
    with forward_ad.dual_level():
        y = _clamp(forward_ad.make_dual(_x().detach(), torch.ones(3)), rule="zero")
        assert forward_ad.unpack_dual(y).tangent.tolist() == [0, 1, 0]
    assert calls[:2] == ["functional", "jvp"]


def test_is_recording() -> None:
    x = _x()
    assert engine.is_recording(x)
    assert engine.is_recording(1.0, x)
    assert not engine.is_recording(x.detach(), 1.0)
    assert not _no_grad(lambda: torch.tensor(engine.is_recording(x)))
    with forward_ad.dual_level():
        assert engine.is_recording(x.detach())
    seen: list[bool] = []
    torch.func.vmap(lambda x: (seen.append(engine.is_recording(x)), x)[1])(x.detach())
    assert seen == [True]


def test_compiling_is_the_compiled_lowering() -> None:
    torch._dynamo.reset()
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
    torch._dynamo.reset()


def test_a_parameter_is_a_plain_tensor(calls: list[str]) -> None:
    parameter = torch.nn.Parameter(torch.tensor([-2.0, 0.0, 2.0]))
    _clamp(parameter).sum().backward()
    assert calls == ["eager", "kernel"]
    assert parameter.grad.tolist() == [0, 1, 1]


@pytest.mark.parametrize("bounds", [(0.0, None), (None, 1.0), (0.0, 1.0), (0.5, 0.5)], ids=str)
@pytest.mark.parametrize(
    ("rule", "edge"), [("zero", "closed"), ("zero", "open"), ("inward", "closed"), ("inward", "open")]
)
def test_a_fused_kernel_serves_one_bound_and_two(
    rule: str, edge: str, bounds: tuple[float | None, float | None]
) -> None:
    """The formula would give the same values, several times slower; crossed bounds are the formula's."""
    call = choose(OPS["clamp"], rule, edge)
    assert kernels.find(call, (torch.zeros(3), *bounds), (True, False, False)) is not None
    if (rule, edge) != ("inward", "closed"):
        assert kernels.find(call, (torch.zeros(3), 1.0, 0.0), (True, False, False)) is None
