"""Properties over random shapes and bounds: what must hold for any two shapes that broadcast and any two numbers."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

import pseudograd as pg
from pseudograd.testing.contract.equality import assert_same_bits, assert_same_values

SIZES = some.integers(0, 3)
NUMBERS = some.floats(-1e4, 1e4, width=32)
often = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@some.composite
def shapes(draw: some.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes that broadcast: a common one, some dimensions of each set to 1 or left out."""
    common = draw(some.lists(SIZES, max_size=3))

    def part() -> tuple[int, ...]:
        kept = [1 if draw(some.booleans()) else size for size in common]
        return tuple(kept[draw(some.integers(0, len(kept))) :])

    return part(), part()


def _leaf(shape: tuple[int, ...], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).mul(4).round().div(2).requires_grad_()


@often
@given(shapes(), some.sampled_from(["zero", "inward", "identity", "sign"]))
def test_any_shapes_that_broadcast(two: tuple[tuple[int, ...], tuple[int, ...]], rule: str) -> None:
    x, low = _leaf(two[0], 1), _leaf(two[1], 2)
    y = pg.clamp(x, low, rule=rule)
    assert_same_bits(y, torch.clamp(x, min=low), "forward")
    grad = torch.linspace(-2, 2, y.numel()).reshape(y.shape)
    to_x, to_low = torch.autograd.grad(y, (x, low), grad)
    assert (to_x.shape, to_low.shape) == (x.shape, low.shape)
    below = x < low
    passed = {
        "zero": torch.where(below, 0.0, grad),
        "inward": torch.where(below & (grad > 0), 0.0, grad),
        "identity": grad,
        "sign": torch.where(below, -1.0, grad),
    }[rule]
    assert_same_values(to_x, passed.sum_to_size(x.shape), "gradient to x")
    assert_same_values(to_low, torch.where(below, grad, 0.0).sum_to_size(low.shape), "gradient to min")


@often
@given(
    NUMBERS,
    NUMBERS,
    some.sampled_from(["closed", "open", "half"]),
    some.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_any_two_numbers(a: float, b: float, edge: str, dtype: torch.dtype) -> None:
    """Exactly at the rounded bounds the edge decides, and their neighbours are inside or outside."""
    low, high = min(a, b), max(a, b)
    x = (
        torch.tensor([low, high, (low + high) / 2, low - 100, high + 100], dtype=torch.float64)
        .to(dtype)
        .requires_grad_()
    )
    y = pg.clamp(x, low, high, rule="zero", edge=edge)
    assert_same_bits(y, torch.clamp(x, low, high), "forward")
    y.backward(torch.full_like(x, 2))
    bounds = torch.tensor([low, high], dtype=torch.float64).to(dtype)
    share = {"closed": 2.0, "open": 0.0, "half": 1.0}[edge]
    expected = torch.full_like(x, 2)
    expected[(x < bounds[0]) | (x > bounds[1])] = 0
    expected[(x == bounds[0]) | (x == bounds[1])] = share
    assert_same_values(x.grad, expected.detach(), "gradient", x=x)
