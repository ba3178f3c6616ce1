"""Rule "zero" is torch's own gradient, with the edge that torch's era had; relu and its kin keep torch's own in every era."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import pseudograd as pg

ERA_OF_OPEN_EDGES = (2, 14)
IS_OPEN = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= ERA_OF_OPEN_EDGES
X = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, torch.inf, -torch.inf, 6.0, 7.0])


def _gradients(f: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    leaves = [t.clone().requires_grad_() for t in inputs]
    y = f(*leaves)
    return list(torch.autograd.grad(y, leaves, torch.linspace(-2, 3, y.numel()).reshape(y.shape)))


def _assert_same(ours: Callable[..., Tensor], theirs: Callable[..., Tensor], *inputs: Tensor) -> None:
    for a, b in zip(_gradients(ours, *inputs), _gradients(theirs, *inputs), strict=True):
        assert torch.equal(a, b), (a, b)


@pytest.mark.parametrize("bounds", [(-1, 1), (-1, None), (None, 1), (0.5, 0.5)], ids=str)
def test_number_bounds(bounds: tuple[Any, Any]) -> None:
    edge = "open" if IS_OPEN else "closed"
    _assert_same(lambda x: pg.clamp(x, *bounds, rule="zero", edge=edge), lambda x: torch.clamp(x, *bounds), X)


@pytest.mark.parametrize("which", ["both", "min", "max"])
def test_tensor_bounds_and_their_gradients(which: str) -> None:
    edge = "half" if IS_OPEN else "closed"
    low, high = torch.tensor([[-1.0], [-0.5]]), torch.tensor([[1.0], [2.0]])
    if which == "both":
        _assert_same(lambda x, a, b: pg.clamp(x, a, b, rule="zero", edge=edge), torch.clamp, X, low, high)
    elif which == "min":
        _assert_same(lambda x, a: pg.clamp(x, a, rule="zero", edge=edge), lambda x, a: torch.clamp(x, min=a), X, low)
    else:
        _assert_same(
            lambda x, b: pg.clamp(x, max=b, rule="zero", edge=edge), lambda x, b: torch.clamp(x, max=b), X, high
        )


def test_crossed_tensor_bounds() -> None:
    """Away from the bounds torch has always given the gradient to max."""
    low, high = torch.full((11,), 1.25), torch.full((11,), -1.25)
    _assert_same(lambda x, a, b: pg.clamp(x, a, b, rule="zero"), torch.clamp, X, low, high)


def test_relu_relu6_hardtanh_by_default() -> None:
    _assert_same(pg.relu, torch.relu, X)
    _assert_same(pg.relu6, functional.relu6, X)
    _assert_same(pg.hardtanh, functional.hardtanh, X)
    _assert_same(lambda x: pg.hardtanh(x, -0.5, 6), lambda x: functional.hardtanh(x, -0.5, 6), X)


def test_maximum_is_the_half_edge() -> None:
    zero = torch.zeros(())
    _assert_same(lambda x, b: pg.lower_bound(x, b, rule="zero", edge="half"), torch.maximum, X, zero)
    _assert_same(lambda x, b: pg.upper_bound(x, b, rule="zero", edge="half"), torch.minimum, X, zero)


def test_the_documented_defaults() -> None:
    """clamp lets through what leads back; lower_bound and upper_bound too."""
    ones = torch.ones_like(X)
    assert pg.gradient(lambda x: pg.clamp(x, -1, 1), X).tolist() == torch.where(X < -1, 0.0, ones).tolist()
    assert (
        pg.gradient(lambda x: pg.clamp(x, -1, 1, maximize=True), X).tolist() == torch.where(X > 1, 0.0, ones).tolist()
    )
    assert pg.gradient(lambda x: pg.lower_bound(x, -1), X).tolist() == torch.where(X < -1, 0.0, ones).tolist()
    assert pg.gradient(lambda x: pg.upper_bound(x, 1), X, -1.0).tolist() == torch.where(X > 1, 0.0, -ones).tolist()
    assert pg.gradient(lambda x: pg.relu(x, rule="inward"), X)[X != 0].tolist() == (X[X != 0] > 0).tolist()
    inward = pg.gradient(lambda x: pg.hardtanh(x, rule="inward", edge="closed"), X)
    assert inward.tolist() == torch.where(X < -1, 0.0, ones).tolist()
    assert pg.gradient(lambda x: pg.clamp(x, -1, 1, rule=pg.rules.leaky(0.25)), X)[0].item() == 0.25
    for rule, grad in (("leaky", 1.0), ("leaky_inward", 1.0)):
        assert pg.gradient(lambda x, rule=rule: pg.clamp(x, -1, 1, rule=rule), X, grad)[0].item() == pytest.approx(0.1)
    assert pg.gradient(lambda x: pg.clamp(x, -1, 1, rule="leaky_inward"), X, -1.0)[-1].item() == pytest.approx(-0.1)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_integers_are_clamped_as_torch_does(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 3, 7], dtype=dtype)
    for bounds in ((1, 5), (0.5, None), (None, 4.5)):
        ours, theirs = pg.clamp(x, *bounds), torch.clamp(x, *bounds)
        assert (ours.dtype, ours.tolist()) == (theirs.dtype, theirs.tolist())
    mixed = pg.clamp(x, 1, torch.tensor(5, dtype=dtype))
    assert mixed.tolist() == [1, 3, 5]
    assert pg.relu(x).tolist() == [0, 3, 7]


@pytest.mark.parametrize("edge", ["closed", "open", "half"])
def test_a_number_beside_a_wider_tensor_is_one_bound_forward_and_backward(edge: str) -> None:
    """x is single and max double, so 0.7 may mean either; but x is at the edge exactly where y equals both x and the bound."""
    x = torch.tensor([0.7, 0.0, 2.0], requires_grad=True)
    high = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    y = pg.clamp(x, 0.7, high, rule="zero", edge=edge)
    assert y.dtype is torch.float64
    at_the_edge = y[0].item() == x[0].item() == y[1].item()
    below = x[0].item() < y[0].item()
    assert at_the_edge != below
    share = {"closed": 1.0, "open": 0.0, "half": 0.5}[edge] if at_the_edge else 0.0
    y.sum().backward()
    assert x.grad.tolist() == [share, 0, 0]
