"""Second derivatives, compared with differences of the scalar reference, not with autograd."""

from collections.abc import Iterable

import torch
from torch import Tensor

from ..measure.gradients import second_derivatives
from ..measure.inputs import Inputs, special_pairs
from ..measure.numeric import slopes_agree
from .cases import Case
from .values import reference_gradients

STEP = 1e-6
JUMP = 1e3  # no rule is steeper at the samples; a jump by 0.01 looks ten times steeper
WEIGHTS = (1.0, 0.75, -0.5)  # of grad_x, grad_min and grad_max, in the sum that is differentiated again


def check_double_backward(case: Case) -> None:
    """Differentiate the weighted sum of the gradients by every input and by grad. Each derivative equals the central difference of the
    reference where its two one-sided differences agree. Elsewhere it is a number of usual size.
    """
    tested = 0
    for sample in case.samples():
        inputs, grad = _select(*special_pairs(sample.build(torch.float64), torch.float64), has_small=False)
        at_point = _weighted_sum(reference_gradients(case, inputs, grad), inputs)
        tensors: list[int | None] = [k for k, value in enumerate(inputs) if isinstance(value, Tensor)]
        second = second_derivatives(case.function(), inputs, grad, _weights(inputs))
        for k, derivative in zip([*tensors, None], second, strict=True):  # None stands for grad
            up, down = (_weighted_sum_beside(case, inputs, grad, k, step) for step in (STEP, -STEP))
            right, left = (up - at_point) / STEP, (at_point - down) / STEP
            is_smooth = slopes_agree(right, left) & (right.abs() < JUMP)
            expected = (right + left) / 2
            wrong = is_smooth & ~((derivative - expected).abs() < 1e-4 * right.abs().clamp(min=1.0))
            wrong |= ~is_smooth & ~(derivative.abs() < 1e3)  # at a jump or a kink, any number
            assert not wrong.any(), (
                f"{case}, {sample.name}: derivative by {'grad' if k is None else case.op.inputs[k]} at "
                f"{_values_at_first(wrong, (*inputs, grad, derivative, expected))} (inputs, grad, derivative, expected)"
            )
            tested += int(is_smooth.sum())
    assert tested > 50


def _weighted_sum_beside(case: Case, inputs: Inputs, grad: Tensor, k: int | None, step: float) -> Tensor:
    """The weighted sum with input k, or grad, moved by a step."""
    moved = tuple(value + step if position == k else value for position, value in enumerate(inputs))
    return _weighted_sum(reference_gradients(case, moved, grad + step if k is None else grad), inputs)


def _weighted_sum(gradients: Iterable[Tensor], inputs: Inputs) -> Tensor:
    return torch.stack([w * gradient for w, gradient in zip(_weights(inputs), gradients, strict=True)]).sum(0)


def _select(inputs: Inputs, grad: Tensor, has_small: bool = True) -> tuple[Inputs, Tensor]:
    """Only the points of moderate size: a difference quotient says nothing about infinities and subnormals."""
    x = inputs[0]
    keep = (grad.abs() < 10) & (x.abs() < 100)
    if not has_small:
        keep &= (grad.abs() > 1e-3) & ((x == 0) | (x.abs() > 1e-3))
    return tuple(v[keep] if isinstance(v, Tensor) else v for v in inputs), grad[keep]


def _weights(inputs: Inputs) -> list[float]:
    return [weight for weight, value in zip(WEIGHTS, inputs, strict=False) if isinstance(value, Tensor)]


def _values_at_first(wrong: Tensor, values: Inputs) -> list[object]:
    position = int(wrong.nonzero()[0])
    return [value[position].item() if isinstance(value, Tensor) else value for value in values]


def check_second_derivative_is_finite_everywhere(case: Case) -> None:
    """Finite values and grads give finite second derivatives: no torch.where passes on a NaN of the branch that it does not take."""
    for sample in case.samples():
        inputs, grad = _select(*special_pairs(sample.build(torch.float64), torch.float64))
        for index, second in enumerate(second_derivatives(case.function(), inputs, grad, _weights(inputs))):
            wrong = ~second.isfinite()
            assert not wrong.any(), (
                f"{case}, {sample.name}: derivative {index} at {_values_at_first(wrong, (*inputs, grad))} (inputs, grad)"
            )
