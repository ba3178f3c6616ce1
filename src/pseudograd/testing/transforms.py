"""Every way to ask torch for a gradient. Each must give what `backward` gives, to the bit of a value."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Loss = Callable[[Tensor], Tensor]


def loss_of(f: Callable[[Tensor], Tensor], weight: Tensor) -> Loss:
    """A scalar loss whose gradient to y is `weight`, whatever y is."""
    return lambda x: (f(x) * weight).sum()


def by_backward(f: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    f(leaf).backward(weight)
    assert leaf.grad is not None
    return leaf.grad


def by_func_grad(f: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
    return torch.func.grad(loss_of(f, weight))(x)


def by_grad_of_recorded(f: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
    """func.grad inside a recorded graph: two levels of autograd at once."""
    return torch.func.grad(loss_of(f, weight))(x.clone().requires_grad_()).detach()


def by_vjp(f: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
    return torch.func.vjp(f, x)[1](weight)[0]


def by_jacrev(f: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of `loss`, so that a rule which reads grad sees the same grad."""
    return torch.func.jacrev(loss_of(f, weight))(x)


def by_vmap_of_grad(f: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
    per_sample = torch.func.grad(lambda one, w: (f(one) * w).sum())
    return torch.func.vmap(per_sample)(x, weight)


def by_grad_of_vmap(f: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
    return torch.func.grad(lambda all_x: (torch.func.vmap(f)(all_x) * weight).sum())(x)


def by_vmap_over_the_last_dim(f: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
    per_sample = torch.func.grad(lambda one, w: (f(one) * w).sum())
    return torch.func.vmap(per_sample, in_dims=(-1, -1), out_dims=-1)(x, weight)


def by_recorded_vmap(f: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
    """vmap alone, recorded outside: inside it, nothing seems to require grad."""
    leaf = x.clone().requires_grad_()
    torch.func.vmap(f)(leaf).backward(weight)
    assert leaf.grad is not None
    return leaf.grad


def by_batched_grads(f: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    y = f(leaf)
    batch = torch.stack([torch.zeros_like(weight), weight])
    return torch.autograd.grad(y, leaf, batch, is_grads_batched=True)[0][1]


def _checkpointed(reentrant: bool) -> Callable[..., Tensor]:
    def path(f: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
        leaf = x.clone().requires_grad_()
        checkpoint(f, leaf, use_reentrant=reentrant).backward(weight)
        assert leaf.grad is not None
        return leaf.grad

    path.__name__ = f"by_checkpoint_{'reentrant' if reentrant else 'not_reentrant'}"
    return path


def by_saved_tensors_hooks(f: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
    """Saved tensors leave through a hook and come back as copies."""
    leaf = x.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        y = f(leaf)
    y.backward(weight)
    assert leaf.grad is not None
    return leaf.grad


def by_create_graph(f: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf, weight, create_graph=True)[0].detach()


REVERSE: tuple[Callable[..., Tensor], ...] = (
    by_func_grad,
    by_grad_of_recorded,
    by_vjp,
    by_jacrev,
    by_vmap_of_grad,
    by_grad_of_vmap,
    by_vmap_over_the_last_dim,
    by_recorded_vmap,
    by_batched_grads,
    _checkpointed(True),
    _checkpointed(False),
    by_saved_tensors_hooks,
    by_create_graph,
)


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


FORWARD_MODE: tuple[Callable[..., Any], ...] = (diagonal_by_jvp, diagonal_by_jacfwd, diagonal_by_dual_level)
