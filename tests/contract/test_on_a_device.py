"""On CUDA: forward is torch's there, bit for bit; the gradient is the CPU's, up to how a device divides and takes exponentials."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pseudograd.testing.contract.cases import Case
from pseudograd.testing.contract.equality import assert_same_bits, assert_same_values
from pseudograd.testing.contract.values import plain
from pseudograd.testing.measure.gradients import gradient_by_backward, gradient_by_backward_of_first, gradient_by_vjp
from pseudograd.testing.measure.inputs import random_pairs, requiring_grad, special_pairs

from .cases import every_case_and_dtype

if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

# A device divides by a number as it multiplies by its reciprocal, joins a product and a sum, and has an exponential of its own. What these
# rules then subtract, or take the exponential of, makes it some units in the last place of grad.
_DIVIDE = {"elastic", "inverting", "triangle", "arctan", "sigmoid", "fast_sigmoid", "gaussian"}
_ULPS = 8


def on_device(inputs: tuple[object, ...]) -> tuple[Any, ...]:
    return tuple(value.cuda() if isinstance(value, Tensor) else value for value in inputs)


@every_case_and_dtype
def test_forward_is_torch_bit_for_bit(case: Case, dtype: torch.dtype) -> None:
    for sample in case.samples():
        inputs = on_device(sample.build(dtype))
        assert_same_bits(case(*requiring_grad(inputs)), plain(case, inputs), sample.name)


@every_case_and_dtype
def test_gradient_is_that_of_the_cpu(case: Case, dtype: torch.dtype) -> None:
    rounds = case.rule.name in _DIVIDE or case.ulps > 0 or case.op.name in ("gelu", "silu")
    for sample in case.samples():
        for pairs in (special_pairs, random_pairs):
            inputs, grad = pairs(sample.build(dtype), dtype)
            expected = gradient_by_backward(case.function(), inputs, grad)
            moved, moved_grad = on_device(inputs), grad.cuda()
            ways = {
                "backward": gradient_by_backward(case.function(), moved, moved_grad),
                "first": gradient_by_backward_of_first(case.function(), moved, moved_grad),
                "formula": gradient_by_backward(case.function(), moved, moved_grad, create_graph=True),
            }
            if dtype is torch.float32:
                ways["functorch"] = gradient_by_vjp(case.function(), moved, moved_grad)
            for way, gradients in ways.items():
                for at, (ours, theirs) in enumerate(zip(gradients, expected, strict=way != "first")):
                    assert_same_values(
                        None if ours is None else ours.cpu(),
                        theirs,
                        f"{sample.name}, {pairs.__name__}, {way}, gradient {at}",
                        ulps=case.ulps + _ULPS if rounds else 0,
                        term_size=torch.where(grad.isfinite(), grad, 0.0) if rounds else 0.0,
                    )
