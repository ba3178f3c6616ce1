"""Tensors that are not plain: meta, fake, subclasses; and modes that watch."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map

import pseudograd as pg

from ..choices import slow_but

RULES = ["zero", "inward", "sign", "identity", "leaky", "elastic", "inverting"]
VALUES = [-2.0, -1.0, 0.0, 1.0, 2.0]
GRAD = [1.0, -1.0, 2.0, -2.0, -3.0]


def _expected(rule: str) -> list[float]:
    x = torch.tensor(VALUES, requires_grad=True)
    pg.clamp(x, -1, 1, rule=rule).backward(torch.tensor(GRAD))
    return x.grad.tolist()


@pytest.mark.parametrize("rule", RULES)
def test_meta_and_fake_tensors_have_shapes(rule: str) -> None:
    x = torch.empty(2, 3, device="meta", dtype=torch.float16, requires_grad=True)
    low = torch.empty(3, device="meta", dtype=torch.float16, requires_grad=True)
    y = pg.clamp(x, low, 1.0, rule=rule)
    y.sum().backward()
    assert (y.shape, y.dtype, y.device.type) == ((2, 3), torch.float16, "meta")
    assert (x.grad.shape, x.grad.device.type, low.grad.shape) == ((2, 3), "meta", (3,))
    with FakeTensorMode():
        x = torch.empty(4, 5, requires_grad=True)
        y = pg.clamp(x, -1, 1, rule=rule)
        y.sum().backward()
    assert x.grad.shape == y.shape == (4, 5)


class Logged(Tensor):
    """A subclass that only takes part in __torch_function__."""


class Wrapped(Tensor):
    """A wrapper whose every operation goes through __torch_dispatch__, and that has no storage of its own."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Wrapped":
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, requires_grad=inner.requires_grad)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def opened(value: Any) -> Any:
            return value.inner if isinstance(value, Wrapped) else value

        out = func(*tree_map(opened, args), **tree_map(opened, kwargs or {}))
        return tree_map(lambda value: Wrapped(value) if isinstance(value, Tensor) else value, out)


def as_is(value: Tensor) -> Tensor:
    return value


def logged(value: Tensor) -> Tensor:
    return value.as_subclass(Logged)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("kind", "kind_of_grad"), [(logged, logged), (Wrapped, Wrapped), (as_is, Wrapped)], ids=["subclass", "both", "grad"]
)
def test_what_is_wrapped_gets_formulas_and_stays_of_its_kind(kind: Any, kind_of_grad: Any, rule: str) -> None:
    """out= kernels would write into a tensor without storage."""
    x = kind(torch.tensor(VALUES)).requires_grad_()
    y = pg.clamp(x, -1, 1, rule=rule)
    assert type(y) is type(x)
    (grad_x,) = torch.autograd.grad(y, x, kind_of_grad(torch.tensor(GRAD)))
    assert (grad_x.inner if isinstance(grad_x, Wrapped) else grad_x).tolist() == _expected(rule)


class Noted(Wrapped):
    """A tensor that notes the namespaces of the operators that it meets."""

    names: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.names.append(func.namespace)
        return super().__torch_dispatch__(func, types, args, kwargs)


@pytest.mark.parametrize("is_saved", [False, True], ids=["a grad", "what a hook hands out"])
@pytest.mark.parametrize("size", [5, 5000])
def test_what_is_wrapped_meets_no_operator_but_torchs(size: int, is_saved: bool) -> None:
    for _ in range(3):
        x = torch.linspace(-2, 2, size, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, Noted if is_saved else lambda t: t):
            y = pg.clamp(x, -1, 1)
            Noted.names.clear()
            (grad_x,) = torch.autograd.grad(y, x, torch.ones(size) if is_saved else Noted(torch.ones(size)))
        assert torch.equal(getattr(grad_x, "inner", grad_x), (x >= -1).float())
        assert set(Noted.names) == {"aten"}


@pytest.mark.parametrize("compiled", slow_but([False], [False, True], pytest.mark.program))
def test_a_value_from_inference_mode_takes_a_gradient(compiled: bool) -> None:
    """A codebook is looked up in inference mode. torch would let the result claim requires_grad, and have no graph behind it."""
    with torch.inference_mode():
        value = torch.tensor([1.0, 2.0])
        assert pg.replace_grad(value, value).data_ptr() == value.data_ptr()
    assert pg.replace_grad(value, torch.zeros(2)).data_ptr() == value.data_ptr()
    soft = torch.zeros(2, requires_grad=True)
    f = torch.compile(pg.replace_grad, backend="aot_eager", fullgraph=True) if compiled else pg.replace_grad
    y = f(value, soft)
    assert y.tolist() == [1, 2]
    y.backward(torch.tensor([3.0, -1.0]))
    assert soft.grad.tolist() == [3, -1]
