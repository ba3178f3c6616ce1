"""What a run returns: a number, or by name numbers, curves and pictures."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..errors import must

ONLY = "the number"  # what a run that returns one number calls it
_ANOTHER_GRAPH = "Return loss.item(), so that no graph is kept"


def returned(where: str, found: object, when: str) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The numbers, at least one, and the arrays. `when`: of which run an error speaks."""
    if not isinstance(found, Mapping):
        return {ONLY: _number(where, "run", found, when)}, {}
    if not all(isinstance(name, str) and name for name in found):
        raise _no_number(where, "run", dict(found), when)
    arrays = {name: array for name, value in found.items() if (array := _array(where, name, value, when)) is not None}
    plain = {
        name: _number(where, f"run's {name!r}", value, when) for name, value in found.items() if name not in arrays
    }
    if arrays and not plain:
        remedy = "Return what the training ends with, such as its loss"
        raise TypeError(must(where, "run", f"return a number beside {', '.join(arrays)}, {when}", dict(found), remedy))
    if not plain:
        raise _no_number(where, "run", dict(found), when)
    return plain, arrays


def _array(where: str, name: str, value: object, when: str) -> Tensor | None:
    """A curve of one dimension, or a picture: rows and columns, with three colours first or last. None for a number."""
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    if not (is_list or hasattr(value, "shape")) or getattr(value, "shape", None) in ((), (1,)):
        return None
    try:
        array = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise _no_number(where, f"run's {name!r}", value, when) from None
    if array.requires_grad:
        raise TypeError(must(where, f"run's {name!r}", f"be without a gradient {when}", value, "Return x.detach()"))
    is_picture = array.dim() == 2 or (array.dim() == 3 and 3 in (array.shape[0], array.shape[-1]))
    if array.is_complex() or not array.numel() or not (array.dim() == 1 or is_picture):
        remedy = "A curve has one dimension; a picture has rows and columns, and three colours first or last"
        shown = f"{array.dtype} of shape {tuple(array.shape)}"
        raise TypeError(must(where, f"run's {name!r}", f"be a number, a curve or a picture {when}", shown, remedy))
    return array.detach().to("cpu", torch.float32, copy=True)


def _number(where: str, what: str, value: object, when: str) -> float:
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            raise TypeError(must(where, what, f"return numbers without a gradient {when}", value, _ANOTHER_GRAPH))
        if value.numel() == 1 and not value.is_complex():
            return float(value)
    elif isinstance(value, numbers.Real):
        return float(value)
    raise _no_number(where, what, value, when)


def _no_number(where: str, what: str, value: object, when: str) -> TypeError:
    remedy = "Return what the training ends with, such as its loss"
    return TypeError(must(where, what, f"return a number, or numbers by name, {when}", value, remedy))
