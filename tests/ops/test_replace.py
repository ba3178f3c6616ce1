"""replace_grad, straight_through, surrogate."""

from collections.abc import Callable

import pytest
import torch
import torch.fx
from torch import Tensor

import pseudograd as pg

from ..choices import slow_but


def _leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape, dtype=dtype).requires_grad_()


def test_the_value_is_of_one_tensor_and_the_gradient_of_the_other() -> None:
    a, b, grad = _leaf(3, 4), _leaf(3, 4), torch.rand(3, 4)
    y = pg.replace_grad(a, b)
    y.backward(grad)
    assert torch.equal(y, a)
    assert torch.equal(b.grad, grad)
    assert a.grad is None
    with pytest.raises(RuntimeError, match=r"(?i)view.*inplace"):
        y.add_(1)
    pairs = torch.rand(2, dtype=torch.complex64), torch.rand(2, dtype=torch.complex64).requires_grad_()
    pg.replace_grad(*pairs).real.sum().backward()
    assert pairs[1].grad.tolist() == [1, 1]


def test_storage_is_shared_and_requires_grad_is_that_of_x_backward() -> None:
    a, b = _leaf(3), torch.rand(3)
    for recorded in (False, True):
        y = pg.replace_grad(a, b.requires_grad_(recorded))
        assert y.data_ptr() == a.data_ptr()
        assert y is not a
        assert y.requires_grad is recorded
    with torch.no_grad():
        assert not pg.replace_grad(a, b).requires_grad
    assert pg.replace_grad(torch.rand(2, device="meta"), torch.tensor(1.0)).shape == (2,)  # a scalar of the CPU


def test_forward_mode_has_the_form_of_the_result() -> None:
    """A tangent in double for a result in half, and one that is broadcast."""
    hard, soft = torch.rand(2, 3, dtype=torch.float16), torch.rand(3, dtype=torch.float64)
    tangent = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    y, moved = torch.func.jvp(lambda soft: pg.replace_grad(hard, soft), (soft,), (tangent,))
    assert moved.dtype is y.dtype is torch.float16
    assert moved.tolist() == [[1, 2, 3]] * 2


def test_a_value_so_large_that_the_detach_trick_loses_it_is_exact() -> None:
    x, q = torch.tensor(1e8), torch.tensor(1.0)
    assert (x + (q - x).detach()).item() == 0
    assert pg.replace_grad(q, x).item() == 1


def _rounded(x: Tensor, digits: int = 0) -> Tensor:
    return torch.round(x, decimals=digits)


@pytest.mark.parametrize("compiled", slow_but([False], [False, True], pytest.mark.program))
def test_the_first_argument_of_straight_through_may_be_named(compiled: bool) -> None:
    def wrap(f: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return torch.compile(f, fullgraph=True, backend="aot_eager") if compiled else f

    x = torch.tensor([0.26, 1.74], requires_grad=True)
    for f, named in (
        (torch.round, lambda f: f(input=x, decimals=1)),
        (torch.round, lambda f: f(decimals=1, input=x)),
        (_rounded, lambda f: f(digits=1, x=x)),
        (lambda x, digits: _rounded(x, digits), lambda f: f(digits=1, x=x)),
        (pg.straight_through(_rounded), lambda f: f(x=x, digits=1)),
    ):
        y = wrap(lambda f=f, named=named: named(pg.straight_through(f)))()
        torch.testing.assert_close(y, torch.tensor([0.3, 1.7]))
        (grad_x,) = torch.autograd.grad(y, x, torch.tensor([2.0, -3.0]))
        assert grad_x.tolist() == [2, -3]


def test_straight_through_has_the_gradient_of_a_soft_function() -> None:
    """straight_through, and its decorator surrogate."""

    @pg.surrogate(backward=torch.tanh)
    def sign(x: Tensor) -> Tensor:
        return torch.sign(x)

    step = pg.straight_through(lambda x: (x > 0).float(), torch.sigmoid)
    x = torch.tensor([-1.0, 0.0, 3.0], requires_grad=True)
    s = torch.sigmoid(x.detach())
    for f, values, slope in ((step, [0, 0, 1], s * (1 - s)), (sign, [-1, 0, 1], 1 - torch.tanh(x.detach()) ** 2)):
        y = f(x)
        assert y.tolist() == values
        assert torch.allclose(torch.autograd.grad(y.sum(), x)[0], slope)
    assert sign.__name__ == "sign"


def test_straight_through_keeps_name_and_arguments_and_computes_without_a_graph() -> None:
    modes = []

    def quantise(x: Tensor, scale: float = 1.0, *, shift: float = 0.0) -> Tensor:
        """To a grid."""
        modes.append(torch.is_grad_enabled())
        return ((x + shift) / scale).round() * scale

    f = pg.straight_through(quantise)
    assert (f.__name__, f.__doc__) == ("quantise", "To a grid.")
    x = torch.tensor([0.3, 1e8], requires_grad=True)
    y = f(x, 0.5, shift=0.1)
    y.sum().backward()
    assert modes == [False]
    assert torch.equal(y, quantise(x.detach(), 0.5, shift=0.1))
    assert x.grad.tolist() == [1, 1]


def test_a_traced_straight_through_keeps_replace_grad() -> None:
    """The graph of torch.fx has a call of replace_grad. Otherwise it would have the hard function alone."""
    traced = torch.fx.symbolic_trace(lambda x: pg.straight_through(torch.sign, torch.tanh)(x))
    called = [node.target.__name__ for node in traced.graph.nodes if node.op == "call_function"]
    assert sorted(called) == ["replace_grad", "sign", "tanh"]
    x = torch.tensor([-0.5, 2.0], requires_grad=True)
    y = traced(x)
    y.sum().backward()
    assert y.tolist() == [-1, 1]
    assert torch.allclose(x.grad, 1 - torch.tanh(x.detach()) ** 2)


def test_results_that_do_not_fit_are_an_error_in_the_forward_call() -> None:
    with pytest.raises(ValueError, match="must broadcast to x_forward"):
        pg.straight_through(torch.sum, torch.sin)(_leaf(3))
    with pytest.raises(TypeError, match="Integers carry no gradient"):
        pg.straight_through(torch.argmax)(_leaf(3))
    text = r"straight_through: what is called must be given tensors, got \['x'\]\. Give the first"
    with pytest.raises(TypeError, match=text):
        pg.straight_through(lambda *tensors, **named: torch.sign(named["x"]))(x=torch.ones(2))
