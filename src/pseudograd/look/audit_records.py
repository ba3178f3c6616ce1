"""What an audit found, as data, which its text, its picture and `Audit` read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

KINDS = {
    "exact": "the gradient is the derivative",
    "flat": "the derivative is 0, and so is the gradient",
    "cut": "the derivative is not 0, the gradient is",
    "pseudo": "the derivative is 0, the gradient is not",
    "biased": "both are not 0, and they differ",
    "kink": "the derivative is one from the left and another from the right",
    "jump": "the value jumps",
    "undefined": "the value, the derivative or the gradient is not finite",
}


class Side(NamedTuple):
    """A region for one sign of grad: its kind, and the least and the largest slope grad_x / grad in it."""

    kind: str
    least: float
    most: float


class Region(NamedTuple):
    """A part of the range in which both signs of grad keep their kind; a single x, with low == high, at a kink or a jump.

    has_low, has_high: does the end belong to it? slope: the derivative, from least to most; at a kink or a jump from the left and from
    the right.
    """

    low: float
    high: float
    has_low: bool
    has_high: bool
    slope: tuple[float, float]
    positive: Side
    negative: Side


class Answer(NamedTuple):
    """A word, the share of the points where it is not so (None where nothing was counted), and the evidence."""

    word: str
    share: float | None = None
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.word}: {self.detail}" if self.detail else self.word


class NotFinite(NamedTuple):
    """What comes back where x or grad is not a finite number."""

    x: float
    grad: float
    y: float
    grad_x: float


class Curves(NamedTuple):
    """What `plot` draws: tensors of one number for each point."""

    x: Tensor
    y: Tensor
    slope: Tensor
    positive: Tensor
    negative: Tensor


@dataclass(frozen=True)
class Audited:
    """What was measured of a function: the fields of an `Audit`.

    rule: the call of pseudograd that does the same, as it is written, or None. rule_note: where it differs in what the name does not
    promise; or, without a name, the call that comes nearest, and what tells them apart.
    shares: of the range, for "grad > 0" and "grad < 0", the share of each kind.
    lines: along how many random lines it was looked at; 0 for an element-wise function.
    """

    name: str
    low: float
    high: float
    points: int
    lines: int
    regions: tuple[Region, ...]
    shares: dict[str, dict[str, float]]
    rule: str | None
    rule_note: str
    linear: Answer
    element_wise: Answer
    double_backward: Answer
    forward_mode: Answer
    vmap: Answer
    float16: Answer
    bfloat16: Answer
    infinite_grad: Answer
    nan_grad: Answer
    not_finite: tuple[NotFinite, ...]
    curves: Curves = field(repr=False)

    @property
    def kinks(self) -> tuple[Region, ...]:
        """The regions that are a kink or a jump."""
        return tuple(region for region in self.regions if region.positive.kind in ("kink", "jump"))

    def to_json(self) -> dict[str, Any]:
        """All of it but the curves, in plain lists, dictionaries and numbers; a number that is not finite as a string."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "curves"}
        plain: dict[str, object] = _plain({"kind": "pseudograd audit", "torch": torch.__version__, **found})
        return plain


def _plain(value: object) -> Any:
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value
