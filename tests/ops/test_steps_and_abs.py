"""sign, heaviside and abs: defaults, forward mode, where the slope of a step ends, and what a call computes and what it does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import pseudograd as pg
from pseudograd.rule import RuleLike

X = torch.tensor([-math.inf, -2.0, -1.0, -0.0, 0.0, 0.5, 1.0, math.inf, math.nan])


class Watching(TorchDispatchMode):
    """Notes the name of every ATen operator."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


# --- abs --------------------------------------------------------------------------------------------------------------


def test_the_slope_of_abs_at_0_is_0_where_no_edge_is_given() -> None:
    """As torch's own."""
    ours, theirs = X.clone().requires_grad_(), X.clone().requires_grad_()
    pg.abs(ours).sum().backward()
    torch.abs(theirs).sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert ours.grad[:-1].tolist() == theirs.grad[:-1].tolist() == [-1, -1, -1, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("edge", [0, 1, -1])
def test_abs_has_forward_mode(edge: int) -> None:
    x, tangent = torch.tensor([-2.0, 0.0, -0.0, 3.0]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    y, found = torch.func.jvp(lambda x: pg.abs(x, edge=edge), (x,), (tangent,))
    assert y.tolist() == [2, 0, 0, 3]
    assert found.tolist() == [-1, 2 * edge, 3 * edge, 4]


# --- what is computed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("f", "name"),
    [
        (pg.abs, "abs"),
        *((lambda x, rule=rule: pg.sign(x, rule=rule), "sign") for rule in ("window", "arctan")),
        *((lambda x, rule=rule: pg.heaviside(x, at_zero=0.5, rule=rule), "heaviside") for rule in ("window", "arctan")),
    ],
)
def test_backward_does_not_compute_the_values_again(f: Callable[[Tensor], Tensor], name: str) -> None:
    """No slope of these reads y."""
    x = X.clone().requires_grad_()
    with Watching() as forward:
        y = f(x)
    with Watching() as backward:
        y.sum().backward()
    assert name in forward.seen
    assert x.grad is not None
    assert "where" in backward.seen
    assert name not in backward.seen


@pytest.mark.parametrize("at_zero", [0, 1, 0.5, 2, -1])
def test_heaviside_with_every_number_at_0_is_torch_s(at_zero: float) -> None:
    for x in (X, X.reshape(3, 3).t(), X.double(), X.half()):
        expected = torch.heaviside(x, torch.full((), at_zero, dtype=x.dtype))
        assert torch.equal(pg.heaviside(x, at_zero=at_zero), expected)
        assert torch.equal(torch.vmap(lambda x: pg.heaviside(x, at_zero=at_zero))(x), expected)


@pytest.mark.parametrize(("at_zero", "calls_it"), [(0, False), (1, False), (0.5, True), (2, True), (-1, True)])
def test_heaviside_with_0_or_1_at_0_is_one_comparison(at_zero: float, calls_it: bool) -> None:
    """A comparison in place takes a tenth of the time of torch.heaviside."""
    with Watching() as mode:
        pg.heaviside(X, at_zero=at_zero)
    assert ("heaviside" in mode.seen) == calls_it


@pytest.mark.parametrize("at_zero", [0, 1])
def test_a_compiler_sees_one_heaviside(at_zero: float) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    y = torch.compile(lambda x: pg.heaviside(x, at_zero=at_zero), backend=backend, fullgraph=True)(X)
    assert torch.equal(y, torch.heaviside(X, torch.tensor(float(at_zero))))
    assert "torch.heaviside" in graphs[0].print_readable(print_output=False)
    torch._dynamo.reset()


def test_other_tensors_meet_torch_s_own_heaviside() -> None:
    """A subclass sees the function that was asked for, and so does who reads an error."""
    seen: list[str] = []

    class Named(Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(getattr(func, "__name__", ""))
            return super().__torch_function__(func, types, args, kwargs or {})

    assert type(pg.heaviside(X.as_subclass(Named))) is Named
    assert "heaviside" in seen
    with pytest.raises(NotImplementedError, match="aten::heaviside"):
        pg.heaviside(torch.eye(2).to_sparse())


# --- slopes of steps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rule", ["arctan", "fast_sigmoid"])
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_a_slope_ends_where_squares_would_overflow(rule: str, scale: float, dtype: torch.dtype) -> None:
    """At an eighth of the root of the largest number: 0 from there on, and what the formula says just below."""
    chosen: RuleLike = getattr(pg.rules, rule)(scale=scale)
    largest = torch.finfo(dtype).max
    end = torch.tensor(math.sqrt(largest) / 8 * scale, dtype=dtype)
    below = torch.nextafter(end, torch.zeros_like(end))
    x = torch.stack([below, -below, end, -end, end * 1.5, -end * 64]).requires_grad_()
    grad = torch.full_like(x, largest / 64)
    of_formula = {"arctan": 1 / math.pi**2 / scale, "fast_sigmoid": 1.0}[rule]
    for how in ({}, {"create_graph": True}):
        (found,) = torch.autograd.grad(pg.sign(x, rule=chosen), x, grad, **how)
        expected = torch.tensor([of_formula, of_formula, 0.0, 0.0, 0.0, 0.0], dtype=dtype)
        torch.testing.assert_close(found.detach(), expected, rtol=1e-5, atol=0)
