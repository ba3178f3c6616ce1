"""replace_grad, straight_through, surrogate."""

import pytest
import torch
import torch.fx
from torch import Tensor

import pseudograd as pg

from ..choices import slow_but


def _leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape, dtype=dtype).requires_grad_()


def test_value_of_one_gradient_of_the_other() -> None:
    a, b = _leaf(3, 4), _leaf(3, 4)
    grad = torch.rand(3, 4)
    y = pg.replace_grad(a, b)
    y.backward(grad)
    assert torch.equal(y, a)
    assert torch.equal(b.grad, grad)
    assert a.grad is None


@pytest.mark.parametrize("recorded", [True, False])
def test_storage_is_shared_and_x_forward_is_detached(recorded: bool) -> None:
    a, b = torch.rand(3), torch.rand(3).requires_grad_(recorded)
    y = pg.replace_grad(a, b)
    assert y.data_ptr() == a.data_ptr()
    assert y is not a
    assert y.requires_grad is recorded


def test_requires_grad_iff_x_backward_does() -> None:
    a, b = _leaf(2), torch.rand(2)
    assert not pg.replace_grad(a, b).requires_grad
    assert not pg.replace_grad(a.detach(), b).requires_grad
    assert pg.replace_grad(a, b.requires_grad_()).requires_grad
    with torch.no_grad():
        assert not pg.replace_grad(a, b).requires_grad


def test_result_cannot_be_changed_in_place() -> None:
    y = pg.replace_grad(torch.rand(3), _leaf(3))
    with pytest.raises(RuntimeError, match=r"(?i)view.*inplace"):
        y.add_(1)


@pytest.mark.parametrize(("shape", "expected"), [((1, 4), [[3] * 4]), ((4,), [3] * 4), ((3, 1), [[4]] * 3), ((), 12)])
def test_gradient_is_summed_to_the_shape(shape: tuple[int, ...], expected: object) -> None:
    b = _leaf(*shape)
    pg.replace_grad(torch.rand(3, 4), b).sum().backward()
    assert b.grad.tolist() == expected


def test_gradient_is_cast_to_the_dtype() -> None:
    b = _leaf(3, dtype=torch.float64)
    y = pg.replace_grad(torch.rand(3, dtype=torch.float16), b)
    assert y.dtype is torch.float16
    y.sum().backward()
    assert b.grad.dtype is torch.float64
    assert b.grad.tolist() == [1, 1, 1]


def test_forward_mode_has_the_form_of_the_result() -> None:
    """A tangent in double for a result in half, and one that is broadcast."""
    hard = torch.rand(2, 3, dtype=torch.float16)
    tangent = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    y, forward = torch.func.jvp(
        lambda soft: pg.replace_grad(hard, soft), (torch.rand(3, dtype=torch.float64),), (tangent,)
    )
    assert forward.dtype is y.dtype is torch.float16
    assert forward.tolist() == [[1, 2, 3]] * 2


def test_complex_numbers_pass() -> None:
    b = torch.rand(2, dtype=torch.complex64).requires_grad_()
    y = pg.replace_grad(torch.rand(2, dtype=torch.complex64), b)
    y.real.sum().backward()
    assert b.grad.tolist() == [1, 1]


def test_a_scalar_from_the_cpu_goes_with_any_device() -> None:
    assert pg.replace_grad(torch.rand(2, device="meta"), torch.tensor(1.0)).shape == (2,)


def _rounded(x: Tensor, digits: int = 0) -> Tensor:
    return torch.round(x, decimals=digits)


@pytest.mark.parametrize("compiled", slow_but([False], [False, True], pytest.mark.program))
def test_the_first_argument_of_straight_through_may_be_named(compiled: bool) -> None:
    def wrapper(f: object) -> object:
        return torch.compile(f, fullgraph=True, backend="aot_eager") if compiled else f

    x = torch.tensor([0.26, 1.74], requires_grad=True)
    for f, named in (
        (torch.round, lambda f: f(input=x, decimals=1)),
        (torch.round, lambda f: f(decimals=1, input=x)),
        (_rounded, lambda f: f(digits=1, x=x)),
        (lambda x, digits: _rounded(x, digits), lambda f: f(digits=1, x=x)),
        (pg.straight_through(_rounded), lambda f: f(x=x, digits=1)),
    ):
        y = wrapper(lambda f=f, named=named: named(pg.straight_through(f)))()  # type: ignore[operator]
        torch.testing.assert_close(y, torch.tensor([0.3, 1.7]))
        (found,) = torch.autograd.grad(y, x, torch.tensor([2.0, -3.0]))
        assert found.tolist() == [2, -3]


def test_straight_through_says_which_argument_it_wants() -> None:
    step = pg.straight_through(lambda *tensors, **named: torch.sign(named["x"]))
    with pytest.raises(
        TypeError, match=r"straight_through: what is called must be given tensors, got \['x'\]\. Give the first"
    ):
        step(x=torch.ones(2))


def test_straight_through_of_a_soft_function() -> None:
    step = pg.straight_through(lambda x: (x > 0).float(), torch.sigmoid)
    x = torch.tensor([-1.0, 0.0, 3.0], requires_grad=True)
    y = step(x)
    y.sum().backward()
    s = torch.sigmoid(x.detach())
    assert y.tolist() == [0, 0, 1]
    assert torch.allclose(x.grad, s * (1 - s))


def test_straight_through_of_the_identity_keeps_name_and_arguments() -> None:
    def quantise(x: Tensor, scale: float = 1.0, *, shift: float = 0.0) -> Tensor:
        """To a grid."""
        return ((x + shift) / scale).round() * scale

    f = pg.straight_through(quantise)
    assert (f.__name__, f.__doc__) == ("quantise", "To a grid.")
    x = torch.tensor([0.3, 1e8], requires_grad=True)
    y = f(x, 0.5, shift=0.1)
    y.sum().backward()
    assert torch.equal(y, quantise(x.detach(), 0.5, shift=0.1))
    assert x.grad.tolist() == [1, 1]


def test_a_traced_straight_through_keeps_replace_grad() -> None:
    """torch.fx writes a call of it; else the graph would hold the hard function alone."""
    traced = torch.fx.symbolic_trace(lambda x: pg.straight_through(torch.sign, torch.tanh)(x))
    called = [node.target.__name__ for node in traced.graph.nodes if node.op == "call_function"]
    assert sorted(called) == ["replace_grad", "sign", "tanh"]
    x = torch.tensor([-0.5, 2.0], requires_grad=True)
    y = traced(x)
    y.sum().backward()
    assert y.tolist() == [-1, 1]
    assert torch.allclose(x.grad, 1 - torch.tanh(x.detach()) ** 2)


def test_hard_is_computed_without_a_graph() -> None:
    seen = []

    def hard(x: Tensor) -> Tensor:
        seen.append(torch.is_grad_enabled())
        return x.sign()

    pg.straight_through(hard)(_leaf(2))
    assert seen == [False]


def test_surrogate_decorates() -> None:
    @pg.surrogate(backward=torch.tanh)
    def sign(x: Tensor) -> Tensor:
        return torch.sign(x)

    x = torch.tensor([-0.5, 0.0, 2.0], requires_grad=True)
    y = sign(x)
    y.sum().backward()
    assert sign.__name__ == "sign"
    assert y.tolist() == [-1, 0, 1]
    assert torch.allclose(x.grad, 1 - torch.tanh(x.detach()) ** 2)


def test_results_that_do_not_fit_are_an_error_in_the_forward_call() -> None:
    with pytest.raises(ValueError, match="must broadcast to x_forward"):
        pg.straight_through(torch.sum, torch.sin)(_leaf(3))
    with pytest.raises(TypeError, match="Integers carry no gradient"):
        pg.straight_through(torch.argmax)(_leaf(3))
