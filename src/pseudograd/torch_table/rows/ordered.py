"""Sorted and selected values. A pin writes them out: the values and indices are torch's, but other entries of a tie get the gradient.

Each `write` function gets the convention, torch's function `own`, and the arguments of the call. It returns None if torch has to run it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ... import engine
from ...ops.replace import REPLACE_GRAD
from ...rule import call_for
from ..conventions import SHARED, Family, Kink
from ..eras import CLOSED_ERA, OPEN_ERA
from ..records import MISSING, TENSORS, Defaults, Form

Own = Callable[..., Any]  # torch's function with the arguments of the call, or with another x
_types: Any = torch.return_types


def replace_gradient(value: Tensor, source: Tensor) -> Tensor:
    """The value of `value`, with the gradient of `source`."""
    return engine.run(call_for(REPLACE_GRAD, "replace"), value.detach(), source.to(value.dtype))


def values_of(own: Own) -> Any:
    with torch.no_grad():
        return own()


def _write_extreme(
    kind: Callable[..., object], convention: str, own: Own, x: Tensor, dim: object, keepdim: bool
) -> object:
    """A maximum or minimum over a dimension: JAX and TensorFlow share the gradient among the tied entries."""
    if convention != SHARED or not isinstance(dim, int) or x.dim() == 0:
        return None
    values, indices = values_of(own)
    values = values.detach()
    extremes, index = (values, indices) if keepdim else (values.unsqueeze(dim), indices.unsqueeze(dim))
    first = torch.zeros_like(x, dtype=torch.bool).scatter(dim, index, True)
    tied = torch.where(extremes == extremes, x.detach() == extremes, first)  # a NaN keeps torch's gradient
    chosen = torch.where(tied, x, torch.zeros((), dtype=x.dtype, device=x.device)).sum(dim, keepdim=keepdim)
    count = tied.sum(dim, keepdim=keepdim).to(x.dtype)
    return kind((replace_gradient(values, chosen / count), indices))


def _stable_order(x: Tensor, dim: int, descending: bool = False) -> Tensor:
    return torch.sort(x.detach(), dim=dim, descending=descending, stable=True).indices


def _write_sort(convention: str, own: Own, x: Tensor, dim: object, descending: object, stable: object) -> object:
    if not isinstance(dim, int):
        return None
    values, indices = values_of(own)
    is_reversed = bool(descending) and convention == "jax"  # JAX sorts upwards and reverses the result
    order = _stable_order(x, dim).flip(dim) if is_reversed else _stable_order(x, dim, bool(descending))
    return _types.sort((replace_gradient(values, x.gather(dim, order)), indices))


def _write_msort(convention: str, own: Own, x: Tensor) -> object:
    return replace_gradient(values_of(own), x.gather(0, _stable_order(x, 0)))


def _write_topk(
    convention: str, own: Own, x: Tensor, k: object, dim: object, largest: object, sorted: object
) -> object:
    if not isinstance(k, int) or not isinstance(dim, int) or not sorted or x.dim() == 0:
        return None
    values, indices = values_of(own)
    order = _stable_order(x, dim, bool(largest)).narrow(dim, 0, k)
    return _types.topk((replace_gradient(values, x.gather(dim, order)), indices))


def _value_at_rank(
    values: Tensor, indices: Tensor, x: Tensor, dim: int, keepdim: bool, rank: int, is_mean: bool = False
) -> Tensor:
    """The value at a rank. The gradient goes to the entry at this rank in a stable sort; for a NaN, to the entry that torch names.

    is_mean: the entry at the next rank gets half of the gradient if it is equal.
    """
    values = values.detach()
    order = _stable_order(x, dim)
    kept_values, own_index = (values, indices) if keepdim else (values.unsqueeze(dim), indices.unsqueeze(dim))
    chosen = x.gather(dim, torch.where(kept_values == kept_values, order.narrow(dim, rank, 1), own_index))
    if is_mean:
        after = x.gather(dim, order.narrow(dim, rank + 1, 1))
        chosen = torch.where(after == kept_values, (chosen + after) / 2, chosen)
    return replace_gradient(values, chosen if keepdim else chosen.squeeze(dim))


def _write_kthvalue(convention: str, own: Own, x: Tensor, k: object, dim: object, keepdim: object) -> object:
    if not isinstance(k, int) or not isinstance(dim, int) or x.dim() == 0:
        return None
    values, indices = values_of(own)
    return _types.kthvalue((_value_at_rank(values, indices, x, dim, bool(keepdim), k - 1), indices))


def _write_median(convention: str, own: Own, x: Tensor, dim: object, keepdim: object) -> object:
    """Of an even number of values, jnp.median is the mean of the two in the middle, and torch.median is the lower one."""
    if x.numel() == 0 or x.dim() == 0 or not (dim is None or isinstance(dim, int)):
        return None
    if dim is None:
        flat = x.reshape(-1)
        with torch.no_grad():
            values, indices = torch.median(flat, 0)
        size = flat.shape[0]
        middle = _value_at_rank(values, indices, flat, 0, keepdim=False, rank=(size - 1) // 2, is_mean=size % 2 == 0)
        return replace_gradient(values_of(own), middle)
    values, indices = values_of(own)
    size = x.shape[dim]
    middle = _value_at_rank(values, indices, x, dim, bool(keepdim), (size - 1) // 2, size % 2 == 0)
    return _types.median((middle, indices))


# --- quantiles --------------------------------------------------------------------------------------------------------


def _write_quantile(
    ignores_nan: bool, convention: str, own: Own, x: Tensor, q: object, dim: Any, keepdim: object, interpolation: str
) -> object:
    """As in torch 2.13: sort, then interpolate between two neighbours. jnp.quantile has a stable sort."""
    if x.dtype not in (torch.float32, torch.float64):  # autocast computes in float32
        return None
    value = values_of(own)
    flat, axis = (x.reshape(-1), 0) if dim is None or x.dim() == 0 else (x, dim % x.dim())
    flat = flat.movedim(axis, -1)
    if flat.shape[-1] == 0:
        return None
    order = torch.sort(flat.detach(), dim=-1, stable=convention != CLOSED_ERA).indices
    ordered = flat.gather(-1, order)
    q = torch.as_tensor(q, dtype=x.dtype, device=x.device)
    parts = q.reshape(-1)
    last = _last_rank(ordered, ignores_nan)
    rank = torch.where(last >= 0, parts * last, torch.zeros((), dtype=x.dtype, device=x.device))
    if not ignores_nan:  # one NaN makes the result NaN and gets the gradient; it is sorted to the end
        rank = torch.where((ordered != ordered).any(-1, keepdim=True), last, rank)
    low, high, weight = _neighbours(rank, interpolation)
    shape = (*ordered.shape[:-1], parts.shape[0])
    chosen = ordered.gather(-1, low.expand(shape))
    if high is not None and weight is not None:
        chosen = torch.lerp(chosen, ordered.gather(-1, high.expand(shape)), weight.expand(shape))
    chosen = chosen.movedim(-1, 0)  # the ranks come first
    if keepdim:
        chosen = chosen.unsqueeze(axis + 1) if dim is not None and x.dim() > 0 else chosen.reshape(-1, *[1] * x.dim())
    return replace_gradient(value, chosen[0] if q.dim() == 0 else chosen)


def _last_rank(ordered: Tensor, ignores_nan: bool) -> Tensor:
    """The greatest rank, or that of the numbers alone if NaN is ignored."""
    if not ignores_nan:
        return torch.full((), ordered.shape[-1] - 1, dtype=ordered.dtype, device=ordered.device)
    return ((ordered == ordered).sum(-1, keepdim=True) - 1).to(ordered.dtype)


def _neighbours(rank: Tensor, interpolation: str) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The rank below, the rank above, and the weight of the rank above; one rank and None if there is no interpolation."""
    if interpolation in ("lower", "higher", "nearest"):
        rounded = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}[interpolation]
        return rounded(rank.detach()).long(), None, None
    low, high = rank.detach().floor().long(), rank.detach().ceil().long()
    weight = torch.full_like(rank, 0.5) if interpolation == "midpoint" else rank - low
    return low, high, weight


# --- the rows ---------------------------------------------------------------------------------------------------------

_MAX = Family(
    "max",
    "ties, max and min over a dimension",
    jax=SHARED,
    tensorflow=SHARED,
    notes=("one of them", "shared", "shared"),
)
_SORT = Family(
    "sort",
    "ties, also of msort, topk and kthvalue",
    jax="jax",
    tensorflow="tensorflow",
    notes=("of no order", "in their order; descending in reverse", "in their order"),
)
_MEDIAN = Family("median", "ties", jax="jax", notes=("shared, or one", "as they are sorted", ""))
_QUANTILE = Family(
    "quantile",
    "ties, also of nanquantile",
    torch=CLOSED_ERA,
    since_2_14=OPEN_ERA,
    jax="jax",
    notes=("shared, or one", "as they are sorted", ""),
)
_DIM: Defaults = {"dim": MISSING, "keepdim": False}
_EACH_Q: Defaults = {"q": MISSING, "dim": None, "keepdim": False, "interpolation": "linear"}


def pin_form(
    name: str,
    family: Family,
    write: Callable[..., object],
    defaults: Defaults,
    *overloads: str,
    owners: tuple[object, ...] = TENSORS,
) -> Form:
    """A row that a pin writes out. overloads: those of aten; without any, the row is not about aten's function."""
    owners = (*owners, torch.ops.aten) if overloads else owners
    return Form(
        name,
        defaults={"input": MISSING, **defaults},
        owners=owners,
        overloads=overloads,
        kink=Kink(family, write=write),
    )


FORMS = [
    pin_form("max", _MAX, partial(_write_extreme, _types.max), _DIM, "dim"),
    pin_form("min", _MAX, partial(_write_extreme, _types.min), _DIM, "dim"),
    pin_form("sort", _SORT, _write_sort, {"dim": -1, "descending": False, "stable": False}),
    pin_form("msort", _SORT, _write_msort, {}),
    pin_form("topk", _SORT, _write_topk, {"k": MISSING, "dim": -1, "largest": True, "sorted": True}, "default"),
    pin_form("kthvalue", _SORT, _write_kthvalue, {"k": MISSING, "dim": -1, "keepdim": False}, "default"),
    pin_form("median", _MEDIAN, _write_median, {"dim": None, "keepdim": False}),
    pin_form("quantile", _QUANTILE, partial(_write_quantile, False), _EACH_Q),
    pin_form("nanquantile", _QUANTILE, partial(_write_quantile, True), _EACH_Q),
]
