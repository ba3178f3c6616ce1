"""The measurements of an audit, as data and as text."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import torch
from torch import Tensor

_MOST_ROWS = 24  # the table of regions has no more rows


class Side(NamedTuple):
    """A region for one sign of grad: its kind, and the smallest and the largest slope grad_x / grad in it."""

    kind: str
    least: float
    most: float

    def write(self, slope: tuple[float, float]) -> str:
        """The kind, and the slopes if the kind does not determine them. slope: the derivative."""
        if self.kind in ("exact", "flat", "cut"):
            return self.kind
        is_opposite = self.kind == "biased" and max(slope) * self.least < 0 and min(slope) * self.most < 0
        return f"{self.kind} {_span(self.least, self.most)}{', wrong sign' if is_opposite else ''}"


class Region(NamedTuple):
    """A part of the range with one kind for each sign of grad; a single x, with low == high, at a kink or a jump.

    has_low, has_high: does the end belong to the region?
    slope: the smallest and the largest derivative; at a kink or a jump, the derivative on the left and on the right.
    is_low_exact, is_high_exact: is the end known exactly? If not, it lies between two of the points.
    """

    low: float
    high: float
    has_low: bool
    has_high: bool
    slope: tuple[float, float]
    positive: Side
    negative: Side
    is_low_exact: bool = True
    is_high_exact: bool = True

    @property
    def is_break(self) -> bool:
        return self.positive.kind in ("kink", "jump")

    def cells(self) -> tuple[str, str, str, str]:
        low, high = _format_end(self.low, self.is_low_exact), _format_end(self.high, self.is_high_exact)
        left, right = "[" if self.has_low else "(", "]" if self.has_high else ")"
        x = low if self.low == self.high else f"{left}{low}, {high}{right}"
        slope = " | ".join(map(_number, self.slope)) if self.is_break else _span(*self.slope)
        return x, slope, self.positive.write(self.slope), self.negative.write(self.slope)


class Answer(NamedTuple):
    """An answer in one word, the share of the points that contradict it (None if none were counted), and the evidence."""

    word: str
    share: float | None = None
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.word}: {self.detail}" if self.detail else self.word


class NotFinite(NamedTuple):
    """The value and the gradient where x or grad is not a finite number."""

    x: float
    grad: float
    y: float
    grad_x: float


class Curves(NamedTuple):
    """The curves that `plot` draws: tensors of one number for each point."""

    x: Tensor
    y: Tensor
    slope: Tensor
    positive: Tensor
    negative: Tensor


@dataclass(frozen=True)
class AuditRecord:
    """The fields of an `Audit`, and its text.

    rule: the call of pseudograd that does the same, as source text, or None.
    rule_note: how the function differs from this call in details; if rule is None, the call that comes nearest, and how it differs.
    shares: the share of the range that each kind has, for "grad > 0" and for "grad < 0".
    writes: the tensors of its caller or of an earlier call that the function changes, each with an example.
    """

    name: str
    low: float
    high: float
    points: int
    regions: tuple[Region, ...]
    shares: dict[str, dict[str, float]]
    linear: Answer
    double_backward: Answer
    forward_mode: Answer
    vmap: Answer
    curves: Curves = field(repr=False)
    rule: str | None
    rule_note: str
    element_wise: Answer
    float32: Answer
    float16: Answer
    bfloat16: Answer
    infinite_grad: Answer
    nan_grad: Answer
    not_finite: tuple[NotFinite, ...]
    writes: tuple[str, ...]

    @property
    def kinks(self) -> tuple[Region, ...]:
        """The regions that are a kink or a jump."""
        return tuple(region for region in self.regions if region.is_break)

    @property
    def verdict(self) -> str:
        same = f"the same as {self.rule}" if self.rule else "no rule of pseudograd does the same"
        return f"except for that, {same}" if self.rule and self.writes else same

    def to_json(self) -> dict[str, object]:
        """All fields except the curves, as plain lists, dictionaries and numbers. A number that is not finite becomes a string."""
        plain: dict[str, object] = {"kind": "pseudograd audit", "torch": torch.__version__}
        return plain | {part.name: _plain(getattr(self, part.name)) for part in fields(self) if part.name != "curves"}

    def __str__(self) -> str:
        head = f"audit: {self.name} on {_number(self.low)} to {_number(self.high)}, torch {torch.__version__}"
        answers = [f"{name:<17} {answer}" for name, answer in self._answers()]
        return "\n  ".join([head, *self._conclusions(), "", *self._table(), "", *answers]).replace("\n  \n", "\n\n")

    def _conclusions(self) -> list[str]:
        """The rule, and the share of the range that each kind has."""
        lines = [*(f"writes into {text}" for text in self.writes), self.verdict]
        if self.rule_note:
            lines.append(f"but {self.rule_note}" if self.rule else self.rule_note)
        for sign, shares in self.shares.items():
            kinds = sorted(shares.items(), key=lambda item: -item[1])
            percents = (f"{share:.0%}" if share >= 0.005 else "< 1%" for _, share in kinds)
            lines.append(f"{sign}: {', '.join(f'{kind} {p}' for (kind, _), p in zip(kinds, percents, strict=True))}")
        return lines

    def _table(self) -> list[str]:
        """A row for each region; both slopes are grad_x / grad."""
        head = ("x", "derivative", "grad > 0", "grad < 0")
        rows = [head, *(region.cells() for region in self.regions[:_MOST_ROWS])]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["   ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        more = len(self.regions) - _MOST_ROWS
        return [*lines, f"and {more} more"] if more > 0 else lines

    def _answers(self) -> list[tuple[str, object]]:
        answers: list[tuple[str, object]] = [
            ("linear in grad", self.linear),
            ("element-wise", self.element_wise),
            ("double backward", self.double_backward),
            ("forward mode", self.forward_mode),
            ("vmap", self.vmap),
            ("float32", self.float32),
            ("float16", self.float16),
            ("bfloat16", self.bfloat16),
            ("grad = inf, -inf", self.infinite_grad),
            ("grad = nan", self.nan_grad),
        ]
        for positive, negative in zip(self.not_finite[::2], self.not_finite[1::2], strict=True):
            if not math.isfinite(positive.x):
                slopes = f"slope {_number(positive.grad_x)} for grad > 0, {_number(-negative.grad_x)} for grad < 0"
                answers.append((f"x = {positive.x:g}", f"y = {_number(positive.y)}, {slopes}"))
        return answers


def _span(least: float, most: float) -> str:
    a, b = _number(least), _number(most)
    return a if a == b else f"{a} to {b}"


def _number(value: float) -> str:
    return "0" if abs(value) < 1e-9 else f"{value:.4g}"


def _format_end(x: float, is_exact: bool) -> str:
    """All digits if x is exact: a statement about this x may be untrue for a rounded x."""
    return repr(x + 0.0).removesuffix(".0") if is_exact else f"~{x:.4g}"


def _plain(value: object) -> object:
    if isinstance(value, (Side, Region, Answer, NotFinite)):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
