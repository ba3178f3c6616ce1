"""gradient(f, x): dL/dx as numbers, with x untouched."""

import torch

import pseudograd as pg


def test_the_gradient_is_the_derivative_times_grad() -> None:
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)
    for grad in (1.0, -2.0, x):
        assert torch.allclose(pg.gradient(torch.sin, x, grad), grad * torch.cos(x))
    assert pg.gradient(lambda x: x.cumsum(0), torch.zeros(3)).tolist() == [3, 2, 1]  # the sum over all outputs
    with torch.no_grad():
        assert pg.gradient(torch.square, torch.tensor([3.0])).tolist() == [6]


def test_x_is_not_touched_and_gives_shape_and_dtype() -> None:
    x = torch.linspace(-2, 2, 10, dtype=torch.float16).reshape(2, 5).requires_grad_()
    before = x.detach().clone()
    gradient = pg.gradient(lambda x: pg.clamp_(x.float() * 3, -1e3, 1e3), x)
    assert torch.equal(x, before)
    assert x.grad is None
    assert not gradient.requires_grad
    assert (gradient.dtype, gradient.tolist()) == (x.dtype, [[3] * 5] * 2)


def test_the_gradient_is_zero_where_f_does_not_depend_on_x() -> None:
    other = torch.ones(3, requires_grad=True)
    for f in (lambda x: torch.ones(3), lambda x: other * 2):
        assert pg.gradient(f, torch.zeros(3)).tolist() == [0, 0, 0]
