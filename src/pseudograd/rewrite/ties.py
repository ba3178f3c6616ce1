"""Functions whose gradient at ties, or at a singular point, is another one elsewhere: written out in torch's own functions.

The values are torch's, and so are its indices; the gradient is that of what stands behind `replace_grad`. Or torch's function runs on an
x whose gradient is stopped on its way out where the framework has another one (`_gated`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import engine
from ..ops.replace import REPLACE_GRAD
from ..ops.shared_rules import alias
from ..rule import Gradients, Primitive, Rule, call_for, register
from ..torch_table.conventions import NAN, SHARED
from ..torch_table.eras import CLOSED_ERA, OPEN_ERA
from ..torch_table.private import in_forward_mode

Own = Callable[..., Any]  # torch's function with the arguments of the call; with another x where one is given


def replaced(value: Tensor, by: Tensor) -> Tensor:
    """The value of the first, with the gradient of the second."""
    return engine.run(call_for(REPLACE_GRAD, "replace"), value.detach(), by.to(value.dtype))


def _values(own: Own) -> Any:
    with torch.no_grad():
        return own()


# --- a maximum over a dimension ---------------------------------------------------------------------------------------


def _extreme(kind: Any, convention: str, own: Own, x: Tensor, dim: object, keepdim: Any) -> object:
    if convention != SHARED or not isinstance(dim, int) or x.dim() == 0:
        return None
    found = _values(own)
    values = found[0].detach()
    whole = values if keepdim else values.unsqueeze(dim)
    index = found[1] if keepdim else found[1].unsqueeze(dim)
    first = torch.zeros_like(x, dtype=torch.bool).scatter(dim, index, True)
    tied = torch.where(whole == whole, x.detach() == whole, first)  # a NaN wins, and has torch's gradient
    chosen = torch.where(tied, x, torch.zeros((), dtype=x.dtype, device=x.device)).sum(dim, keepdim=keepdim)
    count = tied.sum(dim, keepdim=keepdim).to(x.dtype)
    return kind((replaced(values, chosen / count), found[1]))


# --- sorted values ----------------------------------------------------------------------------------------------------


def _order(x: Tensor, dim: int, descending: bool = False) -> Tensor:
    """Equal ones in their order."""
    return torch.sort(x.detach(), dim=dim, descending=descending, stable=True).indices


def _sort(convention: str, own: Own, x: Tensor, dim: object, descending: object, stable: object) -> object:
    if not isinstance(dim, int) or x.dim() == 0:
        return None
    found = _values(own)
    turned = bool(descending) and convention == "jax"  # which sorts and turns it round
    order = _order(x, dim).flip(dim) if turned else _order(x, dim, bool(descending))
    return torch.return_types.sort((replaced(found[0], x.gather(dim, order)), found[1]))  # type: ignore[attr-defined]


def _msort(convention: str, own: Own, x: Tensor) -> object:
    return None if x.dim() == 0 else replaced(_values(own), x.gather(0, _order(x, 0)))


def _topk(convention: str, own: Own, x: Tensor, k: object, dim: object, largest: object, sorted: object) -> object:
    if not isinstance(k, int) or not isinstance(dim, int) or not sorted or x.dim() == 0:
        return None
    found = _values(own)
    order = _order(x, dim, bool(largest)).narrow(dim, 0, k)
    return torch.return_types.topk((replaced(found[0], x.gather(dim, order)), found[1]))  # type: ignore[attr-defined]


def _one_of(found: Any, x: Tensor, dim: int, keepdim: bool, rank: int) -> Tensor:
    """The value at a rank, with its gradient; where torch found NaN, that of the entry which torch names."""
    values, indices = found[0].detach(), found[1]
    at = _order(x, dim).narrow(dim, rank, 1)
    whole, of_torch = (values, indices) if keepdim else (values.unsqueeze(dim), indices.unsqueeze(dim))
    chosen = x.gather(dim, torch.where(whole == whole, at, of_torch))
    return replaced(values, chosen if keepdim else chosen.squeeze(dim))


def _kthvalue(convention: str, own: Own, x: Tensor, k: object, dim: object, keepdim: object) -> object:
    if not isinstance(k, int) or not isinstance(dim, int) or x.dim() == 0:
        return None
    found = _values(own)
    return torch.return_types.kthvalue((_one_of(found, x, dim, bool(keepdim), k - 1), found[1]))  # type: ignore[attr-defined]


def _median(convention: str, own: Own, x: Tensor, dim: object, keepdim: object) -> object:
    """jnp.median sorts; of an even number torch takes the lower of the two in the middle."""
    if x.numel() == 0 or x.dim() == 0 or not (dim is None or isinstance(dim, int)):
        return None
    if dim is None:
        flat = x.reshape(-1)
        with torch.no_grad():
            found = torch.median(flat, 0)
        return replaced(_values(own), _one_of(found, flat, 0, False, (flat.shape[0] - 1) // 2))
    found = _values(own)
    one = _one_of(found, x, dim, bool(keepdim), (x.shape[dim] - 1) // 2)
    return torch.return_types.median((one, found[1]))  # type: ignore[attr-defined]


# --- quantiles --------------------------------------------------------------------------------------------------------


def _quantile(
    ignores_nan: bool, convention: str, own: Own, x: Tensor, q: object, dim: object, keepdim: object, interpolation: Any
) -> object:
    """As torch 2.13: sort, then go from one neighbour to the other. jnp.quantile has a stable sort."""
    if convention == OPEN_ERA or not (dim is None or isinstance(dim, int)):
        return None
    found = _values(own)
    flat, axis = (x.reshape(-1), 0) if dim is None or x.dim() == 0 else (x, dim % x.dim())
    flat = flat.movedim(axis, -1)
    if flat.shape[-1] == 0:
        return None
    order = torch.sort(flat.detach(), dim=-1, stable=convention != CLOSED_ERA).indices
    ordered = flat.gather(-1, order)
    q = torch.as_tensor(q, dtype=x.dtype, device=x.device)
    at = q.reshape(-1)
    last = _last(ordered, ignores_nan)
    rank = torch.where(last >= 0, at * last, torch.zeros((), dtype=x.dtype, device=x.device))
    if not ignores_nan:  # one NaN makes the result NaN, and gets the gradient: it stands last
        rank = torch.where((ordered != ordered).any(-1, keepdim=True), last, rank)
    low, high, weight = _neighbours(rank, interpolation)
    each = (*ordered.shape[:-1], at.shape[0])
    below = ordered.gather(-1, low.expand(each))
    chosen = below if high is None else torch.lerp(below, ordered.gather(-1, high.expand(each)), weight.expand(each))
    chosen = chosen.movedim(-1, 0)  # the ranks come first
    if keepdim:
        chosen = chosen.unsqueeze(axis + 1) if dim is not None and x.dim() > 0 else chosen.reshape(-1, *[1] * x.dim())
    return replaced(found, chosen[0] if q.dim() == 0 else chosen)


def _last(ordered: Tensor, ignores_nan: bool) -> Tensor:
    """The greatest rank; of numbers alone where a NaN is ignored."""
    if not ignores_nan:
        return torch.full((), ordered.shape[-1] - 1, dtype=ordered.dtype, device=ordered.device)
    return ((ordered == ordered).sum(-1, keepdim=True) - 1).to(ordered.dtype)


def _neighbours(rank: Tensor, interpolation: str) -> tuple[Tensor, Tensor | None, Any]:
    if interpolation == "lower":
        return rank.detach().floor().long(), None, None
    if interpolation == "higher":
        return rank.detach().ceil().long(), None, None
    if interpolation == "nearest":
        return rank.detach().round().long(), None, None
    low, high = rank.detach().floor().long(), rank.detach().ceil().long()
    weight = torch.full_like(rank, 0.5) if interpolation == "midpoint" else rank - low
    return low, high, weight


# --- singular points --------------------------------------------------------------------------------------------------


def _pull_of_gate(what: str, grad: Tensor, x: None, at: Tensor, *, y: None, wants: object) -> Gradients:
    """Behind the pull of torch's function: what it gave is replaced at these places."""
    return torch.where(at, float(what), grad), None


_GATE = register(
    Primitive(
        name="a singular point",
        inputs=("x", "at"),
        forward=lambda x, at: alias(x),
        rules={
            what: Rule(
                name=what,
                formula="what the framework has",
                source="measured",
                pull=partial(_pull_of_gate, what),
                reference=lambda *arguments, **parameters: (),
                is_linear=True,
                keeps=("at",),
                compares=False,
            )
            for what in ("nan", "0.0", "-inf")
        },
    )
)


def _gated(x: Tensor, at: Tensor, what: str) -> Tensor:
    """Forward mode meets the singular point first, and keeps torch's slope."""
    if in_forward_mode():
        return x
    return engine.run(call_for(_GATE, what), x, at.expand(x.shape))


def _norm(
    name: str, convention: str, own: Own, x: Tensor, p: Any, dim: Any, keepdim: object, dtype: object, out: object
) -> object:
    if dtype is not None or out is not None or x.dim() == 0 or isinstance(p, Tensor):
        return None
    dims = tuple(range(x.dim())) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    if p == "nuc" or (name == "norm of linalg" and p is not None and (len(dims) == 2) and p != "fro"):
        return None  # of a matrix
    p = 2 if p in (None, "fro") else p
    if p == 0:
        return None
    value = _values(own)
    whole = value.detach()
    if not keepdim or (dim is None and name == "norm" and whole.dim() == 0):
        for one in sorted(one % x.dim() for one in dims):
            whole = whole.unsqueeze(one)
    if p == 1 or math.isinf(p):
        return None if convention == NAN else _norm_of_jax(value, whole, x, p, dims, bool(keepdim))
    return own(_gated(x, whole == 0, NAN)) if NAN in convention else None


def _norm_of_jax(value: Tensor, whole: Tensor, x: Tensor, p: float, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """A sum or an extreme of jnp.abs, whose slope at 0 is 1. The maximum is one of these and 0, so that at 0 it gets a half."""
    sign = torch.where(x.detach() == 0, 0.5 if p == math.inf else 1.0, torch.sgn(x.detach()))
    signed = x * sign
    if p == 1:
        return replaced(value, signed.sum(dims, keepdim=keepdim))
    tied = x.detach().abs() == whole
    chosen = torch.where(tied, signed, torch.zeros((), dtype=x.dtype, device=x.device))
    return replaced(value, chosen.sum(dims, keepdim=keepdim) / tied.sum(dims, keepdim=keepdim).to(x.dtype))


def _std(convention: str, own: Own, x: Tensor, dim: Any, *others: object) -> object:
    """Whatever else it is called with: its result with dimensions kept is 0 where x is constant."""
    if convention != NAN or x.dim() == 0:
        return None
    found = x.detach()
    if dim is None or isinstance(dim, bool):
        at = found == found.reshape(-1)[0]
        return own(_gated(x, at.all(), NAN))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    at = found.amax(dims, keepdim=True) == found.amin(dims, keepdim=True)
    return own(_gated(x, at, NAN))


def _atan2(convention: str, own: Own, x: Tensor, other: object) -> object:
    if not isinstance(other, Tensor) or convention not in (NAN, "0.0"):
        return None
    at = (x.detach() == 0) & (other.detach() == 0)
    return own(*_both_gated(x, other, at, convention, convention))


def _pow(convention: str, own: Own, x: Tensor, exponent: object) -> object:
    if convention != NAN or not isinstance(exponent, Tensor):
        return None
    at = (x.detach() == 0) & (exponent.detach() == 0)
    return own(*_both_gated(x, exponent, at, NAN, ""))


def _xlogy(convention: str, own: Own, x: object, other: object) -> object:
    if not isinstance(other, Tensor) or not isinstance(x, Tensor):
        return None
    at = (x.detach() == 0) & (other.detach() == 0)
    return own(*_both_gated(x, other, at, *(("-inf", "nan") if convention == "jax" else ("0.0", "0.0"))))


def _both_gated(x: Tensor, other: Tensor, at: Tensor, to_x: str, to_other: str) -> tuple[Tensor, Tensor]:
    """The two as the function would broadcast them."""
    x, other = torch.broadcast_tensors(x, other)
    return (_gated(x, at, to_x) if to_x else x, _gated(other, at, to_other) if to_other else other)


_types = torch.return_types
WRITE: dict[str, Callable[..., Any]] = {
    "written max": partial(_extreme, _types.max),
    "written min": partial(_extreme, _types.min),
    "written sort": _sort,
    "written msort": _msort,
    "written topk": _topk,
    "written kthvalue": _kthvalue,
    "written median": _median,
    "written quantile": partial(_quantile, False),
    "written nanquantile": partial(_quantile, True),
    "written vector_norm": partial(_norm, "vector_norm"),
    "written norm": partial(_norm, "norm"),
    "written norm of linalg": partial(_norm, "norm of linalg"),
    "written std": _std,
    "written atan2": _atan2,
    "written arctan2": _atan2,
    "written pow": _pow,
    "written xlogy": _xlogy,
}
