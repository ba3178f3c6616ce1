"""gradient(f, x): dL/dx as numbers, with x untouched."""

import pytest
import torch

import pseudograd as pg


@pytest.mark.parametrize("grad", [1.0, -2.0])
def test_is_the_derivative_times_grad(grad: float) -> None:
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)
    assert torch.allclose(pg.gradient(torch.sin, x, grad), grad * torch.cos(x))


def test_x_is_not_touched_and_not_connected() -> None:
    x = torch.linspace(-2, 2, 9, requires_grad=True)
    before = x.detach().clone()
    found = pg.gradient(lambda x: pg.clamp_(x * 1, -1, 1), x)
    assert torch.equal(x, before)
    assert x.grad is None
    assert not found.requires_grad


def test_shape_and_dtype_are_those_of_x() -> None:
    x = torch.zeros(2, 3, dtype=torch.float16)
    found = pg.gradient(lambda x: x.float() * 3, x)
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    assert found.tolist() == [[3, 3, 3]] * 2


def test_zeros_where_f_does_not_depend_on_x() -> None:
    x = torch.zeros(3)
    other = torch.ones(3, requires_grad=True)
    assert pg.gradient(lambda x: torch.ones(3), x).tolist() == [0, 0, 0]
    assert pg.gradient(lambda x: other * 2, x).tolist() == [0, 0, 0]


def test_works_where_gradients_are_off() -> None:
    with torch.no_grad():
        assert pg.gradient(torch.square, torch.tensor([3.0])).tolist() == [6]


def test_a_function_that_is_not_element_wise_gives_the_sum() -> None:
    assert pg.gradient(lambda x: x.cumsum(0), torch.zeros(3)).tolist() == [3, 2, 1]
