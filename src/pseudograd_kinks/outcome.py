"""The outcome of a framework at a point, a gradient or an error: when two of them are the same, and how JSON holds them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

_TEXTS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2}
_EXACT = 1e-4  # for float32 and float64, because processors and libraries differ by less
Row = tuple[float, ...]
Json = dict[str, Any]  # an object of table.json


class Outcome(NamedTuple):
    """A gradient for each differentiated input, None where the input gets none; or the error that the framework raises.

    is_absent: the framework has no such function in this version.
    """

    gradient: tuple[Row | None, ...] | None = None
    error: str = ""
    is_absent: bool = False

    def same_as(self, other: Outcome, dtype: str = "float32") -> bool:
        """Are the gradients equal up to rounding? Errors are the same if they have the same type, because torch changes their texts."""
        if self.gradient is None or other.gradient is None:
            return self.gradient is other.gradient and self.error.split(":")[0] == other.error.split(":")[0]
        tolerance = _TOLERANCE.get(dtype, _EXACT)
        return len(self.gradient) == len(other.gradient) and all(
            _are_same_rows(mine, theirs, tolerance) for mine, theirs in zip(self.gradient, other.gradient, strict=True)
        )

    def has_same_effect_as(self, other: Outcome) -> bool:
        """Are the gradients equal if "no gradient" counts as zeros?"""
        return self._fill(other).same_as(other._fill(self))

    def _fill(self, like: Outcome) -> Outcome:
        if self.gradient is None or like.gradient is None or len(self.gradient) != len(like.gradient):
            return self
        pairs = zip(self.gradient, like.gradient, strict=True)
        return Outcome(tuple((0.0,) * len(b or (0.0,)) if a is None else a for a, b in pairs))

    def as_json(self) -> Json:
        if self.is_absent:
            return {"absent": True}
        if self.gradient is None:
            return {"error": self.error}
        return {"gradient": [None if row is None else [_rounded_text(value) for value in row] for row in self.gradient]}

    @staticmethod
    def from_json(stored: Json) -> Outcome:
        if "gradient" not in stored:
            return Outcome(error=stored.get("error", ""), is_absent=stored.get("absent", False))
        return Outcome(tuple(None if row is None else tuple(map(parse_number, row)) for row in stored["gradient"]))


def _are_same_rows(mine: Row | None, theirs: Row | None, tolerance: float) -> bool:
    if mine is None or theirs is None or len(mine) != len(theirs):
        return mine is theirs
    return all(
        math.isclose(a, b, rel_tol=tolerance, abs_tol=0.1 * tolerance) or (math.isnan(a) and math.isnan(b))
        for a, b in zip(mine, theirs, strict=True)
    )


def _rounded_text(value: float) -> float | str:
    """A number of six digits, or a text for infinity and NaN, which JSON lacks. Zero loses its sign."""
    return float(f"{value:.6g}") + 0.0 if math.isfinite(value) else str(value)


def parse_number(stored: float | str) -> float:
    return _TEXTS[stored] if isinstance(stored, str) else float(stored)
