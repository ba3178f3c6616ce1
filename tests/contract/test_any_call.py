"""Random calls against the scalar reference: shapes, strides, dtypes, kinds of bounds, rules, edges and special values at once.

PSEUDOGRAD_EXAMPLES sets how many; `make test-all` asks for 20,000.
"""

import os
from typing import Any

import torch
from hypothesis import given, settings, strategies
from torch import Tensor

import pseudograd as pg
from pseudograd.ops.bound_rules import EDGES, RULES
from pseudograd.ops.bounds import CLAMP
from pseudograd.testing.contract.cases import Case
from pseudograd.testing.contract.equality import assert_same_bits, assert_same_values

EXAMPLES = int(os.environ.get("PSEUDOGRAD_EXAMPLES", "80"))
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Numbers that meet each other often, so that x hits bounds exactly; some that no dtype holds, and what is special.
MEETING = strategies.sampled_from([-2.0, -1.0, -0.5, -0.3, 0.0, 0.1, 0.5, 0.7, 1.0, 3.0])
NUMBERS = strategies.one_of(MEETING, MEETING, strategies.floats(-1e4, 1e4, width=32))
VALUES = strategies.one_of(
    NUMBERS, strategies.sampled_from([-0.0, 1e-30, -1e-30, 6e4, -6e4, torch.inf, -torch.inf, torch.nan])
)
GRADS = strategies.sampled_from([1.0, -1.0, 0.5, -0.25, 0.0, 2e-4, -2e-4, 1e4, -1e4, torch.inf, -torch.inf, torch.nan])
NO_ARITHMETIC = ("zero", "identity", "inward", "sign")


@strategies.composite
def calls(draw: strategies.DrawFn) -> dict[str, Any]:
    """Everything that one call needs, by value: nothing here is a tensor, so that a failure prints well."""
    common = draw(strategies.lists(strategies.integers(0, 3), min_size=0, max_size=3))

    def tensor(values: strategies.SearchStrategy[float]) -> tuple[tuple[int, ...], list[float]]:
        sizes = [1 if draw(strategies.booleans()) else size for size in common]
        shape = tuple(sizes[draw(strategies.integers(0, len(sizes))) :])
        count = torch.Size(shape).numel()
        return shape, draw(strategies.lists(values, min_size=count, max_size=count))

    rule = draw(strategies.sampled_from(sorted(RULES)))
    kinds = ["number", "tensor"] if RULES[rule].requires else ["number", "tensor", "none"]
    low_kind, high_kind = draw(
        strategies.sampled_from([(a, b) for a in kinds for b in kinds if (a, b) != ("none", "none")])
    )
    low, high = sorted((draw(NUMBERS), draw(NUMBERS)))
    kinds_of_bounds = {
        "number": lambda value: value,
        "tensor": lambda value: tensor(NUMBERS),
        "none": lambda value: None,
    }
    x, low, high = tensor(VALUES), kinds_of_bounds[low_kind](low), kinds_of_bounds[high_kind](high)
    shape = torch.broadcast_shapes(*(value[0] for value in (x, low, high) if isinstance(value, tuple)))
    count = torch.Size(shape).numel()
    return {
        "x": x,
        "low": low,
        "high": high,
        "grad": draw(strategies.lists(GRADS, min_size=count, max_size=count)),
        "case": Case(CLAMP, RULES[rule], (), draw(strategies.sampled_from(EDGES)), draw(strategies.booleans())),
        "dtype": draw(strategies.sampled_from(DTYPES)),
        "strided": draw(strategies.booleans()),
    }


def _build(value: Any, dtype: torch.dtype, is_strided: bool) -> Any:
    if not isinstance(value, tuple):
        return value
    tensor = torch.tensor(value[1], dtype=torch.float64).reshape(value[0]).to(dtype)
    return torch.stack([tensor, tensor + 1], dim=-1)[..., 0] if is_strided else tensor


def _expected(case: Case, inputs: list[Any], grad: Tensor) -> list[Tensor]:
    """The reference for each element, one gradient per input, unreduced and in float64."""
    spread = [
        v.expand(grad.shape).reshape(-1).tolist() if isinstance(v, Tensor) else [v] * grad.numel() for v in inputs
    ]
    rounded = [[None if v is None else _round_to(grad.dtype, v) for v in values] for values in spread]
    of_one = case.reference_in(grad.dtype)
    first, *others = rounded
    rows = [of_one(*numbers) for numbers in zip(first, grad.reshape(-1).tolist(), *others, strict=True)]
    columns = torch.tensor(rows, dtype=torch.float64).reshape(-1, 3).unbind(1)
    return [column.reshape(grad.shape) for column in columns]


def _round_to(dtype: torch.dtype, value: float) -> float:
    return torch.tensor(value, dtype=torch.float64).to(dtype).item()


def _unify(low: Any, high: Any, dtype: torch.dtype) -> list[Any]:
    """The bounds as torch.clamp takes them: two numbers or two tensors. The result may differ in the sign of a zero."""
    if not (isinstance(low, Tensor) or isinstance(high, Tensor)):
        return [low, high]
    return [v if isinstance(v, Tensor) or v is None else torch.full((), v, dtype=dtype) for v in (low, high)]


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
@given(calls())
def test_any_call_equals_the_reference(call: dict[str, Any]) -> None:
    case, dtype = call["case"], call["dtype"]
    x, low, high = (_build(call[name], dtype, call["strided"]) for name in ("x", "low", "high"))
    leaves = [v.detach().requires_grad_() if isinstance(v, Tensor) else v for v in (x, low, high)]
    y = pg.clamp(*leaves, rule=case.rule.name, edge=case.edge, maximize=case.maximize)
    grad = torch.tensor(call["grad"], dtype=torch.float64).reshape(y.shape).to(dtype)
    assert_same_bits(y.detach(), torch.clamp(x, *_unify(low, high, dtype)), "forward")
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    gradients = iter(torch.autograd.grad(y, tensors, grad))
    for leaf, unreduced in zip(leaves, _expected(case, [x, low, high], grad), strict=True):
        if isinstance(leaf, Tensor):
            ours, what = next(gradients), f"gradient of shape {tuple(leaf.shape)}"
            if leaf.shape == y.shape:
                assert_same_values(ours, unreduced.to(dtype), what, x=leaf.detach())
            else:
                rtol = 0.0 if case.rule.name in NO_ARITHMETIC else 1e-2
                assert _is_the_sum(ours, unreduced, rtol).all(), f"{what}: {ours}, the sum of {unreduced}"


def _is_the_sum(ours: Tensor, addends: Tensor, rtol: float) -> Tensor:
    """As torch sums them, in their dtype; or within a rounding of each: of 1e4 - 1e4 + 2e-4 the order of the sum decides what is left."""
    as_torch = addends.to(ours.dtype).sum_to_size(ours.shape)
    total, size = (part.double().sum_to_size(ours.shape) for part in (addends, addends.abs()))
    near = (ours.double() - total).abs() <= torch.finfo(ours.dtype).eps * size
    return near | ours.isclose(as_torch, rtol=rtol, atol=rtol * 1e-6, equal_nan=True)
