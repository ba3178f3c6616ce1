"""What tensors of bounds get, by the kernels in C: the numbers of the formula wherever x can stand, for every rule and edge."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch
from torch import Tensor

from pseudograd import formula, kernels
from pseudograd.kernels import native
from pseudograd.rewrite.override import override
from pseudograd.rewrite.pin_edge import pin_edge
from pseudograd.rule import OPS, Call, Gradients, call_for

from ..choices import folded
from .ways import needs_native

pytestmark = needs_native

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
STAND = torch.tensor([-torch.inf, -2.0, -1.0, -0.0, 0.0, 1.0, 1.5, torch.inf, torch.nan])
RULES = ["zero", "identity", "inward", "sign", "leaky", "leaky_inward"]


def wherever_x_stands(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Crossed bounds, equal ones and NaN among them; gradients of both signs, infinite ones and NaN."""
    x, low, high, which = torch.cartesian_prod(STAND, STAND, STAND, torch.arange(6.0)).to(dtype).unbind(1)
    grads = torch.tensor([1.5, -0.25, 0.0, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    return x.contiguous(), low.contiguous(), high.contiguous(), grads[which.long()]


def same(some: Gradients, others: Gradients) -> bool:
    """A formula may leave it to autograd to cast zeros to the dtype of an input."""
    pairs = list(zip(some, others, strict=True))
    assert all((a is None) is (b is None) for a, b in pairs)
    return all(
        torch.equal(a.nan_to_num(7.0), b.to(a.dtype).nan_to_num(7.0))
        for a, b in pairs
        if a is not None and b is not None
    )


def by_kernel(call: Call, grad: Tensor, inputs: list[Tensor | None], wants: tuple[bool, ...]) -> Gradients:
    pulled = native._pull_inputs(grad, inputs, wants, call)
    assert pulled is not None
    return pulled


@folded
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("absent", ["none", "min", "max"])
def test_each_bound_gets_what_the_formula_gives_it(absent: str, dtype: torch.dtype, level: None) -> None:
    x, low, high, grad = wherever_x_stands(dtype)
    inputs = [x, None if absent == "min" else low, None if absent == "max" else high]
    op = OPS["clamp"]
    for rule, edge, learned in itertools.product(RULES, ("closed", "open", "half"), ((1, 2), (1,), (2,))):
        call = call_for(op, rule, edge)
        wants = tuple(one is not None and (place == 0 or place in learned) for place, one in enumerate(inputs))
        expected = formula.pull(grad, inputs, wants, call)
        assert same(by_kernel(call, grad, inputs, wants), expected), (rule, edge, learned)


def test_an_edge_that_reads_grad_is_left_to_the_formula() -> None:
    x, low, high, grad = wherever_x_stands(torch.float32)
    assert (
        native._pull_inputs(grad, [x, low, high], (True, True, True), call_for(OPS["clamp"], "zero", "inward")) is None
    )


@pytest.mark.parametrize("size", [10, 70, 5000])
@pytest.mark.parametrize("rule", ["inward", "leaky", "identity"])
def test_learned_bounds_under_override(rule: str, size: int) -> None:
    """Of each element, of all, and of one side alone; the third call is one that was made before."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.randint(-6, 7, (2, size), generator=generator) / 4).requires_grad_()
    grad = torch.randn(2, size, generator=generator)
    low, high = torch.full((size,), -0.75).requires_grad_(), torch.ones(2, 1).requires_grad_()
    whole = torch.full((2, size), -0.5).requires_grad_()
    calls = {
        "both": (lambda: torch.clamp(x, low, high), [x, low, high]),
        "min": (lambda: torch.clamp_min(x, low), [x, low]),
        "max": (lambda: torch.clamp(x, max=high), [x, high]),
        "a min of full size": (lambda: torch.clamp(x, whole, high.detach()), [x, whole]),
        "not learned": (lambda: torch.clamp(x, whole.detach(), high.detach()), [x]),
        "x alone not": (lambda: torch.clamp(x.detach(), low, high), [low, high]),
    }
    for name, (call, learned) in calls.items():
        with override(clamp=rule), kernels.off("native", "portable"):
            expected = torch.autograd.grad(call(), learned, grad)
        with override(clamp=rule):
            for _ in range(3):
                y = call()
                found = torch.autograd.grad(y, learned, grad)
                assert all(map(torch.allclose, found, expected)), name


@pytest.mark.parametrize("size", [10, 5000])
def test_what_is_remembered_of_a_call_holds_no_tensor_of_it(size: int) -> None:
    for context in (lambda: override(clamp="inward"), lambda: pin_edge("half")):
        with context():
            bound = torch.ones(size)
            for _ in range(3):
                torch.clamp(torch.zeros(size, requires_grad=True), -bound, bound)
            gone = weakref.ref(bound)
            del bound
            gc.collect()
            assert gone() is None


def test_a_bound_that_is_not_asked_for_gets_nothing() -> None:
    """The graph asks for less than what was recorded."""
    low = torch.full((5000,), -1.0, requires_grad=True)
    x = torch.linspace(-2, 2, 5000).requires_grad_()
    for context in (lambda: override(clamp="inward"), lambda: pin_edge("half")):
        with context():
            for _ in range(3):
                (found,) = torch.autograd.grad(torch.clamp_min(x, low).sum(), low)
                assert found.tolist() == (x < -1).float().tolist()


@folded
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_beside_one_bound_are_torchs_own_bit_for_bit(dtype: torch.dtype, level: None) -> None:
    """Zeros of both signs, and NaN on both sides, which fmax and fmin see otherwise."""
    calls = (torch.clamp_min, torch.clamp_max, torch.clamp, torch.fmax, torch.fmin)
    every = torch.cartesian_prod(STAND, STAND).to(dtype)
    without_zeros = every[(every != 0).all(1)]
    for pairs in (every, without_zeros):
        x, bound = (one.contiguous() for one in pairs.repeat(5000 // len(pairs) + 1, 1)[:4999].unbind(1))
        for call in calls:
            expected = call(x, bound)
            with pin_edge("half"):
                for _ in range(3):
                    y = call(x.clone().requires_grad_(), bound).detach()
                    assert torch.equal(y.signbit() | y.isnan(), expected.signbit() | expected.isnan())
                    assert torch.equal(y.nan_to_num(7.0), expected.nan_to_num(7.0))
                    assert torch.equal(y.isnan(), expected.isnan())


@pytest.mark.parametrize("shape", [(3, 1, 1), (2, 3, 40, 40), (40,), ()], ids=str)
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_the_memory_of_a_result_beside_one_bound_is_in_the_order_of_torchs(
    format: torch.memory_format, shape: tuple[int, ...]
) -> None:
    x = torch.randn(2, 3, 40, 40).to(memory_format=format)
    bound = torch.zeros(shape) + 0.5
    expected = torch.clamp_min(x, bound)
    with pin_edge("half"):
        for _ in range(3):
            y = torch.clamp_min(x.clone().requires_grad_(), bound)
            assert torch.equal(y, expected)
            assert y.stride() == expected.stride()
