"""Roots and norms at singular points."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...rule import Gradients, Wants
from ..conventions import OWN, SLOPE, Family, Kink, pin, share
from ..records import MISSING, Defaults, Form, pass_on, pass_pair
from .ordered import Own, pin_form, replace_gradient, values_of


def _pull_sqrt(convention: str, grad: Tensor, x: Tensor, *, y: Tensor, wants: Wants) -> Gradients:
    """TensorFlow gives 0 where grad is 0, even if the slope is infinite."""
    own = grad / (2 * y)
    return (own if convention == OWN else torch.where((x == 0) & (grad == 0), 0.0, own),)


def _pull_hypot(convention: str, grad: Tensor, x: Tensor, other: Tensor, *, y: Tensor, wants: Wants) -> Gradients:
    if convention == OWN:
        return grad * x / y, grad * other / y
    is_origin, at_origin = (x == 0) & (other == 0), share(grad, float(convention))
    y = torch.where(is_origin, 1.0, y)
    to_x, to_other = grad * x / y, grad * other / y  # in torch's order, which rounds otherwise than grad * (x / y)
    return torch.where(is_origin, at_origin, to_x), torch.where(is_origin, at_origin, to_other)


def _write_norm(
    name: str, convention: str, own: Own, x: Tensor, p: Any, dim: Any, keepdim: object, dtype: object, out: object
) -> object:
    """The norms 1 and infinity of vectors under JAX: a sum or an extreme of jnp.abs, whose slope at 0 is 1."""
    if (
        dtype is not None
        or out is not None
        or x.dim() == 0
        or isinstance(p, Tensor)
        or p not in (1, math.inf, -math.inf)
    ):
        return None
    dim_or_all = range(x.dim()) if dim is None else dim
    dims = (dim_or_all,) if isinstance(dim_or_all, int) else tuple(dim_or_all)
    is_of_matrix = name == "norm of linalg" and len(dims) == 2
    if is_of_matrix:
        return None
    value, are_kept = values_of(own), bool(keepdim)
    norms = value.detach()
    if not are_kept or (dim is None and name == "norm" and norms.dim() == 0):
        for axis in sorted(axis % x.dim() for axis in dims):
            norms = norms.unsqueeze(axis)
    # JAX's maximum includes a constant 0, so at 0 each entry has the slope 1/2.
    sign = torch.where(x.detach() == 0, 0.5 if p == math.inf else 1.0, torch.sgn(x.detach()))
    signed = x * sign
    if p == 1:
        return replace_gradient(value, signed.sum(dims, keepdim=are_kept))
    tied = x.detach().abs() == norms
    chosen = torch.where(tied, signed, torch.zeros((), dtype=x.dtype, device=x.device))
    return replace_gradient(value, chosen.sum(dims, keepdim=are_kept) / tied.sum(dims, keepdim=are_kept).to(x.dtype))


# --- the rows ---------------------------------------------------------------------------------------------------------

_SQRT = Family("sqrt", "0, where grad is 0", jax=OWN, tensorflow="tensorflow", notes=("NaN", "NaN", "0"))
_HYPOT = Family("hypot", "0, 0", SLOPE, jax=0.5, notes=("NaN", ".5, .5", ""))
_NORM = Family("norm", "zeros, of the norms 1 and infinity", jax="jax", notes=("0", "1; .5 shared", ""))
pin(_SQRT, "torch.sqrt", _pull_sqrt, torch.sqrt, ("x",))
pin(_HYPOT, "torch.hypot", _pull_hypot, torch.hypot, ("x", "other"))
_LINALG = (torch.linalg,)
_AXES: Defaults = {"dim": None, "keepdim": False, "dtype": None, "out": None}

FORMS = [
    Form("sqrt", kink=Kink(_SQRT, pass_on("torch.sqrt"))),
    Form(
        "hypot",
        defaults={"input": MISSING, "other": MISSING},
        saved=("self", "other"),
        kink=Kink(_HYPOT, pass_pair("torch.hypot"), example=(0.0, torch.zeros(1)), nodes=("HypotBackward",)),
    ),
    pin_form("vector_norm", _NORM, partial(_write_norm, "vector_norm"), {"ord": 2, **_AXES}, owners=_LINALG),
    pin_form("norm", _NORM, partial(_write_norm, "norm"), {"p": "fro", **_AXES}, owners=(torch,)),
    pin_form("norm", _NORM, partial(_write_norm, "norm of linalg"), {"ord": None, **_AXES}, owners=_LINALG),
]
