"""Ties in max pools: torch, JAX and TensorFlow give all of the gradient to the first of equal entries. To the last is no worse."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...torch_table.private import saved

NODE = "MaxPool2DWithIndicesBackward"  # of one dimension, too
FAMILY, LAST = "max_pool", "the last of equal entries"


def tied(node: Any) -> tuple[Tensor, int, int] | None:
    """Where in each plane the last of the equal entries stands, by window; how many windows have a tie, and how many there are. None
    without a tie, and in ceil mode, where windows reach over the end.
    """
    x, first = saved(node, "self").detach(), saved(node, "result1")
    size, step, pad, spread = (_two(saved(node, name)) for name in ("kernel_size", "stride", "padding", "dilation"))
    if saved(node, "ceil_mode") or not x.numel():
        return None
    planes = x.reshape(-1, 1, *x.shape[-2:])
    wide = functional.pad(planes.float(), (pad[1], pad[1], pad[0], pad[0]), value=-math.inf)
    windows = functional.unfold(wide, size, spread, 0, step or size)
    is_tied = (windows == windows.amax(1, keepdim=True)).sum(1) > 1
    if not bool(is_tied.any()):
        return None
    from_the_end = windows.flip(1).argmax(1)  # the first of equal ones there
    at = windows.shape[1] - 1 - from_the_end
    columns = first.shape[-1]
    window = torch.arange(windows.shape[-1], device=x.device)
    row = (window // columns) * (step or size)[0] + (at // size[1]) * spread[0] - pad[0]
    column = (window % columns) * (step or size)[1] + (at % size[1]) * spread[1] - pad[1]
    last = (row * x.shape[-1] + column).reshape(first.shape)
    return torch.where(is_tied.reshape(first.shape), last, first), int(is_tied.sum()), is_tied.numel()


def left(last: Tensor, leaving: tuple[Any, ...], grad: Tensor) -> tuple[Any, ...]:
    """What leaves the pool where it gives all to the last."""
    if leaving[0] is None:
        return leaving
    planes = torch.zeros_like(leaving[0]).flatten(-2)
    planes.scatter_add_(-1, last.flatten(-2), grad.flatten(-2))
    return (planes.reshape(leaving[0].shape), *leaving[1:])


def _two(value: Any) -> tuple[int, ...]:
    some = tuple(value)
    return some * 2 if len(some) == 1 else some
