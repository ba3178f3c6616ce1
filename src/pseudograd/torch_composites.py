"""The rows of `torch_forms` for functions of torch that run another of its rows inside, in C++, where no mode sees it.

`override` and `pin_edge` write such a call out in torch's own functions, so that the op inside goes their usual way; what has no row they
report as missed. Plain classes and loops: Dynamo reads this too.
"""

from __future__ import annotations

import numbers
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .torch_forms import EDGE, MISSING, SPELLINGS, Form, Write, add


def reaches_inside(function: Any, form: Form) -> bool:
    """Is this a function that is written out, with an op like the form's inside?"""
    spelling = SPELLINGS.get(function)
    return spelling is not None and spelling.form.write is not None and spelling.form.shares_a_switch_with(form)


# --- how they are written out -----------------------------------------------------------------------------------------

_NONE, _MEAN, _SUM = 0, 1, 2
_REDUCTIONS = {"none": _NONE, "mean": _MEAN, "sum": _SUM}


def _reduced(unreduced: Tensor, reduction: int) -> Tensor:
    if reduction == _MEAN:
        return unreduced.mean()
    return unreduced.sum() if reduction == _SUM else unreduced


def _margin_ranking(call: Write, input1: Any, input2: Any, target: Any, margin: Any, reduction: Any) -> Tensor | None:
    number = _as_float(margin)
    if number is None or not isinstance(reduction, int):
        return None
    return _reduced(call(Tensor.clamp_min, -target * (input1 - input2) + number, 0), reduction)


def _margin_ranking_of_nn(
    call: Write,
    input1: Any,
    input2: Any,
    target: Any,
    margin: Any,
    size_average: Any,
    reduce: Any,
    reduction: Any,
) -> Tensor | None:
    if input1.dim() != input2.dim() or input1.dim() != target.dim() or _as_float(margin) is None:
        return None
    if size_average is not None or reduce is not None:
        reduction = _legacy(size_average, reduce)
    return _margin_ranking(call, input1, input2, target, margin, _REDUCTIONS.get(reduction))


def _as_float(number: Any) -> float | None:
    """As torch reads an argument that is a float; None for what it may refuse."""
    if isinstance(number, (int, float)):
        return float(number)
    if torch.compiler.is_compiling():
        return None
    if isinstance(number, Tensor):
        is_one = number.dim() == 0 and not number.is_complex() and not number.requires_grad
        return float(number) if is_one else None
    return float(number) if isinstance(number, numbers.Real) else None


def _legacy(size_average: Any, reduce: Any) -> str:
    """The reduction that these two deprecated arguments stand for, with torch's warning."""
    averages = size_average is None or size_average
    found = ("mean" if averages else "sum") if reduce is None or reduce else "none"
    text = f"size_average and reduce args will be deprecated, please use reduction='{found}' instead."
    warnings.warn(text, stacklevel=2)
    return found


# --- the rows ---------------------------------------------------------------------------------------------------------

_PAIR = ("input1", "input2", "target", "margin")


def _margin_ranking_row(owner: Any, write: Write, others: dict[str, Any], margin: float) -> Form:
    """Of one owner: they differ in what they take behind the margin. others: those arguments, with their defaults."""
    return Form(
        "margin_ranking_loss",
        switches=("clamp", EDGE),
        takes=(*_PAIR, *others),
        defaults=(MISSING, MISSING, MISSING, margin, *others.values()),
        owners=(owner,),
        write=write,
    )


for _form in (
    _margin_ranking_row(
        functional, _margin_ranking_of_nn, {"size_average": None, "reduce": None, "reduction": "mean"}, 0
    ),
    # Python's binding and aten differ in what they do without `reduction`: torch's parser reads the name of its default as 0.
    _margin_ranking_row(torch, _margin_ranking, {"reduction": _NONE}, 0.0),
    _margin_ranking_row(torch.ops.aten, _margin_ranking, {"reduction": _MEAN}, 0.0),
):
    add(_form)
