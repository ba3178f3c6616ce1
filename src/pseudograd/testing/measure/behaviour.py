"""What else the backward of an element-wise function does: between elements, with what is not finite, in half precision, twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from .gradients import by_backward, second_derivatives
from .inputs import special_grads
from .numeric import agree

Function = Callable[[Tensor], Tensor]


def gradient_of(f: Function, x: Tensor, grad: float | Tensor) -> Tensor:
    """dL/dx where dL/dy = grad, zeros where y does not depend on x."""
    (found,) = by_backward(f, (x,), grad if isinstance(grad, Tensor) else torch.full_like(x, grad))
    return torch.zeros_like(x) if found is None else found


class CrossTalk(NamedTuple):
    """At which elements y, and grad_x, changes when only other elements of x, or of grad, change."""

    of_values: Tensor
    of_gradients: Tensor


def cross_talk(f: Function, x: Tensor, grad: Tensor) -> CrossTalk:
    """Half of the elements keep their x and grad, twice, so that each of them is once among those."""
    of_values, of_gradients = (torch.zeros_like(x, dtype=torch.bool) for _ in range(2))
    y, grad_x = f(x.clone()).detach(), gradient_of(f, x, grad)
    for first in (0, 1):
        stays = torch.arange(x.numel(), device=x.device).reshape(x.shape) % 2 == first
        others = torch.where(stays, x, x[len(x) // 3])
        of_values |= stays & _differ(f(others).detach(), y)
        of_gradients |= stays & _differ(gradient_of(f, x, torch.where(stays, grad, -3 * grad)), grad_x)
    return CrossTalk(of_values, of_gradients)


def _differ(a: Tensor, b: Tensor) -> Tensor:
    """More than two orders of one sum do."""
    return ((a - b).abs() > 64 * torch.finfo(a.dtype).eps * b.abs()) & ~(a.isnan() & b.isnan())


class Underflow(NamedTuple):
    """Pairs of x and grad in a narrow dtype with what came back, and what the same numbers give in float64.

    leaks: float64 blocks it, and something comes back. lost: a gradient that the dtype can hold comes back as 0. overflows: it comes back
    infinite or as NaN, from a grad of at most 1.
    """

    x: Tensor
    grad: Tensor
    narrow: Tensor
    wide: Tensor
    leaks: Tensor
    lost: Tensor
    overflows: Tensor


def underflow(f: Function, wide: Function, x: Tensor, dtype: torch.dtype, edges: Iterable[float] = ()) -> Underflow:
    """f at `x` in `dtype`, with finite grads of every size, beside `wide` at the same numbers in float64.

    Left out are the x next to one of `edges`, which may be at it in `dtype` and beside it in float64.
    """
    info = torch.finfo(dtype)
    grads = special_grads(dtype)
    grads = grads[grads.isfinite() & (grads != 0)]
    near = x.to(dtype).unique()
    for edge in edges:
        near = near[(near.double() - edge).abs() > 3 * info.eps * max(abs(edge), info.tiny)]
    x_narrow, grad = near.repeat_interleave(len(grads)), grads.repeat(len(near))
    narrow, here = gradient_of(f, x_narrow, grad), gradient_of(wide, x_narrow.double(), grad.double())
    leaks, lost = (here == 0) & (narrow != 0) & ~narrow.isnan(), (here.abs() > 4 * info.tiny) & (narrow == 0)
    overflows = ~narrow.isfinite() & (here.abs() <= 1) & (grad.abs() <= 1)
    return Underflow(x_narrow, grad, narrow, here, leaks, lost, overflows)


class Second(NamedTuple):
    """The derivative of grad_x by x and by grad: by autograd, by differences, and where the differences say anything."""

    by_x: Tensor
    by_grad: Tensor
    x_expected: Tensor
    grad_expected: Tensor
    x_known: Tensor
    grad_known: Tensor

    @property
    def wrong(self) -> Tensor:
        return self._wrong(self.by_x, self.x_expected, self.x_known) | self._wrong(
            self.by_grad, self.grad_expected, self.grad_known
        )

    @staticmethod
    def _wrong(found: Tensor, expected: Tensor, known: Tensor) -> Tensor:
        return known & ~((found - expected).abs() <= 1e-4 * (1 + expected.abs()))


def second_order(f: Function, x: Tensor, grad: Tensor, step: float) -> Second:
    """Raises RuntimeError where a backward cannot be differentiated."""
    if _is_once_differentiable(f, x, grad):
        raise RuntimeError("its backward is marked once_differentiable")
    by_x, by_grad = second_derivatives(f, (x,), grad, (1.0,))
    here = gradient_of(f, x, grad)

    def quotients(moved: Callable[[float], Tensor]) -> tuple[Tensor, Tensor]:
        right, left = (moved(step) - here) / step, (here - moved(-step)) / step
        return (right + left) / 2, torch.as_tensor(agree(right, left))

    x_expected, x_known = quotients(lambda by: gradient_of(f, x + by, grad))
    grad_expected, grad_known = quotients(lambda by: gradient_of(f, x, grad + by))
    return Second(by_x, by_grad, x_expected, grad_expected, x_known, grad_known)


def _is_once_differentiable(f: Function, x: Tensor, grad: Tensor) -> bool:
    """Does a node that raises stand behind the gradient? torch.autograd.grad passes it by, .backward() runs into it."""
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(leaf), leaf, grad.clone().requires_grad_(), create_graph=True, allow_unused=True)
    waiting = [first.grad_fn] if first is not None else []
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name().endswith("Error"):
            return True
        seen.add(node)
        waiting += [after for after, _ in node.next_functions]
    return False
