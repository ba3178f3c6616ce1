"""Every way to ask torch for gradients. Each must give the values of `backward`, to the last bit.

A way takes (f, x, weight) and returns the gradient of x for the grad `weight`. Or it takes (f, [x, low, ...], weight) for f(x, low, ...),
and returns a gradient for each tensor. As in torch.func, a tensor that gets no gradient has zeros.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, jacrev, vjp, vmap
from torch.utils.checkpoint import checkpoint

from .inputs import requiring_grad

Function = Callable[..., Tensor]
Gradients = tuple[Tensor, ...]
Way = Callable[..., Any]
REVERSE: list[Way] = []  # all ways except plain backward, in the order of this file


def _accept_one_tensor(way: Callable[..., Gradients]) -> Way:
    """A way written for a list of tensors takes one tensor too, and returns its gradient."""

    @wraps(way)
    def accepting_way(f: Function, tensors: Tensor | list[Tensor], weight: Tensor, **how: object) -> Tensor | Gradients:
        if isinstance(tensors, Tensor):
            return way(f, [tensors], weight, **how)[0]
        return way(f, tensors, weight, **how)

    return accepting_way


def _add_way(way: Callable[..., Gradients]) -> Way:
    """Add a way that takes a list to REVERSE, as a way that takes one tensor or a list."""
    REVERSE.append(_accept_one_tensor(way))
    return REVERSE[-1]


def loss_of(f: Function, weight: Tensor) -> Function:
    """A scalar loss whose gradient to y is `weight`, whatever y is."""
    return lambda *tensors: (f(*tensors) * weight).sum()


def _all(tensors: list[Tensor]) -> tuple[int, ...]:
    return tuple(range(len(tensors)))


def _or_zero(gradients: Any, leaves: Iterable[Tensor]) -> Gradients:
    return tuple(torch.zeros_like(leaf) if g is None else g.detach() for g, leaf in zip(gradients, leaves, strict=True))


@_accept_one_tensor
def gradient_by_backward(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    leaves = requiring_grad(tensors)
    f(*leaves).backward(weight)
    return _or_zero([leaf.grad for leaf in leaves], leaves)


@_add_way
def gradient_by_create_graph(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    leaves = requiring_grad(tensors)
    return _or_zero(torch.autograd.grad(f(*leaves), leaves, weight, create_graph=True, allow_unused=True), leaves)


@_add_way
def gradient_by_func_grad(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    return grad(loss_of(f, weight), _all(tensors))(*tensors)


@_add_way
def gradient_by_grad_of_recorded(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    """func.grad inside a recorded graph: two levels of autograd at once."""
    gradients = grad(loss_of(f, weight), _all(tensors))(*requiring_grad(tensors))
    return tuple(g.detach() for g in gradients)


@_add_way
def gradient_by_vjp(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    return vjp(f, *tensors)[1](weight)


@_add_way
def gradient_by_jacrev(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    """The gradient of the loss, so that a rule which reads grad sees the same grad."""
    return jacrev(loss_of(f, weight), _all(tensors))(*tensors)


def _sliced(
    f: Function, tensors: list[Tensor], weight: Tensor, dim: int = 0
) -> tuple[Function, tuple[int | None, ...]]:
    """f of one slice of y, and the dimension along which each tensor is split; None for a tensor that all slices share."""
    from_the_end = dim % weight.dim() - weight.dim()
    has_dim = [tensor.dim() >= -from_the_end for tensor in tensors]
    dims = [
        tensor.dim() + from_the_end if has and tensor.shape[from_the_end] == weight.shape[dim] else None
        for tensor, has in zip(tensors, has_dim, strict=True)
    ]
    is_size_one = [has and at is None for has, at in zip(has_dim, dims, strict=True)]

    def slice_of_f(*slices: Tensor) -> Tensor:
        return f(*[part.squeeze(from_the_end) if is_size_one[i] else part for i, part in enumerate(slices)])

    return slice_of_f, tuple(dims)


@_add_way
def gradient_by_vmap_of_grad(f: Function, tensors: list[Tensor], weight: Tensor, dim: int = 0) -> Gradients:
    """One gradient for each slice. A tensor that all slices share gets the sum."""
    slice_of_f, dims = _sliced(f, tensors, weight, dim)

    def gradients_of_slice(weight: Tensor, *slices: Tensor) -> Gradients:
        return grad(loss_of(slice_of_f, weight), _all(tensors))(*slices)

    gradients = vmap(gradients_of_slice, in_dims=(dim, *dims), out_dims=tuple(at or 0 for at in dims))(weight, *tensors)
    return tuple(g.sum(0) if at is None else g for g, at in zip(gradients, dims, strict=True))


@_add_way
def gradient_by_vmap_over_the_last_dim(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    return gradient_by_vmap_of_grad(f, tensors, weight, dim=-1)


def mapped(f: Function, tensors: Tensor | list[Tensor], weight: Tensor) -> Function:
    """f by vmap over the slices of y."""
    slice_of_f, dims = _sliced(f, [tensors] if isinstance(tensors, Tensor) else tensors, weight)
    return vmap(slice_of_f, in_dims=dims)


@_add_way
def gradient_by_grad_of_vmap(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    return grad(loss_of(mapped(f, tensors, weight), weight), _all(tensors))(*tensors)


@_add_way
def gradient_by_recorded_vmap(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    """vmap alone, recorded outside: inside it, nothing seems to require grad."""
    return gradient_by_backward(mapped(f, tensors, weight), tensors, weight)


@_add_way
def gradient_by_batched_grads(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    leaves = requiring_grad(tensors)
    batch = torch.stack([torch.zeros_like(weight), weight])
    gradients = torch.autograd.grad(f(*leaves), leaves, batch, is_grads_batched=True, allow_unused=True)
    return _or_zero([None if g is None else g[1] for g in gradients], leaves)


@_add_way
def gradient_by_checkpoint(f: Function, tensors: list[Tensor], weight: Tensor, reentrant: bool = False) -> Gradients:
    return gradient_by_backward(lambda *leaves: checkpoint(f, *leaves, use_reentrant=reentrant), tensors, weight)


@_add_way
def gradient_by_reentrant_checkpoint(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    return gradient_by_checkpoint(f, tensors, weight, reentrant=True)


@_add_way
def gradient_by_saved_tensors_hooks(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    """Saved tensors leave through a hook and come back as copies."""

    def hooked(*leaves: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
            return f(*leaves)

    return gradient_by_backward(hooked, tensors, weight)


def diagonal_by_jvp(f: Callable[[Tensor], Tensor], x: Tensor, tangent: Tensor) -> Tensor:
    return torch.func.jvp(f, (x,), (tangent,))[1]


def diagonal_by_jacfwd(f: Callable[[Tensor], Tensor], x: Tensor, tangent: Tensor) -> Tensor:
    jacobian = torch.func.jacfwd(f)(x)
    assert isinstance(jacobian, Tensor)
    return (jacobian.reshape(f(x).numel(), x.numel()) @ tangent.reshape(-1)).reshape(f(x).shape)


def diagonal_by_dual_level(f: Callable[[Tensor], Tensor], x: Tensor, tangent: Tensor) -> Tensor:
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, tangent))).tangent


def hessian(f: Callable[[Tensor], Tensor], x: Tensor, tangent: Tensor) -> Any:
    return torch.func.hessian(loss_of(f, tangent))(x)


FORWARD_MODE = (diagonal_by_jvp, diagonal_by_jacfwd, diagonal_by_dual_level)
