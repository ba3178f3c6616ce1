"""The gradients of a function by backward and by functorch, what it saves, whether they add up, and its second derivatives."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from .inputs import Inputs, requiring_grad, tensors_among, tensors_of

Gradients = list[Tensor | None]


def gradient_by_backward(f: Callable[..., Tensor], inputs: Inputs, grad: Tensor, **how: bool) -> Gradients:
    """One gradient per tensor input, through the recording path; create_graph=True forces the formula. grad is cast to what f returns."""
    leaves = requiring_grad(inputs)
    y = f(*leaves)
    if not y.requires_grad:
        return [None] * len(tensors_of(leaves))
    gradients = torch.autograd.grad(y, tensors_of(leaves), grad.to(y.dtype), allow_unused=True, **how)
    return [None if g is None else g.detach() for g in gradients]


def gradient_by_backward_of_first(f: Callable[..., Tensor], inputs: Inputs, grad: Tensor) -> Gradients:
    """The gradient if only the first input requires grad: for this case there are kernels with tensor bounds."""
    return gradient_by_backward(lambda first: f(first, *inputs[1:]), inputs[:1], grad)


def gradient_by_vjp(f: Callable[..., Tensor], inputs: Inputs, grad: Tensor) -> Gradients:
    """Through functorch."""
    return list(torch.func.vjp(tensors_among(f, inputs), *tensors_of(inputs))[1](grad))


def saved_by(f: Callable[..., Tensor], inputs: Inputs) -> list[Tensor]:
    """The tensors that one call gives to autograd to keep."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        f(*inputs)
    return saved


def additivity(
    f: Callable[..., Tensor], inputs: Inputs, shape: torch.Size, size: float = 1.0
) -> list[tuple[Tensor, ...]]:
    """For each input, the gradients for grads a, b and a + b. These are exact in binary and never 0; a and b have opposite signs."""
    inputs = tuple(torch.nan_to_num(v, 0.5, 4.0, -4.0) if isinstance(v, Tensor) else v for v in inputs)
    a = torch.linspace(-2, 2, shape.numel(), dtype=torch.float64).mul(8).floor().add(0.5).div(8 / size).reshape(shape)
    pulls = [gradient_by_backward(f, inputs, grad) for grad in (a, -3 * a, -2 * a)]
    return [parts for parts in zip(*pulls, strict=True) if all(part is not None for part in parts)]


def second_derivatives(
    f: Callable[..., Tensor], inputs: Inputs, grad: Tensor, weights: Iterable[float]
) -> list[Tensor]:
    """The derivatives of the weighted sum of the tensor inputs' gradients: by each of these inputs, then by grad. Zeros for a constant."""
    leaves, grad = requiring_grad(inputs), grad.clone().requires_grad_()
    tensors = tensors_of(leaves)
    first = torch.autograd.grad(f(*leaves), tensors, grad, create_graph=True, allow_unused=True)
    total = sum(weight * g for weight, g in zip(weights, first, strict=True) if g is not None)
    if not isinstance(total, Tensor) or not total.requires_grad:  # a constant
        return [torch.zeros_like(t) for t in (*tensors, grad)]
    return list(torch.autograd.grad(total.sum(), [*tensors, grad], allow_unused=True, materialize_grads=True))
