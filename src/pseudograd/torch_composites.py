"""Functions of torch that run an op of `torch_forms` inside, in C++, where no mode sees it: the one table of them.

`override` and `pin_edge` write such a call out in torch's own functions, so that the op inside goes their usual way; what is not in this
table they report as missed. Plain classes and loops: Dynamo reads this too.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .torch_forms import EDGE, MISSING, Form, Spelling

Write = Callable[..., Any]


class Composite(Spelling):
    """One way to call such a function. `form.switches`: those of the ops inside.

    write(call, *values): what torch computes, with `call(function, *arguments)` for the ops inside; or None, where torch is left alone.
    """

    __slots__ = ("write",)

    def __init__(self, form: Form, name: str, write: Write) -> None:
        super().__init__(form, name, form.arrange, in_place=False, takes_inplace=False)
        self.write = write


COMPOSITES: dict[Any, Composite] = {}  # by the function that torch hands to a TorchFunctionMode


def add(
    *functions: Any,
    switches: tuple[str, ...],
    takes: tuple[str, ...],
    defaults: tuple[Any, ...],
    write: Write,
) -> None:
    """Put ways to call a function into the table."""
    form = Form(switches=switches, takes=takes, defaults=defaults)
    for function in functions:
        COMPOSITES[function] = Composite(form, function.__name__, write)


def reaches_inside(function: Any, form: Form) -> bool:
    """Is this a function that is written out, with an op like the form's inside?"""
    composite = COMPOSITES.get(function)
    return composite is not None and any(switch in form.switches for switch in composite.form.switches)


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


# --- the table --------------------------------------------------------------------------------------------------------

_PAIR = ("input1", "input2", "target", "margin")
add(
    functional.margin_ranking_loss,
    switches=("clamp", EDGE),
    takes=(*_PAIR, "size_average", "reduce", "reduction"),
    defaults=(MISSING, MISSING, MISSING, 0, None, None, "mean"),
    write=_margin_ranking_of_nn,
)
# Python's binding and aten differ in what they do without `reduction`: torch's parser reads the name of its default as 0.
for _functions, _reduction in (
    ((torch.margin_ranking_loss,), _NONE),
    ((torch.ops.aten.margin_ranking_loss, torch.ops.aten.margin_ranking_loss.default), _MEAN),
):
    add(
        *_functions,
        switches=("clamp", EDGE),
        takes=(*_PAIR, "reduction"),
        defaults=(MISSING, MISSING, MISSING, 0.0, _reduction),
        write=_margin_ranking,
    )
