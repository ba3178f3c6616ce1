"""Second derivatives: of the branch taken, and found here by differences of the scalar reference, not by autograd."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..measure.gradients import second_derivatives
from ..measure.inputs import special_pairs
from ..measure.numeric import agree
from .cases import Case

STEP = 1e-6
JUMP = 1e3  # no rule is steeper at the samples; a jump by 0.01 looks ten times steeper
WEIGHTS = (1.0, 0.75, -0.5)  # of grad_x, grad_min, grad_max in the scalar that is differentiated again


def check_double_backward(case: Case) -> None:
    """d(sum of weighted gradients) by every input and by grad, wherever the reference is smooth; finite and 0 where it is constant."""
    tested, reference = 0, case.reference_in(torch.float64)
    for sample in case.samples():
        inputs, grad = _finite(*special_pairs(sample.build(torch.float64), torch.float64))
        second = second_derivatives(case.function(), inputs, grad, _weights(case, inputs))
        tensors = [k for k, value in enumerate(inputs) if isinstance(value, Tensor)]
        for index in range(grad.numel()):
            point = tuple(v[index].item() if isinstance(v, Tensor) else v for v in inputs)
            derivatives = [by_input[index].item() for by_input in second]
            tested += _check_point(case, reference, tensors, point, grad[index].item(), derivatives, sample.name)
    assert tested > 50


def _finite(inputs: tuple[Any, ...], grad: Tensor) -> tuple[tuple[object, ...], Tensor]:
    """Moderate points only: a difference quotient says nothing about infinities and subnormals."""
    x = inputs[0]
    keep = (grad.abs() < 10) & (grad.abs() > 1e-3) & (x.abs() < 100) & ((x == 0) | (x.abs() > 1e-3))
    return tuple(v[keep] if isinstance(v, Tensor) else v for v in inputs), grad[keep]


def _weights(case: Case, inputs: tuple[object, ...]) -> list[float]:
    return [weight for weight, value in zip(WEIGHTS, inputs, strict=False) if isinstance(value, Tensor)]


def _check_point(
    case: Case,
    reference: Callable[..., tuple[float, ...]],
    tensors: list[int],
    point: tuple[Any, ...],
    grad: float,
    derivatives: list[float],
    name: str,
) -> int:
    """One point: compare each derivative with the central difference if the two one-sided ones agree. Returns how many did."""

    def scalar(values: tuple[object, ...], g: float) -> float:
        first = reference(values[0], g, *values[1:])
        return sum(WEIGHTS[k] * first[k] for k in tensors)

    tested, at_point = 0, scalar(point, grad)
    for slot, k in enumerate([*tensors, None]):

        def moved(by: float, k: int | None = k) -> float:
            if k is None:
                return scalar(point, grad + by)
            return scalar(tuple(v + by if j == k else v for j, v in enumerate(point)), grad)

        up, down = moved(STEP), moved(-STEP)
        right, left = (up - at_point) / STEP, (at_point - down) / STEP
        if agree(right, left) and abs(right) < JUMP:
            what = f"{case}, {name}: derivative {slot} at {point}, grad={grad}: {derivatives[slot]} instead of {(right + left) / 2}"
            assert abs(derivatives[slot] - (right + left) / 2) < 1e-4 * max(1.0, abs(right)), what
            tested += 1
        else:  # a jump or a kink: whatever branch was taken, its derivative is a number
            assert abs(derivatives[slot]) < 1e3, (
                f"{case}, {name}: derivative {slot} at {point}, grad={grad}: {derivatives[slot]}"
            )
    return tested


def check_second_derivative_is_finite_everywhere(case: Case) -> None:
    """No where() may let a NaN of the branch not taken through: finite values and grads give finite second derivatives."""
    for sample in case.samples():
        inputs, grad = special_pairs(sample.build(torch.float64), torch.float64)
        keep = (grad.abs() < 10) & (inputs[0].abs() < 100)
        moderate = tuple(v[keep] if isinstance(v, Tensor) else v for v in inputs)
        for position, second in enumerate(
            second_derivatives(case.function(), moderate, grad[keep], _weights(case, moderate))
        ):
            wrong = ~second.isfinite()
            where = int(wrong.nonzero()[0]) if wrong.any() else 0
            shown = [v[where].item() if isinstance(v, Tensor) else v for v in moderate]
            assert not wrong.any(), (
                f"{case}, {sample.name}: derivative {position} at {shown}, grad={grad[keep][where].item()}"
            )
