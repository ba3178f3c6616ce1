"""Roots, norms, powers and angles at singular points. If a framework has NaN or infinity there, `_gate` replaces torch's gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ... import engine
from ...ops.shared_rules import alias
from ...rule import Gradients, Primitive, Wants, call_for, register
from ..conventions import NAN, OWN, SLOPE, Convention, Family, Kink, measured_rule, pin, share
from ..private import in_forward_mode
from ..records import MISSING, Form, Takes, pass_on, pass_pair
from .ordered import Own, pin_form, replace_gradient, values_of

# --- by a formula -----------------------------------------------------------------------------------------------------


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


_SQRT = Family("sqrt", "0, where grad is 0", jax=OWN, tensorflow="tensorflow", notes=("NaN", "NaN", "0"))
_HYPOT = Family("hypot", "0, 0", SLOPE, jax=0.5, notes=("NaN", ".5, .5", ""))
pin(_SQRT, "torch.sqrt", _pull_sqrt, torch.sqrt, ("x",))
pin(_HYPOT, "torch.hypot", _pull_hypot, torch.hypot, ("x", "other"))

# --- by a gate --------------------------------------------------------------------------------------------------------


def _pull_gate(value: str, grad: Tensor, x: None, is_at: Tensor, *, wants: Wants) -> Gradients:
    """grad is what torch's own function, which runs after the gate, gives x. It is replaced at the singular points."""
    return torch.where(is_at, float(value), grad), None


_GATE = register(
    Primitive(
        name="a singular point",
        inputs=("x", "is_at"),
        forward=lambda x, is_at: alias(x),
        rules={
            value: measured_rule(value, partial(_pull_gate, value), ("is_at",), compares=False)
            for value in (NAN, "0.0", "-inf")
        },
    )
)


def _gate(x: Tensor, is_at: Tensor, value: str) -> Tensor:
    """x, whose gradient is replaced by `value` where is_at; x itself if the value is "", and in forward mode, which reaches the gate before
    torch's function.
    """
    if in_forward_mode() or not value:
        return x
    return engine.run(call_for(_GATE, value), x, is_at.expand(x.shape))


def _write_norm(
    name: str, convention: str, own: Own, x: Tensor, p: Any, dim: Any, keepdim: object, dtype: object, out: object
) -> object:
    if dtype is not None or out is not None or x.dim() == 0 or isinstance(p, Tensor):
        return None
    dims = tuple(range(x.dim())) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    is_of_matrix = p == "nuc" or (name == "norm of linalg" and p not in (None, "fro") and len(dims) == 2)
    if is_of_matrix:
        return None
    p = 2 if p in (None, "fro") else p
    if p == 0:
        return None
    value = values_of(own)
    norms = value.detach()
    if not keepdim or (dim is None and name == "norm" and norms.dim() == 0):
        for axis in sorted(axis % x.dim() for axis in dims):
            norms = norms.unsqueeze(axis)
    if p == 1 or math.isinf(p):
        return None if convention == NAN else _norm_of_jax(value, norms, x, p, dims, bool(keepdim))
    return own(_gate(x, norms == 0, NAN)) if NAN in convention else None


def _norm_of_jax(value: Tensor, norms: Tensor, x: Tensor, p: float, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """A sum or an extreme of jnp.abs, whose slope at 0 is 1. JAX's maximum includes a constant 0, so at 0 each entry has the slope 1/2."""
    sign = torch.where(x.detach() == 0, 0.5 if p == math.inf else 1.0, torch.sgn(x.detach()))
    signed = x * sign
    if p == 1:
        return replace_gradient(value, signed.sum(dims, keepdim=keepdim))
    tied = x.detach().abs() == norms
    chosen = torch.where(tied, signed, torch.zeros((), dtype=x.dtype, device=x.device))
    return replace_gradient(value, chosen.sum(dims, keepdim=keepdim) / tied.sum(dims, keepdim=keepdim).to(x.dtype))


def _write_std(convention: str, own: Own, x: Tensor, dim: Any, *others: object) -> object:
    """The standard deviation is 0, its singular point, where x is constant. This holds for all other arguments."""
    if convention != NAN or x.dim() == 0:
        return None
    values = x.detach()
    if dim is None or isinstance(dim, bool):
        return own(_gate(x, (values == values.reshape(-1)[0]).all(), NAN))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    return own(_gate(x, values.amax(dims, keepdim=True) == values.amin(dims, keepdim=True), NAN))


def _write_pair(at_zeros: Mapping[str, tuple[str, str]], convention: str, own: Own, x: object, other: object) -> object:
    """A function of two tensors, with a gate where both are 0. at_zeros: the gradients of both there, by convention."""
    if convention not in at_zeros or not isinstance(x, Tensor) or not isinstance(other, Tensor):
        return None
    is_at = (x.detach() == 0) & (other.detach() == 0)
    first, second = torch.broadcast_tensors(x, other)
    value, other_value = at_zeros[convention]
    return own(_gate(first, is_at, value), _gate(second, is_at, other_value))


# --- the rows ---------------------------------------------------------------------------------------------------------

_IN_BOTH: dict[str, Convention] = {"jax": NAN, "tensorflow": NAN}
_ON_DEMAND = ("0", "(NaN)", "(NaN)")
_NORM = Family(
    "norm",
    "zeros, of the norms 1 and infinity",
    jax="jax",
    singular={"jax": "jax, nan", "tensorflow": NAN},
    notes=("0", "1; .5 shared; others (NaN)", "(NaN)"),
)
_STD = Family("std", "a constant", singular=_IN_BOTH, notes=_ON_DEMAND)
_ATAN2 = Family("atan2", "0, 0", singular=_IN_BOTH, notes=_ON_DEMAND)
_POW = Family("pow", "0 to the power 0", singular=_IN_BOTH, notes=_ON_DEMAND)
_XLOGY = Family(
    "xlogy",
    "0, 0",
    tensorflow="tensorflow",
    singular={"jax": "jax"},
    notes=("0, NaN", "(-inf, NaN)", "0, 0"),
)
_ZEROS = "0.0", "0.0"
_write_atan2 = partial(_write_pair, {NAN: (NAN, NAN), "0.0": _ZEROS})
_write_xlogy = partial(_write_pair, {"jax": ("-inf", NAN), "tensorflow": _ZEROS})
_LINALG = (torch.linalg,)
_AXES: Takes = {"dim": None, "keepdim": False, "dtype": None, "out": None}
_OTHER: Takes = {"other": MISSING}

FORMS = [
    Form("sqrt", kink=Kink(_SQRT, pass_on("torch.sqrt"))),
    Form(
        "hypot",
        takes={"input": MISSING, "other": MISSING},
        saved=("self", "other"),
        kink=Kink(_HYPOT, pass_pair("torch.hypot"), example=(0.0, torch.zeros(1)), nodes=("HypotBackward",)),
    ),
    pin_form("vector_norm", _NORM, partial(_write_norm, "vector_norm"), {"ord": 2, **_AXES}, owners=_LINALG),
    pin_form("norm", _NORM, partial(_write_norm, "norm"), {"p": "fro", **_AXES}, owners=(torch,)),
    pin_form("norm", _NORM, partial(_write_norm, "norm of linalg"), {"ord": None, **_AXES}, owners=_LINALG),
    pin_form("std", _STD, _write_std, dict.fromkeys(("dim", "unbiased", "keepdim", "correction"))),
    pin_form("atan2", _ATAN2, _write_atan2, _OTHER, "default"),
    pin_form("arctan2", _ATAN2, _write_atan2, _OTHER, "default"),
    pin_form("pow", _POW, partial(_write_pair, {NAN: (NAN, "")}), {"exponent": MISSING}, "Tensor_Tensor"),
    pin_form("xlogy", _XLOGY, _write_xlogy, _OTHER, "Tensor"),
    pin_form("xlogy", _XLOGY, _write_xlogy, _OTHER, owners=(torch.special,)),
]
