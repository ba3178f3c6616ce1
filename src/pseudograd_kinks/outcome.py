"""What a framework gives at a point: a gradient or an error. Two outcomes can be compared, and stored as JSON."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

_TEXTS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2}
_DEFAULT_TOLERANCE = 1e-4  # of float32 and float64: processors and libraries differ by less
Numbers = tuple[float, ...]  # the gradient of one input
Json = dict[str, Any]  # an object in pseudograd_kinks/table.json


class Outcome(NamedTuple):
    """A gradient for each differentiated input, None for an input without a gradient; or the error that the framework raises.

    is_absent: the framework has no such function in this version.
    """

    gradient: tuple[Numbers | None, ...] | None = None
    error: str = ""
    is_absent: bool = False

    def same_as(self, other: Outcome, dtype: str = "float32") -> bool:
        """Are the gradients equal up to rounding? Errors are the same if they have the same type, because torch changes their texts."""
        if self.gradient is None or other.gradient is None:
            return self.gradient is other.gradient and self.error.split(":")[0] == other.error.split(":")[0]
        tolerance = _TOLERANCE.get(dtype, _DEFAULT_TOLERANCE)
        return len(self.gradient) == len(other.gradient) and all(
            _are_same_numbers(mine, theirs, tolerance)
            for mine, theirs in zip(self.gradient, other.gradient, strict=True)
        )

    def has_same_effect_as(self, other: Outcome) -> bool:
        """Are the gradients equal if "no gradient" counts as zeros?"""
        return self._fill_like(other).same_as(other._fill_like(self))

    def _fill_like(self, other: Outcome) -> Outcome:
        """This outcome with zeros in place of each None, as many as the other outcome has numbers there."""
        if self.gradient is None or other.gradient is None or len(self.gradient) != len(other.gradient):
            return self
        pairs = zip(self.gradient, other.gradient, strict=True)
        return Outcome(tuple((0.0,) * len(b or (0.0,)) if a is None else a for a, b in pairs))

    def as_json(self) -> Json:
        if self.is_absent:
            return {"absent": True}
        if self.gradient is None:
            return {"error": self.error}
        return {"gradient": [None if row is None else [_json_number(value) for value in row] for row in self.gradient]}

    @staticmethod
    def from_json(stored: Json) -> Outcome:
        if "gradient" not in stored:
            return Outcome(error=stored.get("error", ""), is_absent=stored.get("absent", False))
        return Outcome(tuple(None if row is None else tuple(map(parse_number, row)) for row in stored["gradient"]))


def _are_same_numbers(mine: Numbers | None, theirs: Numbers | None, tolerance: float) -> bool:
    if mine is None or theirs is None or len(mine) != len(theirs):
        return mine is theirs
    return all(
        math.isclose(a, b, rel_tol=tolerance, abs_tol=0.1 * tolerance) or (math.isnan(a) and math.isnan(b))
        for a, b in zip(mine, theirs, strict=True)
    )


def _json_number(value: float) -> float | str:
    """The value rounded to six digits, or a text for infinity and NaN, which JSON lacks. -0 becomes 0."""
    return float(f"{value:.6g}") + 0.0 if math.isfinite(value) else str(value)


def parse_number(stored: float | str) -> float:
    return _TEXTS[stored] if isinstance(stored, str) else float(stored)
