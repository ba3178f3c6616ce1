"""The gradients of all tensor inputs at once, by every way to ask for them. What was broadcast gets the sum, cast to its dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, jacrev, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from .rows import Row

Function = Callable[..., Tensor]
Gradients = tuple[Tensor, ...]
Way = Callable[[Function, list[Tensor], Tensor], Gradients]


class Problem(NamedTuple):
    """The op as a function of all its tensors; those, finite; and a grad of both signs for its result."""

    name: str
    f: Function
    tensors: list[Tensor]
    weight: Tensor


def problems(row: Row) -> Iterator[Problem]:
    """Every sample of the row with several tensors, in float64; x narrower than the others; the others narrower than x."""
    for sample in row.samples():
        inputs = sample.build(torch.float64)
        at = [position for position, value in enumerate(inputs) if isinstance(value, Tensor)]
        if len(at) > 1:
            first, *others = (torch.nan_to_num(inputs[position], 0.5, 4.0, -4.0) for position in at)
            f = _of_tensors(row, inputs, at)
            for kind, tensors in (
                ("one dtype", [first, *others]),
                ("x narrower", [first.float(), *others]),
                ("x wider", [first, *(other.float() for other in others)]),
            ):
                y = f(*tensors)
                weight = torch.linspace(-2, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
                yield Problem(f"{sample.name}, {kind}", f, tensors, weight)


def _of_tensors(row: Row, inputs: tuple[Any, ...], at: list[int]) -> Function:
    call = row.function()

    def f(*tensors: Tensor) -> Tensor:
        values: list[Any] = list(inputs)
        for position, tensor in zip(at, tensors):  # noqa: B905  Dynamo on torch 2.8 knows no strict
            values[position] = tensor
        return call(*values)

    return f


def _loss(f: Function, weight: Tensor) -> Function:
    return lambda *tensors: (f(*tensors) * weight).sum()


def _leaves(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def _all(tensors: list[Tensor]) -> tuple[int, ...]:
    return tuple(range(len(tensors)))


def _gradients(y: Tensor, leaves: list[Tensor], weight: Tensor, **how: bool) -> Gradients:
    """Zero for an input that gets nothing, as torch.func says it."""
    found = torch.autograd.grad(y, leaves, weight, allow_unused=True, **how)
    empty = [torch.zeros_like(leaf) for leaf in leaves]
    return tuple(zero if g is None else g.detach() for g, zero in zip(found, empty, strict=True))


def by_backward(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    leaves = _leaves(tensors)
    return _gradients(f(*leaves), leaves, weight)


def by_create_graph(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    leaves = _leaves(tensors)
    return _gradients(f(*leaves), leaves, weight, create_graph=True)


def by_func_grad(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    return grad(_loss(f, weight), _all(tensors))(*tensors)


def by_vjp(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    return vjp(f, *tensors)[1](weight)


def by_jacrev(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    found: Any = jacrev(_loss(f, weight), _all(tensors))(*tensors)
    return found


def one_row(f: Function, tensors: list[Tensor], weight: Tensor) -> tuple[Function, tuple[int | None, ...]]:
    """f of one row of y, and the dimension along which each tensor is split; None for what all rows share."""
    dims = tuple(0 if t.dim() == weight.dim() and t.shape[0] == weight.shape[0] else None for t in tensors)

    def one(*rows: Tensor) -> Tensor:
        return f(*[row.squeeze(0) if row.dim() == weight.dim() else row for row in rows])

    return one, dims


def by_vmap_of_grad(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    """One gradient a row; what all rows share gets their sum."""
    one, dims = one_row(f, tensors, weight)

    def of_row(weight: Tensor, *rows: Tensor) -> Gradients:
        return grad(_loss(one, weight), _all(tensors))(*rows)

    found = vmap(of_row, in_dims=(0, *dims))(weight, *tensors)
    return tuple(g if dim == 0 else g.sum(0) for g, dim in zip(found, dims, strict=True))


def by_grad_of_vmap(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    one, dims = one_row(f, tensors, weight)
    return grad(_loss(vmap(one, in_dims=dims), weight), _all(tensors))(*tensors)


def by_recorded_vmap(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    one, dims = one_row(f, tensors, weight)
    return by_backward(vmap(one, in_dims=dims), tensors, weight)


def by_batched_grads(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    leaves = _leaves(tensors)
    batch = torch.stack([torch.zeros_like(weight), weight])
    found = torch.autograd.grad(f(*leaves), leaves, batch, is_grads_batched=True, allow_unused=True)
    return tuple(torch.zeros_like(leaf) if g is None else g[1] for g, leaf in zip(found, leaves, strict=True))


def by_checkpoint(f: Function, tensors: list[Tensor], weight: Tensor, reentrant: bool = False) -> Gradients:
    leaves = _leaves(tensors)
    checkpoint(f, *leaves, use_reentrant=reentrant).backward(weight)
    return tuple(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves)


def by_reentrant_checkpoint(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    return by_checkpoint(f, tensors, weight, reentrant=True)


def by_saved_tensors_hooks(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    """Saved tensors leave through a hook and come back as copies."""
    leaves = _leaves(tensors)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        y = f(*leaves)
    return _gradients(y, leaves, weight)


def by_make_fx(f: Function, tensors: list[Tensor], weight: Tensor) -> Gradients:
    traced = make_fx(lambda tensors, weight: by_backward(f, tensors, weight))
    elsewhere = [tensor * 0.5 for tensor in tensors]
    return tuple(traced(elsewhere, weight)(tensors, weight))


# All but by_make_fx, which takes ten times as long as the others together.
REVERSE: tuple[Way, ...] = (
    by_create_graph,
    by_func_grad,
    by_vjp,
    by_jacrev,
    by_vmap_of_grad,
    by_grad_of_vmap,
    by_recorded_vmap,
    by_batched_grads,
    by_checkpoint,
    by_reentrant_checkpoint,
    by_saved_tensors_hooks,
)


def assert_same_gradients(found: Gradients, expected: Gradients, tensors: list[Tensor], what: str) -> None:
    """Shapes and dtypes of the inputs; values equal but for the order of a sum."""
    near = 8 * max(torch.finfo(tensor.dtype).eps for tensor in tensors)
    for position, (ours, theirs, tensor) in enumerate(zip(found, expected, tensors, strict=True)):
        where = f"{what}, input {position}"
        assert (ours.shape, ours.dtype) == (tensor.shape, tensor.dtype), f"{where}: {ours.shape}, {ours.dtype}"
        assert torch.allclose(ours, theirs, rtol=near, atol=near), f"{where}: {ours}, by backward {theirs}"


def check_all_inputs(row: Row) -> None:
    """Every tensor input gets the gradient that backward gives it, by every way and with mixed dtypes."""
    for name, f, tensors, weight in problems(row):
        expected = by_backward(f, tensors, weight)
        for way in REVERSE:
            assert_same_gradients(way(f, tensors, weight), expected, tensors, f"{name}, {way.__name__}")
