"""How gradients are kept: six digits, infinity and NaN as text, and when two of them are the same."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

Row = list[float]
_TEXTS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2}
_EXACT = 1e-4  # of float32 and float64: what processors and libraries differ by, where they do the same


class Outcome(NamedTuple):
    """What a framework does at a point: a gradient for each differentiated input, None where it gets none; or the error that it raises.

    is_absent: the framework has no such function in this version.
    """

    gradient: tuple[tuple[float, ...] | None, ...] | None = None
    error: str = ""
    is_absent: bool = False

    def same_as(self, other: Outcome, dtype: str = "float32") -> bool:
        """Up to rounding. An error is the same as one of its type: its text may be worded anew."""
        if self.gradient is None or other.gradient is None:
            return self.gradient is other.gradient and self.error.split(":")[0] == other.error.split(":")[0]
        tolerance = _TOLERANCE.get(dtype, _EXACT)
        return len(self.gradient) == len(other.gradient) and all(
            _same_rows(mine, others, tolerance) for mine, others in zip(self.gradient, other.gradient, strict=True)
        )

    def has_same_effect_as(self, other: Outcome) -> bool:
        """No gradient has the effect of a gradient of zero."""
        return self._filled(other).same_as(other._filled(self))

    def _filled(self, like: Outcome) -> Outcome:
        if self.gradient is None or like.gradient is None or len(self.gradient) != len(like.gradient):
            return self
        pairs = zip(self.gradient, like.gradient, strict=True)
        return Outcome(tuple((0.0,) * len(b or (0.0,)) if a is None else a for a, b in pairs))

    def as_json(self) -> dict[str, Any]:
        if self.is_absent:
            return {"absent": True}
        if self.gradient is None:
            return {"error": self.error}
        return {"gradient": [None if row is None else [as_text(value) for value in row] for row in self.gradient]}

    @staticmethod
    def of_json(kept: dict[str, Any]) -> Outcome:
        if "gradient" not in kept:
            return Outcome(error=kept.get("error", ""), is_absent=kept.get("absent", False))
        return Outcome(
            tuple(None if row is None else tuple(of_text(value) for value in row) for row in kept["gradient"])
        )


def _same_rows(mine: tuple[float, ...] | None, others: tuple[float, ...] | None, tolerance: float) -> bool:
    if mine is None or others is None:
        return mine is others
    return len(mine) == len(others) and all(_same(a, b, tolerance) for a, b in zip(mine, others, strict=True))


def _same(a: float, b: float, tolerance: float) -> bool:
    if math.isfinite(a) and math.isfinite(b):
        return abs(a - b) <= tolerance * max(abs(a), abs(b), 0.1)
    return a == b or (math.isnan(a) and math.isnan(b))


def as_text(value: float) -> float | str:
    """A number of six digits; what JSON has no number for as text. Zero has no sign."""
    return float(f"{value:.6g}") + 0.0 if math.isfinite(value) else str(value)


def of_text(kept: float | str) -> float:
    return _TEXTS[kept] if isinstance(kept, str) else float(kept)


def nested(kept: Any) -> Any:
    """The inputs of a point, from JSON or, by `kept_nested`, for it."""
    return [nested(one) for one in kept] if isinstance(kept, list) else of_text(kept)


def kept_nested(value: Any) -> Any:
    """Not rounded: an input is what it is. Zero keeps its sign."""
    if isinstance(value, (list, tuple)):
        return [kept_nested(one) for one in value]
    return float(value) if math.isfinite(value) else str(float(value))
