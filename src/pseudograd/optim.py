"""Bounds on parameters: `project` clamps them after every step of an optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from .arguments import check_broadcast, check_tensor, is_number
from .errors import must
from .torch_table.private import foreach_clamp_max_, foreach_clamp_min_, local

Bound = float | Tensor | None
Bounds = tuple[Bound, Bound]
Leaf = TypeVar("Leaf", bound=Tensor)  # a dictionary of Parameters is no Mapping from Tensors


def project(optimizer: Optimizer, bounds: Mapping[Leaf, Bounds]) -> RemovableHandle:
    """Keep parameters within bounds: clamp them now and after each `optimizer.step()`.

    For a leaf parameter in a box this is the method to choose: no backward rule of a clamp was measured to do better there. With
    plain gradient descent it is the projected gradient method.

    Forward:  p = clamp(p, min, max), in place, without a graph. Once in this call, so that p is feasible from here on; then after
        every step that the optimiser takes. A step that torch.amp.GradScaler skips leaves p as it was.
    Backward: none. Gradients and the optimiser's state (momentum, averages) stay as they are, and so does its `state_dict`.

    Args:
        optimizer: any torch.optim.Optimizer; foreach, fused and closures included.
        bounds: {parameter: (min, max)} for parameters in its groups; numbers, tensors that broadcast to the parameter, or None on one
            side. Tensors are read at every step, so that a bound may move. Where a tensor min exceeds max, p = max. NaN stays NaN.
            A bound of a sharded parameter (FSDP2) has the shape of the whole parameter: the same tensor on every rank, or a DTensor.
    Returns: a handle: `handle.remove()` ends the projection, and so does leaving `with project(...)`. Copies of the optimiser
        (deepcopy, pickle) do not project, as with every hook of torch: call `project` on the copy.
    Raises: TypeError if optimizer is no torch optimiser, bounds are no dictionary, a key is no real tensor, or a bound is neither number
        nor tensor; ValueError if bounds are empty, a key is in no group of the optimiser, a value is no pair, both its bounds are None,
        a number is NaN, min > max (numbers only), or a tensor does not broadcast to its parameter.
    Example:
        >>> p = torch.nn.Parameter(torch.tensor([0.5, 0.5]))
        >>> optimizer = torch.optim.SGD([p], lr=1.0)
        >>> with project(optimizer, {p: (0, 1)}):
        ...     (p * torch.tensor([3.0, -0.25])).sum().backward(); optimizer.step(); p.data
        tensor([0.0000, 0.7500])
    Source: gradient projection, Goldstein (1964), Levitin & Polyak (1966).
    """
    bounded = _check_bounds(optimizer, bounds)
    _clamp(bounded)

    def after_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
        _clamp(bounded)

    return optimizer.register_step_post_hook(after_step)


Bounded = list[tuple[Tensor, Bounds]]


@torch.no_grad()
def _clamp(bounded: Bounded) -> None:
    """First every min, then every max, as torch.clamp does. Numbers go to all their parameters in one call."""
    _clamp_side(bounded, 0, foreach_clamp_min_, "min")
    _clamp_side(bounded, 1, foreach_clamp_max_, "max")


def _clamp_side(bounded: Bounded, side: int, clamp_all: Callable[..., None] | None, name: str) -> None:
    # torch 2.10 takes no list of sharded parameters.
    together = [(p, pair[side]) for p, pair in bounded if is_number(pair[side]) and not hasattr(p, "device_mesh")]
    if clamp_all is not None and together:
        clamp_all([p for p, _ in together], [number for _, number in together])
    for p, pair in bounded:
        bound = pair[side]
        if is_number(bound) and (clamp_all is None or hasattr(p, "device_mesh")):
            p.clamp_(**{name: bound})
        if isinstance(bound, Tensor):
            local(p).clamp_(**{name: _bound_on_device(p, bound)})


def _bound_on_device(p: Tensor, bound: Tensor) -> Tensor:
    """The bound on the device of p. If p is sharded (a DTensor, which torch 2.8 clamps by no tensor): the bound of this rank's part."""
    bound = bound.to(p.device)
    if not hasattr(p, "device_mesh"):
        return bound
    from torch.distributed.tensor import DTensor, Replicate  # on demand: whoever has a DTensor has imported it

    bound = bound.expand(p.shape)
    if not isinstance(bound, DTensor):
        bound = DTensor.from_local(bound, p.device_mesh, [Replicate()] * p.device_mesh.ndim, run_check=False)
    return local(bound.redistribute(placements=p.placements))  # type: ignore[attr-defined]


def _check_bounds(optimizer: Optimizer, bounds: Mapping[Leaf, Bounds]) -> Bounded:
    if not isinstance(optimizer, Optimizer):
        raise TypeError(must("project", "optimizer", "be a torch.optim.Optimizer", optimizer))
    if not isinstance(bounds, Mapping):
        raise TypeError(must("project", "bounds", "be a dictionary {parameter: (min, max)}", bounds))
    if not bounds:
        raise ValueError(must("project", "bounds", "name a parameter", bounds))
    own = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [(p, _check_pair(p, pair, id(p) in own)) for p, pair in bounds.items()]


def _check_pair(p: Tensor, pair: Bounds, is_own: bool) -> Bounds:
    check_tensor("project", "parameter", p, "Name the parameter itself")
    if not is_own:
        remedy = "Name the parameter itself, and add its group before this call"
        raise ValueError(must("project", "parameter", "be in a group of the optimizer", p, remedy))
    if not isinstance(pair, Iterable) or isinstance(pair, (str, Tensor)) or len(tuple(pair)) != 2:
        raise ValueError(must("project", "bounds", "be pairs (min, max)", pair))
    low, high = (_check_bound(p, name, bound) for name, bound in zip(("min", "max"), pair, strict=True))
    if low is None and high is None:
        raise ValueError("project: one of min and max must be given, got None for both. Give at least one bound.")
    if is_number(low) and is_number(high) and low > high:
        raise ValueError(f"project: min must not exceed max, got min={low!r} and max={high!r}. Swap them or drop one.")
    return low, high


def _check_bound(p: Tensor, name: str, bound: object) -> Bound:
    if isinstance(bound, Tensor):
        check_tensor("project", name, bound)
        check_broadcast("project", name, bound, p.shape, "the parameter", grows=False)
        return bound  # not detached: the program may give the bound a new `.data`
    if bound is None:
        return None
    if not isinstance(bound, Real):
        raise TypeError(must("project", name, "be a number, a tensor or None", bound))
    if bound != bound:
        raise ValueError(must("project", name, "not be NaN", bound, "Use None for no bound"))
    return float(bound)


def __dir__() -> list[str]:
    return sorted(name for name in globals() if name == "project" or name.startswith("__"))
