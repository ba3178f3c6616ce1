"""The losses with a margin. Each is written out as torch has it in aten/src/ATen/native/Loss.cpp and in torch.nn.functional.

They add in the same order as torch, because half precision rounds each sum.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from ..records import EDGE, MISSING, Defaults, Form, Run, Write, in_float32

_EPSILON = torch.tensor(1e-12, dtype=torch.float32).item()  # a float of C++
_NONE, _MEAN, _SUM = 0, 1, 2
_REDUCTIONS = {"none": _NONE, "mean": _MEAN, "sum": _SUM}
# The arguments that a function of torch.nn.functional takes last.
_LEGACY: Defaults = {"size_average": None, "reduce": None, "reduction": "mean"}


def _parse_reduction(*last: object) -> int | None:
    """Torch's number of the reduction. None if torch refuses it, or if one of the deprecated arguments before it is given."""
    *deprecated, reduction = last
    if isinstance(reduction, str) and deprecated.count(None) == len(deprecated):
        return _REDUCTIONS.get(reduction)
    return None


def _parse_number(number: object) -> float | None:
    """An argument that torch reads as a float; None if torch may refuse it."""
    return float(number) if isinstance(number, (int, float)) else None


# --- each loss, before it is reduced; None where torch may refuse its arguments ---------------------------------------


def _rank(run: Run, input1: Tensor, input2: Tensor, target: Tensor, margin: object) -> Tensor | None:
    number = _parse_number(margin)
    if number is None or not input1.dim() == input2.dim() == target.dim():
        return None
    return run(Tensor.clamp_min, -target * (input1 - input2) + number, 0)


def _hinge(run: Run, input: Tensor, target: Tensor, margin: object) -> Tensor | None:
    number = _parse_number(margin)
    if number is None:
        return None
    zeros = torch.zeros_like(input)
    below = run(Tensor.clamp_min, torch.full_like(input, number) - input, 0)
    return torch.where(target != 1, below, zeros) + torch.where(target != -1, input, zeros)


def _compare_angles(run: Run, input1: Tensor, input2: Tensor, target: Tensor, margin: object) -> Tensor | None:
    number, dim = _parse_number(margin), target.dim()
    if number is None or dim > 1 or input1.dim() != dim + 1:
        return None
    product = (input1 * input2).sum(dim)  # before the squares, as in torch: gradients are summed in this order
    squares = (input1 * input1).sum(dim) + _EPSILON, (input2 * input2).sum(dim) + _EPSILON
    cosine = product / run(torch.sqrt, squares[0] * squares[1])
    zeros = torch.zeros_like(cosine)
    apart = run(Tensor.clamp_min, cosine - number, 0)
    return torch.where(target == 1, torch.ones_like(cosine) - cosine, zeros) + torch.where(target == -1, apart, zeros)


def _compare_distances(
    run: Run, anchor: Tensor, positive: Tensor, negative: Tensor, margin: object, p: object, eps: object, swap: object
) -> Tensor | None:
    number, power, epsilon = _parse_number(margin), _parse_number(p), _parse_number(eps)
    if power is None or epsilon is None:
        return None

    def distance(x: Tensor, other: Tensor) -> Tensor:
        return run(torch.pairwise_distance, x, other, power, epsilon)

    return _compare_by(distance, run, anchor, positive, negative, number, swap)


def _compare_with_distance(
    run: Run, anchor: Tensor, positive: Tensor, negative: Tensor, function: object, margin: object, swap: object
) -> Tensor | None:
    """The distance may be a function of the program, whose calls of torch then get the rules, too."""

    def distance(x: Tensor, other: Tensor) -> Tensor:
        return run(torch.pairwise_distance if function is None else function, x, other)

    return _compare_by(distance, run, anchor, positive, negative, _parse_number(margin), swap)


def _compare_by(
    distance: Callable[[Tensor, Tensor], Tensor],
    run: Run,
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float | None,
    swap: object,
) -> Tensor | None:
    if margin is None or margin <= 0 or not anchor.dim() == positive.dim() == negative.dim():
        return None
    to_positive, to_negative = distance(anchor, positive), distance(anchor, negative)
    if swap:
        to_negative = run(torch.minimum, to_negative, distance(positive, negative))
    return run(torch.clamp_min, margin + to_positive - to_negative, 0)


# --- the rows ---------------------------------------------------------------------------------------------------------


def _write_reduced(losses_of: Callable[..., Tensor | None], parse: Callable[..., int | None], count: int) -> Write:
    """The function that writes out a whole call. parse: reads torch's number of the reduction from the last `count` arguments."""

    def write(run: Run, *values: object) -> Tensor | None:
        reduction = parse(*values[-count:])
        losses = None if reduction is None else losses_of(run, *values[:-count])
        if losses is None:
            return None
        if reduction == _MEAN:
            return losses.mean()
        return losses.sum() if reduction == _SUM else losses

    return write


def _loss_forms(name: str, defaults: Defaults, losses_of: Callable[..., Tensor | None]) -> list[Form]:
    """A row for each owner of a loss: they differ in their last arguments.

    defaults: the arguments before these, with their defaults. The default of `reduction` is "none" in torch and "mean" in torch.ops.aten,
    although both are made from one text: torch's parser reads the name of the default as 0.
    """
    of_torch = in_float32(_write_reduced(losses_of, lambda code: code if isinstance(code, int) else None, 1))
    by_owner: tuple[tuple[object, Write, Defaults], ...] = (
        (functional, in_float32(_write_reduced(losses_of, _parse_reduction, len(_LEGACY))), _LEGACY),
        (torch, of_torch, {"reduction": _NONE}),
        (torch.ops.aten, of_torch, {"reduction": _MEAN}),
    )
    return [_form(name, owner, {**defaults, **last}, write) for owner, write, last in by_owner]


def _form(name: str, owner: object, defaults: Defaults, write: Write) -> Form:
    return Form(name, switches=("clamp", EDGE), defaults=defaults, owners=(owner,), hides=("clamp_min",), write=write)


_THREE: Defaults = {"anchor": MISSING, "positive": MISSING, "negative": MISSING}
_PAIR: Defaults = {"input1": MISSING, "input2": MISSING, "target": MISSING, "margin": 0.0}
_HINGE: Defaults = {"input": MISSING, "target": MISSING, "margin": 1.0}
FORMS = [
    *_loss_forms("margin_ranking_loss", _PAIR, _rank),
    *_loss_forms("cosine_embedding_loss", _PAIR, _compare_angles),
    *_loss_forms("hinge_embedding_loss", _HINGE, _hinge),
    *_loss_forms(
        "triplet_margin_loss",
        {**_THREE, "margin": 1.0, "p": 2.0, "eps": 1e-6, "swap": False},
        _compare_distances,
    ),
    _form(
        "triplet_margin_with_distance_loss",
        functional,
        {**_THREE, "distance_function": None, "margin": 1.0, "swap": False, "reduction": "mean"},
        _write_reduced(_compare_with_distance, _parse_reduction, 1),
    ),
]
