"""The gradient of an element-wise function, as numbers."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..errors import must
from ..listen.harmless import unheard

FIX_RANDOM = "Fix what is random in it; a module in training mode needs eval()"


def gradient(f: Callable[[Tensor], Tensor], x: Tensor, grad: float | Tensor = 1.0) -> Tensor:
    """dL/dx of an element-wise `f` where dL/dy = `grad`.

    Forward:  runs f on a copy of x; the result is not connected to x.
    Backward: one reverse pass. For a function that is not element-wise, entry i is the sum of dL/dx_i over all outputs.

    Args:
        f: a function of one tensor.
        x: any shape, floating point; the points to look at.
        grad: dL/dy; a number for all elements, or a tensor of the shape of x.
    Returns: shape and dtype of x; zeros where f does not depend on x.
    Raises: TypeError if x is not floating point or f does not return a floating-point tensor.
    Example:
        >>> gradient(torch.sin, torch.tensor([0.0]))
        tensor([1.])
    Source: `get_gradient` of An analysis of clamp_with_grad (J. Halliwell, 2022).
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(
            must("gradient", "x", "be a floating-point tensor", x, "Integers carry no gradient; call x.float() first")
        )
    with unheard, torch.inference_mode(False), torch.enable_grad():  # a diagnosis counts no backward pass of ours
        point = x.detach().clone().requires_grad_()
        y = f(point)
    if not isinstance(y, Tensor) or not y.is_floating_point():
        raise TypeError(must("gradient", "f", "return a floating-point tensor", y))
    if not y.requires_grad:
        return torch.zeros_like(x)
    upstream = grad.to(y.dtype) if isinstance(grad, Tensor) else torch.full_like(y, grad)
    with unheard:
        (grad_x,) = torch.autograd.grad(y, point, upstream, allow_unused=True)
    return torch.zeros_like(x) if grad_x is None else grad_x


def checked_function(where: str, argument: str, f: object, kinds: str) -> Callable[..., Tensor]:
    """f itself, or the `apply` of an autograd.Function. Raises TypeError for an nn.Module that is a class, and for what cannot be called.

    where: the public function that the error names.
    kinds: the things that f may be, in words.
    """
    if inspect.isclass(f) and issubclass(f, torch.autograd.Function):
        return f.apply
    if inspect.isclass(f) and issubclass(f, nn.Module):
        raise TypeError(
            must(where, argument, "be a module that was made", f.__name__, f"Call it first: {f.__name__}(...)")
        )
    if inspect.isclass(f) and callable(getattr(f, "apply", None)):
        raise TypeError(must(where, argument, f"be {kinds}", f.__name__, f"Give {f.__name__}.apply"))
    if not callable(f):
        raise TypeError(must(where, argument, f"be {kinds}", f))
    return f


def in_dtype(f: Callable[..., Tensor], dtype: torch.dtype) -> Callable[..., Tensor]:
    """f for x in this dtype. A module is copied, because its parameters must have this dtype too."""
    return copy.deepcopy(f).to(dtype) if isinstance(f, nn.Module) else f


def on_copy(f: Callable[..., Tensor], dtype: torch.dtype) -> Callable[..., Tensor]:
    """f on a copy of x in this dtype, because f may write into x. An empty x comes back as it is, because f may refuse it."""

    def call(x: Tensor, *others: object) -> Tensor:
        copied = x.clone().to(dtype)
        return f(copied, *others) if x.numel() else copied

    return call


def name_of(f: object) -> str:
    """The name of a function in a report or a picture."""
    if f is torch.clamp:
        return "torch.clamp"
    if isinstance(f, functools.partial):
        return name_of(f.func)
    owner = getattr(f, "__self__", f)  # of the apply of an autograd.Function
    if inspect.isclass(owner) and issubclass(owner, torch.autograd.Function):
        return owner.__name__
    name = getattr(f, "__name__", type(f).__name__)
    return "f" if name == "<lambda>" else str(name)


get_gradient = gradient
