"""Faults of the backward of an element-wise function: elements that depend on each other, writes into tensors of others, underflow, wrong
second derivatives.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from .gradients import gradient_by_backward, second_derivatives
from .inputs import special_grads
from .numeric import slopes_agree

Function = Callable[[Tensor], Tensor]
_EPS = torch.finfo(torch.float64).eps
_EXTREME = (math.nan, math.inf, -math.inf, 1e30, -1e30)  # gradients that a backward may guard against
_LARGE_SHARE = 1e-3  # of the largest gradient: a difference above this is no rounding of float32


def gradient_of(f: Function, x: Tensor, grad: float | Tensor) -> Tensor:
    """dL/dx where dL/dy = grad, zeros where y does not depend on x."""
    own = grad.clone() if isinstance(grad, Tensor) else torch.full_like(x, grad)  # f may write into it
    (gradient,) = gradient_by_backward(f, (x,), own)
    return torch.zeros_like(x) if gradient is None else gradient


class CrossTalk(NamedTuple):
    """Masks of the elements whose y, or whose grad_x, depends on other elements."""

    of_values: Tensor
    of_gradients: Tensor


def cross_talk(f: Function, x: Tensor, grad: Tensor) -> CrossTalk:
    """Change x, and then grad, in one half of the elements, and see whether the other half changes. Then exchange the halves."""
    of_values, of_gradients = (torch.zeros_like(x, dtype=torch.bool) for _ in range(2))
    y, grad_x = f(x.clone()).detach(), gradient_of(f, x, grad)
    for first in (0, 1):
        is_fixed = torch.arange(x.numel(), device=x.device).reshape(x.shape) % 2 == first
        changed_x = torch.where(is_fixed, x, x[len(x) // 3])
        of_values |= is_fixed & _differ(f(changed_x).detach(), y)
        changed_grad = torch.where(is_fixed, grad, -3 * grad)
        of_gradients |= is_fixed & _differ(gradient_of(f, x, changed_grad), grad_x)
    return CrossTalk(of_values, of_gradients)


def count_talk(f: Function, x: Tensor, grad: Tensor) -> CrossTalk:
    """As `cross_talk`, but leave elements out: compute each half by itself, and some elements one by one. This shows a mean or a count."""
    y, grad_x = f(x.clone()).detach(), gradient_of(f, x, grad)
    y_of_parts, grad_of_parts = torch.empty_like(y), torch.empty_like(grad_x)
    singles = [slice(i, i + 1) for i in range(0, len(x), len(x) // 3)]
    for chosen in (slice(0, None, 2), slice(1, None, 2), *singles):
        part = x[chosen].contiguous()
        y_of_parts[chosen] = f(part.clone()).detach()
        grad_of_parts[chosen] = gradient_of(f, part, grad[chosen].contiguous())
    return CrossTalk(_differ_much(y_of_parts, y), _differ_much(grad_of_parts, grad_x))


def list_writes(f: Function, x: Tensor) -> tuple[str, ...]:
    """The tensors of others that f changes: its input, the gradient that it is given, and what it saved for its backward."""
    leaf = x.clone().requires_grad_()
    given_x = leaf.clone()  # f may work in place
    y = f(given_x)
    if not y.requires_grad:
        return ()
    writes = [_describe_write("its input", x, given_x, "x")]
    grad = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator()).to(y.dtype)
    given_grad, x_before, y_before = grad.clone(), given_x.detach().clone(), y.detach().clone()

    def backward(grad: Tensor, retain_graph: bool) -> Tensor:
        (gradient,) = torch.autograd.grad(y, leaf, grad, retain_graph=retain_graph, allow_unused=True)
        return torch.zeros_like(x) if gradient is None else gradient.detach().clone()

    first = backward(given_grad, retain_graph=True)
    extreme = grad.clone()
    extreme.view(-1)[: len(_EXTREME)] = torch.tensor(_EXTREME).to(grad)
    given_extreme = extreme.clone()
    with contextlib.suppress(Exception):  # a backward that refuses them
        backward(given_extreme, retain_graph=True)
    pairs = (grad, given_grad), (extreme, given_extreme)
    of_grad = (_describe_write("the gradient that it is given", *pair, "grad") for pair in pairs)
    writes += [next(filter(None, of_grad), "")]
    writes += [
        _describe_write("its input in backward", x_before, given_x, "x"),
        _describe_write("its y", y_before, y, "y"),
    ]
    if not any(writes[2:]):
        try:
            second = backward(grad.clone(), retain_graph=False)
        except Exception as error:
            writes += ["what it saved"] if "modified by an inplace operation" in str(error) else []
        else:
            writes += ["what it saved"] if _is_changed(first, second).any() else []
    return tuple(filter(None, writes))


def _describe_write(what: str, before: Tensor, after: Tensor, name: str) -> str:
    changed = _is_changed(before, after.detach()).nonzero()
    if not len(changed):
        return ""
    at = tuple(changed[len(changed) // 2].tolist())
    return f"{what}: {name} = {before[at].item():.4g} is {after[at].item():.4g} afterwards"


def _is_changed(before: Tensor, after: Tensor) -> Tensor:
    return (before != after) & ~(before.isnan() & after.isnan())


def _differ_much(a: Tensor, b: Tensor) -> Tensor:
    """Do a and b differ by more than the rounding of float32? torch computes the last elements of a tensor in another way."""
    size = b.abs() + b[b.isfinite()].abs().median()
    return _differ(a, b) & ~((a - b).abs() <= 64 * torch.finfo(torch.float32).eps * size)


def _differ(a: Tensor, b: Tensor) -> Tensor:
    """Do a and b differ by more than the order of a sum explains?"""
    return ((a - b).abs() > 64 * torch.finfo(a.dtype).eps * b.abs()) & ~(a.isnan() & b.isnan())


class Underflow(NamedTuple):
    """The gradients of pairs of x and grad, whose numbers a narrow dtype holds, and masks of the pairs with a fault.

    narrow, wide: the gradient computed in the narrow dtype, and in float64.
    leaks: wide is 0 and narrow is not.
    lost: narrow is 0, although the dtype can hold wide.
    overflows: narrow is infinite or NaN, although grad and wide are at most 1.
    differs: narrow is off by much more than rounding, as a share of the largest gradient.
    """

    x: Tensor
    grad: Tensor
    narrow: Tensor
    wide: Tensor
    leaks: Tensor
    lost: Tensor
    overflows: Tensor
    differs: Tensor


def underflow(f: Function, wide: Function, x: Tensor, dtype: torch.dtype, kinks: Iterable[float] = ()) -> Underflow:
    """Compare f at `x` in `dtype`, with finite grads of every size, with `wide` at the same numbers in float64.

    An x next to one of `kinks` is left out, because it may be exactly at the kink in one dtype and beside it in the other.
    """
    info = torch.finfo(dtype)
    grads = special_grads(dtype)
    least = info.tiny if dtype == torch.float32 else 0.0  # no training has gradients that are subnormal in float32
    grads = grads[grads.isfinite() & (grads != 0) & (grads.abs() >= least)]
    points = x.to(dtype).unique()
    for kink in kinks:
        points = points[(points.double() - kink).abs() > 3 * info.eps * max(abs(kink), info.tiny)]
    x_narrow, grad = points.repeat_interleave(len(grads)), grads.repeat(len(points))
    narrow, wide_grad_x = gradient_of(f, x_narrow, grad), gradient_of(wide, x_narrow.double(), grad.double())
    leaks = (wide_grad_x == 0) & (narrow != 0) & narrow.isfinite()
    lost = (wide_grad_x.abs() > 4 * info.tiny) & (narrow == 0)
    overflows = ~narrow.isfinite() & (wide_grad_x.abs() <= 1) & (grad.abs() <= 1)
    slopes = (wide_grad_x / grad.double()).abs()
    is_usual = (grad.abs() > 0.1) & (grad.abs() < 10) & narrow.isfinite() & wide_grad_x.isfinite()
    size = slopes[is_usual].max().item() if is_usual.any() else 0.0
    is_far = (narrow.double() - wide_grad_x).abs() > max(_LARGE_SHARE, 32 * info.eps) * size * grad.double().abs()
    return Underflow(x_narrow, grad, narrow, wide_grad_x, leaks, lost, overflows, is_usual & is_far & ~leaks & ~lost)


class SecondDerivative(NamedTuple):
    """A derivative of grad_x."""

    value: Tensor  # the derivative by autograd
    expected: Tensor  # the derivative by differences
    is_known: Tensor  # a mask of the points where the differences can be trusted
    error: Tensor  # the error that the differences may have
    unit: float  # the unit of the derivative

    @property
    def wrong(self) -> Tensor:
        room = 1e-4 * (self.unit + self.expected.abs()) + self.error
        return self.is_known & ~((self.value - self.expected).abs() <= room)


def second_order(
    f: Function, x: Tensor, grad: Tensor, step: float, unit: float = 1.0, eps: float = _EPS, scale: float = 1.0
) -> tuple[SecondDerivative, SecondDerivative]:
    """The derivatives of grad_x by x and by grad, at x and grad. Raises RuntimeError if the backward cannot be differentiated.

    step: the distance of the differences, in units of `scale`.
    unit: the unit of the derivative by x.
    eps: the epsilon of the dtype in which f computes.
    scale: the size of x.
    """
    if _is_once_differentiable(f, x, grad):
        raise RuntimeError("its backward is marked once_differentiable")
    by_x, by_grad = second_derivatives(f, (x,), grad, (1.0,))
    unmoved = gradient_of(f, x, grad)

    def quotients(moved: Callable[[float], Tensor], by: float, unit: float) -> tuple[Tensor, Tensor]:
        right, left = (moved(by) - unmoved) / by, (unmoved - moved(-by)) / by
        return (right + left) / 2, torch.as_tensor(slopes_agree(right / unit, left / unit))

    # Coarser numbers need a longer step, over which a smooth gradient bends more.
    grad_step = step * (eps / _EPS) ** (1 / 3)
    x_step = grad_step * scale
    x_expected, x_known = quotients(lambda by: gradient_of(f, x + by, grad), x_step, unit)
    grad_expected, grad_known = quotients(lambda by: gradient_of(f, x, grad + by), grad_step, 1.0)
    halved, _ = quotients(lambda by: gradient_of(f, x + by, grad), x_step / 2, unit)
    x_error = 4 * (halved - x_expected).abs() + 16 * eps * (unmoved.abs() + x.abs() * x_expected.abs()) / x_step
    grad_error = 16 * eps * unmoved.abs() / grad_step
    return (
        SecondDerivative(by_x, x_expected, x_known, x_error, unit),
        SecondDerivative(by_grad, grad_expected, grad_known, grad_error, unit=1.0),
    )


def _is_once_differentiable(f: Function, x: Tensor, grad: Tensor) -> bool:
    """Does a node in the graph of the gradient raise an error? .backward() runs this node; torch.autograd.grad may leave it out."""
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(leaf), leaf, grad.clone().requires_grad_(), create_graph=True, allow_unused=True)
    waiting = [first.grad_fn] if first is not None else []
    visited = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        if node.name().endswith("Error"):
            return True
        visited.add(node)
        waiting += [after for after, _ in node.next_functions]
    return False
