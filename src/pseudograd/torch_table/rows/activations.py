"""Activation functions, and abs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...arguments import APPROXIMATE
from ...rule import Gradients, Pull
from ..conventions import IN_PLACE, OWN, SLOPE, Convention, Family, Kink, is_zero, pin, pull_with_kink, share
from ..private import hardtanh, in_forward_mode, saved, transforms_are_active
from ..records import (
    CUTS,
    MISSING,
    NN,
    TENSORS,
    Arrange,
    Arranged,
    Defaults,
    Form,
    Inputs,
    X,
    edge_case,
    pass_on,
    stand_in,
)

_aten = torch.ops.aten
_ALPHA: Defaults = {"input": MISSING, "alpha": 1.0}
_IN_NN, _NOT_OF_TENSORS = (*NN, _aten), (torch, functional, _aten)

# --- between bounds ---------------------------------------------------------------------------------------------------


def _is_at_bounds(x: Tensor, min: float, max: float) -> Tensor:
    return (x == min) | (x == max)


def _slope_of_hardsigmoid(grad: Tensor, x: Tensor, min: object, max: object) -> Tensor:
    if not (torch.is_grad_enabled() or transforms_are_active() or in_forward_mode()):
        return _aten.hardsigmoid_backward(grad, x)  # which torch cannot differentiate
    return torch.where((x > -3) & (x < 3), grad * (1 / 6), 0.0)


def _pull_hardsigmoid(pull: Pull) -> Pull:
    """hardsigmoid(x) is clamp(x, -3, 3) / 6 + 1/2."""

    def pulled(grad: Tensor, x: Tensor, min: float, max: float, *, y: Tensor, **parameters: object) -> Gradients:
        clamped = torch.where(x < min, min, torch.where(x > max, max, x))
        grad = grad * (1.0 / 6.0)  # as torch does: grad / 6 would be rounded otherwise
        return pull(grad, x, min, max, y=clamped, **parameters)

    return pulled


def _arrange_hardtanh(x: Tensor, min_val: float, max_val: float) -> Arranged | None:
    if min_val > max_val:  # torch.nn.functional raises an error
        return None
    return "torch.hardtanh", (x, min_val, max_val)


def _pick_hardtanh(node: object, inputs: Inputs) -> tuple[str, str]:
    """relu6 and nn.ReLU6 run as a hardtanh, with the same node."""
    is_relu6 = inputs[1] == 0 and inputs[2] == 6
    return ("relu6", "torch.relu6") if is_relu6 else ("hardtanh", "torch.hardtanh")


# After the kink and the meaning of a number: the conventions of torch, JAX and TensorFlow.
_RELU = Family("relu", "0", SLOPE, 0.0, 0.0, 0.0, alike={"clamp(min=0) of torch<=2.13": 1.0})
_RELU6 = Family("relu6", "0 and 6", SLOPE, 0.0, 0.0, 0.0, alike={"clamp(0, 6) of torch<=2.13": 1.0})
_HARDTANH = Family("hardtanh", "both bounds", SLOPE, 0.0, 1.0, 1.0)
_HARDSIGMOID = Family("hardsigmoid", "-3 and 3", SLOPE, 0.0, 0.0, 0.0)
_PULL_BOUNDED = pull_with_kink(_is_at_bounds, lambda grad, x, min, max: torch.where((x <= min) | (x >= max), 0.0, grad))
_PULL_RELU = pull_with_kink(is_zero, lambda grad, x, min, max: torch.where(x <= 0, 0.0, grad))
stand_in("torch.relu", lambda x, min, max: torch.relu(x), "relu6", saves="a copy")
stand_in("torch.relu6", lambda x, min, max: functional.relu6(x), "relu6")
stand_in("torch.hardtanh", hardtanh, "hardtanh")
stand_in("torch.hardsigmoid", lambda x, min, max: functional.hardsigmoid(x), "relu6", through=_pull_hardsigmoid)
pin(_RELU, "torch.relu", _PULL_RELU, compares=False)
pin(_RELU6, "torch.relu6", _PULL_BOUNDED)
pin(_HARDTANH, "torch.hardtanh", _PULL_BOUNDED)
pin(_HARDSIGMOID, "torch.hardsigmoid", pull_with_kink(_is_at_bounds, _slope_of_hardsigmoid), compares=False)


def _saturating(
    name: str,
    arrange: Arrange,
    module: type[nn.Module],
    kink: Kink,
    case: str = "",
    defaults: Defaults = X,
    saved: tuple[str, ...] = (),
    **others: Any,
) -> Form:
    return Form(
        name,
        **{"switches": ("relu",), **others},
        defaults=defaults,
        owners=(*TENSORS, *NN, _aten),
        with_inplace=(functional,),
        arrange=arrange,
        modules=(module,),
        nodes=(name.capitalize(),),
        saved=saved,
        kink=kink,
        edge_cases=(edge_case(case, CUTS),) if case else (),
    )


# --- with a slope below zero ------------------------------------------------------------------------------------------

# alpha and scale, as torch has them
_SELU = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _exponential(
    name: str,
    coefficients: Callable[..., tuple[float, float, float]],
    forward: Callable[..., Tensor],
    *others: str,
    tensorflow: Convention | None = None,
    note: str = "",
    **kink: Any,
) -> Kink:
    """The kink of elu, celu or selu, with the coefficients of torch's backward. In place torch computes the slope from the result."""

    def slope(grad: Tensor, x: Tensor, *others: Any, of_result: bool = False) -> Tensor:
        return _aten.elu_backward(grad, *coefficients(*others), of_result, x)

    def pull_in_place(convention: str, grad: Tensor, x: Tensor, *others: object, y: Tensor, wants: object) -> Gradients:
        own = slope(grad, y, *others, of_result=True)
        return torch.where(x == 0, share(grad, float(convention)), own), *(None,) * len(others)

    exponentials = Family(name, "0", SLOPE, OWN, OWN, tensorflow, notes=("that below", "that below", note))
    inputs = ("x", *others)
    pin(exponentials, f"torch.{name}", pull_with_kink(is_zero, slope), forward, inputs, compares=False)
    pin(exponentials, f"torch.{name}{IN_PLACE}", pull_in_place, forward, inputs)
    return Kink(exponentials, pass_on(f"torch.{name}"), **kink)


_LEAKY_RELU = Family("leaky_relu", "0", SLOPE, OWN, 1.0, OWN, notes=("its slope", "1", "its slope"))
_PULL_LEAKY_RELU = pull_with_kink(is_zero, lambda grad, x, slope: torch.where(x > 0, grad, grad * slope))
pin(_LEAKY_RELU, "leaky_relu", _PULL_LEAKY_RELU, inputs=("x", "negative_slope"), compares=False)
_ABS: Family = Family("abs", "0", SLOPE, 0.0, 1.0, 0.0)
pin(_ABS, "torch.abs", pull_with_kink(is_zero, lambda grad, x: grad * torch.sgn(x)), torch.abs, ("x",), compares=False)


def _arrange_gelu(x: Tensor, approximate: object) -> Arranged | None:
    return ("gelu", (x, APPROXIMATE.index(approximate))) if approximate in APPROXIMATE else None


def _pick_selu(node: object, inputs: object) -> tuple[str, str] | None:
    """selu runs as elu with another scale, so a node of elu itself is left out."""
    is_elu = node is not None and abs(saved(node, "scale") - _SELU[1]) > 1e-6
    return None if is_elu else ("selu", "torch.selu")


FORMS = [
    _saturating("relu", pass_on("torch.relu", 0.0, None), nn.ReLU, Kink(_RELU, is_noted=True), "relu(x)"),
    _saturating("relu6", pass_on("torch.relu6", 0.0, 6.0), nn.ReLU6, Kink(_RELU6), "relu6(x)"),
    _saturating(
        "hardtanh",
        _arrange_hardtanh,
        nn.Hardtanh,
        Kink(_HARDTANH, example=(0.0, 0.0, 1.0), pick=_pick_hardtanh),
        "hardtanh(x, 0, 1)",
        defaults={"input": MISSING, "min_val": -1.0, "max_val": 1.0},
        saved=("self", "min_val", "max_val"),
    ),
    _saturating(
        "hardsigmoid",
        pass_on("torch.hardsigmoid", -3.0, 3.0),
        nn.Hardsigmoid,
        Kink(_HARDSIGMOID, example=(3.0,)),
        second_primitive="hardsigmoid",
        op="clamp",
        saved=("self",),
        switches=("relu", "hardsigmoid"),  # with the rules of a clamp, and with its own
    ),
    Form(
        "gelu",
        switches=("gelu",),
        defaults={"input": MISSING, "approximate": "none"},
        owners=_IN_NN,
        arrange=_arrange_gelu,
        modules=(nn.GELU,),
        nodes=("Gelu",),
        saved=("self", "approximate"),
    ),
    Form(
        "silu",
        switches=("silu",),
        owners=_IN_NN,
        with_inplace=(functional,),
        arrange=pass_on("silu"),
        modules=(nn.SiLU,),
        nodes=("Silu",),
        saved=("self",),
    ),
    Form(
        "leaky_relu",
        switches=("leaky_relu",),
        defaults={"input": MISSING, "negative_slope": 0.01},
        owners=_IN_NN,
        with_inplace=(functional,),
        arrange=pass_on("leaky_relu"),
        modules=(nn.LeakyReLU,),
        nodes=("LeakyRelu",),
        saved=("self", "negative_slope"),
        # In place torch keeps the result, which is 0 where x is 0 and has the sign of x.
        saved_in_place=("result", "negative_slope"),
        kink=Kink(_LEAKY_RELU, example=(0.0, 0.01)),
    ),
    Form("abs", "absolute", saved=("self",), kink=Kink(_ABS, pass_on("torch.abs"), nodes=("AbsBackward",))),
    Form(
        "elu",
        defaults=_ALPHA,
        owners=_IN_NN,
        with_inplace=(functional,),
        kink=_exponential("elu", lambda alpha: (alpha, 1.0, 1.0), functional.elu, "alpha", example=(0.0, 1.0)),
    ),
    Form(
        "celu",
        defaults=_ALPHA,
        owners=_NOT_OF_TENSORS,
        with_inplace=(functional,),
        kink=_exponential(
            "celu",
            lambda alpha: (alpha, 1.0, 1.0 / alpha),
            torch.celu,
            "alpha",
            tensorflow=2.0,
            note="2",
            example=(0.0, 1.0),
        ),
    ),
    Form(
        "selu",
        owners=_NOT_OF_TENSORS,
        with_inplace=(functional,),
        saved=("self",),
        kink=_exponential(
            "selu",
            lambda: (*_SELU, 1.0),
            torch.selu,
            tensorflow=_SELU[1],
            note="that above",
            nodes=("EluBackward",),
            pick=_pick_selu,
        ),
    ),
]
