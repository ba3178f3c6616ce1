"""Functions with a chosen forward and a chosen backward, to be audited."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def make_function(
    forward: Callable[[Tensor], Tensor],
    backward: Callable[[Tensor, Tensor], Tensor],
    spoil: Callable[[Tensor], object] = torch.Tensor.numel,
) -> Callable[[Tensor], Tensor]:
    """y = forward(x), grad_x = backward(grad, x), whatever the derivative is. spoil: what backward does to y."""

    class Chosen(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            y = forward(x)
            ctx.y = y.detach()
            return y

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            spoil(ctx.y)
            return backward(grad, *ctx.saved_tensors)

    return lambda x: Chosen.apply(x)  # type: ignore[no-any-return]


def clamped(x: Tensor) -> Tensor:
    return x.clamp(-1, 1)


def below(x: Tensor) -> Tensor:
    return x < -1


def above(x: Tensor) -> Tensor:
    return x > 1


def inside(x: Tensor) -> Tensor:
    return ~(below(x) | above(x))


def inward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where((below(x) & (grad > 0)) | (above(x) & (grad < 0)), 0.0, grad)


class Silu(torch.autograd.Function):
    """SiLU with the slopes that UnSwag's kernel decodes from two bits: whether x >= 0, and whether |x| >= 2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward((x >= 0).to(torch.int8) + 2 * (x.abs() >= 2).to(torch.int8))
        return torch.nn.functional.silu(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (code,) = ctx.saved_tensors
        return grad * torch.where(code == 0, 0.0, torch.where(code == 1, 0.5, 1.0)).to(grad.dtype)
