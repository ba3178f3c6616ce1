"""The losses with a margin. Each is written out as torch has it in aten/src/ATen/native/Loss.cpp and in torch.nn.functional.

Every sum of a number and a tensor is one that torch rounds in the same place: in half precision the order shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..forms import EDGE, MISSING, Form, Write
from .arguments import LEGACY, MEAN, NONE, as_float, reduced, reduction_of

_EPSILON = torch.tensor(1e-12, dtype=torch.float32).item()  # a constant of C++, of float


def _margin_ranking(
    call: Write, input1: Any, input2: object, target: Any, margin: object, reduction: object
) -> Tensor | None:
    number = as_float(margin)
    if number is None or not isinstance(reduction, int):
        return None
    return reduced(call(Tensor.clamp_min, -target * (input1 - input2) + number, 0), reduction)


def _can_rank(input1: Any, input2: Any, target: Any, margin: object) -> bool:
    return input1.dim() == input2.dim() == target.dim() and as_float(margin) is not None


def _hinge(call: Write, input: Any, target: Any, margin: object, reduction: object) -> Tensor | None:
    number = as_float(margin)
    if number is None or not isinstance(reduction, int):
        return None
    zeros = torch.zeros_like(input)
    below = call(Tensor.clamp_min, torch.full_like(input, number) - input, 0)
    return reduced(torch.where(target != 1, below, zeros) + torch.where(target != -1, input, zeros), reduction)


def _can_hinge(input: object, target: object, margin: object) -> bool:
    return as_float(margin) is not None


def _cosine(call: Write, input1: Any, input2: Any, target: Any, margin: object, reduction: object) -> Tensor | None:
    number, dim = as_float(margin), target.dim()
    if number is None or not isinstance(reduction, int) or dim > 1 or input1.dim() != dim + 1:
        return None
    product = (input1 * input2).sum(dim)  # in torch's order, which is that in which gradients are added up
    squares = (input1 * input1).sum(dim) + _EPSILON, (input2 * input2).sum(dim) + _EPSILON
    cosine = product / call(torch.sqrt, squares[0] * squares[1])
    zeros = torch.zeros_like(cosine)
    apart = call(Tensor.clamp_min, cosine - number, 0)
    return reduced(
        torch.where(target == 1, torch.ones_like(cosine) - cosine, zeros) + torch.where(target == -1, apart, zeros),
        reduction,
    )


def _can_compare(input1: Any, input2: object, target: Any, margin: object) -> bool:
    return as_float(margin) is not None and target.dim() <= 1 and input1.dim() == target.dim() + 1


def _triplet(
    call: Write,
    anchor: object,
    positive: object,
    negative: object,
    margin: object,
    p: object,
    eps: object,
    swap: object,
    reduction: object,
) -> Tensor | None:
    number, power, epsilon = as_float(margin), as_float(p), as_float(eps)
    if number is None or power is None or epsilon is None or not isinstance(reduction, int):
        return None
    if not _have_as_many_dimensions(anchor, positive, negative):
        return None
    near = call(torch.pairwise_distance, anchor, positive, power, epsilon)
    far = call(torch.pairwise_distance, anchor, negative, power, epsilon)
    if swap:
        far = call(torch.min, far, call(torch.pairwise_distance, positive, negative, power, epsilon))
    return reduced(call(torch.clamp_min, number + near - far, 0), reduction)


def _can_triple(
    anchor: Any, positive: Any, negative: Any, margin: object, p: object, eps: object, swap: object
) -> bool:
    number = as_float(margin)
    are_numbers = number is not None and number > 0 and as_float(p) is not None and as_float(eps) is not None
    return are_numbers and _have_as_many_dimensions(anchor, positive, negative)


def _triplet_with_distance(
    call: Write,
    anchor: object,
    positive: object,
    negative: object,
    distance_function: object,
    margin: object,
    swap: object,
    reduction: object,
) -> Tensor | None:
    """The distance is a function of the program, whose calls are seen as any others are. (Dynamo looks into torch's Python itself.)"""
    if distance_function is None:
        distance_function = torch.pairwise_distance
    kind = reduction_of(None, None, reduction)
    if kind is None or not isinstance(margin, (int, float)) or not margin > 0:
        return None
    if not _have_as_many_dimensions(anchor, positive, negative):
        return None
    near, far = call(distance_function, anchor, positive), call(distance_function, anchor, negative)
    if swap:
        far = call(torch.minimum, far, call(distance_function, positive, negative))
    return reduced(call(torch.clamp_min, margin + near - far, 0), kind)


def _have_as_many_dimensions(anchor: Any, positive: Any, negative: Any) -> bool:
    return bool(anchor.dim() == positive.dim() == negative.dim())


def _of_nn(write: Write, can: Callable[..., bool]) -> Write:
    """For torch.nn.functional, whose calls end otherwise. can: is the call ours? Asked before `reduction_of` warns: torch would again."""

    def of_nn(call: Write, *given: object) -> Tensor | None:
        asked, legacy = given[: -len(LEGACY)], given[-len(LEGACY) :]
        return write(call, *asked, reduction_of(*legacy)) if can(*asked) else None

    return of_nn


# --- the rows ---------------------------------------------------------------------------------------------------------


def _rows(
    name: str, takes: dict[str, object], of_aten: Write, can: Callable[..., bool], module: type[nn.Module]
) -> list[Form]:
    """Of one loss, for each owner: they differ in what they take last.

    takes: the arguments before it, with their defaults. Python's binding and aten differ in what they do without `reduction`: torch's
    parser reads the name of its default as 0.
    """
    lasts = (
        (functional, _of_nn(of_aten, can), LEGACY),
        (torch, of_aten, {"reduction": NONE}),
        (torch.ops.aten, of_aten, {"reduction": MEAN}),
    )
    return [
        Form(
            name,
            switches=("clamp", EDGE),
            takes=(*takes, *last),
            defaults=(*takes.values(), *last.values()),
            owners=(owner,),
            hides=("clamp_min",),
            composite_modules=(module,) if owner is functional else (),
            write=write,
        )
        for owner, write, last in lasts
    ]


_THREE = {"anchor": MISSING, "positive": MISSING, "negative": MISSING}
_PAIR = {"input1": MISSING, "input2": MISSING, "target": MISSING, "margin": 0.0}
FORMS = [
    *_rows("margin_ranking_loss", _PAIR, _margin_ranking, _can_rank, nn.MarginRankingLoss),
    *_rows("cosine_embedding_loss", _PAIR, _cosine, _can_compare, nn.CosineEmbeddingLoss),
    *_rows(
        "hinge_embedding_loss",
        {"input": MISSING, "target": MISSING, "margin": 1.0},
        _hinge,
        _can_hinge,
        nn.HingeEmbeddingLoss,
    ),
    *_rows(
        "triplet_margin_loss",
        {**_THREE, "margin": 1.0, "p": 2.0, "eps": 1e-6, "swap": False},
        _triplet,
        _can_triple,
        nn.TripletMarginLoss,
    ),
    Form(
        "triplet_margin_with_distance_loss",
        switches=("clamp", EDGE),
        takes=(*_THREE, "distance_function", "margin", "swap", "reduction"),
        defaults=(*_THREE.values(), None, 1.0, False, "mean"),
        owners=(functional,),
        hides=("clamp_min",),
        composite_modules=(nn.TripletMarginWithDistanceLoss,),
        write=_triplet_with_distance,
    ),
]
