"""An op in place on a view: autograd makes one node for it, of the whole base. What it does to the slice is what counts."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...torch_table.private import base_of, is_view, is_wrapped
from ...torch_table.records import Form

NODE = "torch::autograd::CopySlices"
_KEY = "pseudograd: the slice of a view"
_Geometry = tuple[torch.Size, tuple[int, ...], int]


class _Slice(NamedTuple):
    """Which part of the base an op of this form has changed."""

    form: Form
    base: _Geometry
    view: _Geometry


def note(form: Form, changed: Tensor) -> None:
    """After an op in place: its node remembers which part of the base it changed."""
    base = None if is_wrapped(changed) or not is_view(changed) else base_of(changed)
    if base is None:
        return
    node: Any = base.grad_fn
    if node is not None and node.name() == NODE:
        node.metadata[_KEY] = _Slice(form, _geometry(base), _geometry(changed))


def seen(node: Any, leaving: Any, arriving: Any) -> tuple[tuple[Any, ...], tuple[object, ...], Form | None]:
    """What leaves and arrives within the slice, and the form of the op that changed it; all of it where nobody noted the slice."""
    found = None if node is None else node.metadata.get(_KEY)
    if found is None or leaving[0] is None or arriving[0] is None:
        return leaving, arriving, None
    return (_of(found, leaving[0]),), (_of(found, arriving[0]),), found.form


def form_of(node: Any) -> Form | None:
    """Of the op that changed the slice; None where nobody noted it."""
    found = node.metadata.get(_KEY)
    return None if found is None else found.form


def _of(found: _Slice, grad: Tensor) -> Tensor:
    size, stride, start = found.base
    whole = (
        grad
        if (grad.shape, grad.stride()) == (size, stride)
        else torch.empty_strided(size, stride, dtype=grad.dtype, device=grad.device).copy_(grad)
    )
    size, stride, offset = found.view
    return whole.as_strided(size, stride, whole.storage_offset() + offset - start)


def _geometry(x: Tensor) -> _Geometry:
    return x.shape, x.stride(), int(x.storage_offset())
