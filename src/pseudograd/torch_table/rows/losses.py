"""The losses with a margin. Each is written out as torch has it in aten/src/ATen/native/Loss.cpp and in torch.nn.functional.

Every sum of a number and a tensor is one that torch rounds in the same place: in half precision the order shows.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..records import EDGE, MISSING, Called, Form, Inside, Write

_EPSILON = torch.tensor(1e-12, dtype=torch.float32).item()  # a constant of C++, of float

_NONE, _MEAN, _SUM = 0, 1, 2
_REDUCTIONS = {"none": _NONE, "mean": _MEAN, "sum": _SUM}
# The arguments that a function of torch.nn.functional takes last.
_LEGACY: dict[str, object] = {"size_average": None, "reduce": None, "reduction": "mean"}


def _reduce(losses: Tensor, reduction: int) -> Tensor:
    if reduction == _MEAN:
        return losses.mean()
    return losses.sum() if reduction == _SUM else losses


def _parse_reduction(size_average: object, reduce: object, reduction: object) -> int | None:
    """Torch's number of the reduction of a call of torch.nn.functional, with torch's warning; None for a reduction that torch refuses."""
    if size_average is None and reduce is None:
        return _REDUCTIONS.get(reduction) if isinstance(reduction, str) else None
    averages = size_average is None or size_average
    name = ("mean" if averages else "sum") if reduce is None or reduce else "none"
    text = f"size_average and reduce args will be deprecated, please use reduction='{name}' instead."
    warnings.warn(text, stacklevel=2)
    return _REDUCTIONS[name]


def _parse_number(number: object) -> float | None:
    """As torch reads an argument that is a float; None for what it may refuse."""
    if isinstance(number, (int, float)):
        return float(number)
    if torch.compiler.is_compiling():
        return None
    if isinstance(number, Tensor):
        is_number = number.dim() == 0 and not number.is_complex() and not number.requires_grad
        return float(number) if is_number else None
    return float(number) if isinstance(number, numbers.Real) else None


# --- each loss, and whether torch takes its arguments -----------------------------------------------------------------


def _write_margin_ranking(
    call: Write, input1: Tensor, input2: Tensor, target: Tensor, margin: object, reduction: object
) -> Tensor | None:
    number = _parse_number(margin)
    if number is None or not isinstance(reduction, int):
        return None
    return _reduce(call(Tensor.clamp_min, -target * (input1 - input2) + number, 0), reduction)


def _can_rank(input1: Tensor, input2: Any, target: Tensor, margin: object) -> bool:
    return input1.dim() == input2.dim() == target.dim() and _parse_number(margin) is not None


def _write_hinge(call: Write, input: Tensor, target: Tensor, margin: object, reduction: object) -> Tensor | None:
    number = _parse_number(margin)
    if number is None or not isinstance(reduction, int):
        return None
    zeros = torch.zeros_like(input)
    below = call(Tensor.clamp_min, torch.full_like(input, number) - input, 0)
    return _reduce(torch.where(target != 1, below, zeros) + torch.where(target != -1, input, zeros), reduction)


def _can_hinge(input: object, target: object, margin: object) -> bool:
    return _parse_number(margin) is not None


def _write_cosine(
    call: Write, input1: Tensor, input2: Any, target: Tensor, margin: object, reduction: object
) -> Tensor | None:
    number, dim = _parse_number(margin), target.dim()
    if number is None or not isinstance(reduction, int) or dim > 1 or input1.dim() != dim + 1:
        return None
    product = (input1 * input2).sum(dim)  # in torch's order, which is that in which gradients are added up
    squares = (input1 * input1).sum(dim) + _EPSILON, (input2 * input2).sum(dim) + _EPSILON
    cosine = product / call(torch.sqrt, squares[0] * squares[1])
    zeros = torch.zeros_like(cosine)
    apart = call(Tensor.clamp_min, cosine - number, 0)
    return _reduce(
        torch.where(target == 1, torch.ones_like(cosine) - cosine, zeros) + torch.where(target == -1, apart, zeros),
        reduction,
    )


def _can_compare(input1: Tensor, input2: Tensor, target: Tensor, margin: object) -> bool:
    return _parse_number(margin) is not None and target.dim() <= 1 and input1.dim() == target.dim() + 1


def _write_triplet(
    call: Write,
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: object,
    p: object,
    eps: object,
    swap: object,
    reduction: object,
) -> Tensor | None:
    number, power, epsilon = _parse_number(margin), _parse_number(p), _parse_number(eps)
    if number is None or power is None or epsilon is None or not isinstance(reduction, int):
        return None
    if not _have_same_dimensions(anchor, positive, negative):
        return None
    near = call(torch.pairwise_distance, anchor, positive, power, epsilon)
    far = call(torch.pairwise_distance, anchor, negative, power, epsilon)
    if swap:
        far = call(torch.min, far, call(torch.pairwise_distance, positive, negative, power, epsilon))
    return _reduce(call(torch.clamp_min, number + near - far, 0), reduction)


def _can_triple(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: object, p: object, eps: object, swap: object
) -> bool:
    number = _parse_number(margin)
    are_numbers = number is not None and number > 0 and _parse_number(p) is not None and _parse_number(eps) is not None
    return are_numbers and _have_same_dimensions(anchor, positive, negative)


def _write_triplet_with_distance(
    call: Write,
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    distance_function: object,
    margin: object,
    swap: object,
    reduction: object,
) -> Tensor | None:
    """The distance is a function of the program, whose calls are seen as any others are. (Dynamo looks into torch's Python itself.)"""
    if distance_function is None:
        distance_function = torch.pairwise_distance
    kind = _parse_reduction(None, None, reduction)
    if kind is None or not isinstance(margin, (int, float)) or not margin > 0:
        return None
    if not _have_same_dimensions(anchor, positive, negative):
        return None
    near, far = call(distance_function, anchor, positive), call(distance_function, anchor, negative)
    if swap:
        far = call(torch.minimum, far, call(distance_function, positive, negative))
    return _reduce(call(torch.clamp_min, margin + near - far, 0), kind)


def _have_same_dimensions(anchor: Tensor, positive: Tensor, negative: Tensor) -> bool:
    return bool(anchor.dim() == positive.dim() == negative.dim())


def _accept_legacy_arguments(write: Write, can: Callable[..., bool]) -> Write:
    """For torch.nn.functional, whose calls end otherwise. can: is the call ours? It comes first: `_parse_reduction` warns, and torch would
    warn again.
    """

    def write_with_legacy(call: Write, *values: object) -> Tensor | None:
        arguments, legacy = values[: -len(_LEGACY)], values[-len(_LEGACY) :]
        return write(call, *arguments, _parse_reduction(*legacy)) if can(*arguments) else None

    return write_with_legacy


# --- the rows ---------------------------------------------------------------------------------------------------------


def _loss_forms(
    name: str, takes: dict[str, object], write: Write, can: Callable[..., bool], module: type[nn.Module]
) -> list[Form]:
    """A row for each owner of a loss: they differ in the arguments that they take last.

    takes: the arguments before it, with their defaults. Python's binding and aten differ in what they do without `reduction`: torch's
    parser reads the name of its default as 0.
    """
    by_owner = (
        (functional, _accept_legacy_arguments(write, can), _LEGACY, (module,)),
        (torch, write, {"reduction": _NONE}, ()),
        (torch.ops.aten, write, {"reduction": _MEAN}, ()),
    )
    return [
        Form(
            name,
            switches=("clamp", EDGE),
            takes={**takes, **last},
            called=Called(owners=(owner,)),
            inside=Inside(("clamp_min",), own_write, modules),
        )
        for owner, own_write, last, modules in by_owner
    ]


_THREE: dict[str, object] = {"anchor": MISSING, "positive": MISSING, "negative": MISSING}
_PAIR: dict[str, object] = {"input1": MISSING, "input2": MISSING, "target": MISSING, "margin": 0.0}
FORMS = [
    *_loss_forms("margin_ranking_loss", _PAIR, _write_margin_ranking, _can_rank, nn.MarginRankingLoss),
    *_loss_forms("cosine_embedding_loss", _PAIR, _write_cosine, _can_compare, nn.CosineEmbeddingLoss),
    *_loss_forms(
        "hinge_embedding_loss",
        {"input": MISSING, "target": MISSING, "margin": 1.0},
        _write_hinge,
        _can_hinge,
        nn.HingeEmbeddingLoss,
    ),
    *_loss_forms(
        "triplet_margin_loss",
        {**_THREE, "margin": 1.0, "p": 2.0, "eps": 1e-6, "swap": False},
        _write_triplet,
        _can_triple,
        nn.TripletMarginLoss,
    ),
    Form(
        "triplet_margin_with_distance_loss",
        switches=("clamp", EDGE),
        takes={**_THREE, "distance_function": None, "margin": 1.0, "swap": False, "reduction": "mean"},
        called=Called(owners=(functional,)),
        inside=Inside(("clamp_min",), _write_triplet_with_distance, (nn.TripletMarginWithDistanceLoss,)),
    ),
]
