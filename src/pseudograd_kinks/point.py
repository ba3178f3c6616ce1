"""A point at which a function has no slope, a tie or a singular value, and how each framework writes the function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pseudograd.errors import unknown_name
from pseudograd.record import Record

KINDS = {
    "kink": "the slope jumps",
    "tie": "several entries are equal, and the gradient is given to one of them or shared",
    "jump": "the value jumps",
    "singular": "the slope is infinite or has no limit",
    "guard": "infinity or NaN is near, and something may keep it away",
}
FRAMEWORKS = ("torch", "jax", "tensorflow")
VARIABLES = "xyzw"  # what the expressions call the inputs


class Point(Record, kw_only=True):
    """A function and its inputs: pure data, the same for every framework.

    id: the op with its arguments, "@", and the place. op: the name to look it up by. kind: one of KINDS.
    expressions: the function by framework, of the inputs x, y, z, w. inputs: numbers in nested lists. differentiated: the places of
        those that get a gradient. weights: of the entries of the result, before they are summed; empty for ones.
    elementwise: may the inputs be repeated, so that a vectorised kernel sees them? They are flat lists then.
    """

    id: str
    family: str
    op: str
    kind: str
    expressions: dict[str, str]
    inputs: tuple[Any, ...]
    differentiated: tuple[int, ...]
    weights: tuple[float, ...] = ()
    elementwise: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise unknown_name("kinks", f"the kind of {self.id}", KINDS, self.kind)

    def function(self, framework: str, names: dict[str, Any]) -> Callable[..., Any]:
        """The expression of `framework` as a function; `names`: the modules that it uses."""
        arguments = ", ".join(VARIABLES[: len(self.inputs)])
        code = f"lambda {arguments}: {self.expressions[framework]}"
        names_of_all = {**names, "math": math, "inf": math.inf, "nan": math.nan}
        made: Callable[..., object] = eval(code, names_of_all)  # text of ours
        return made


Places = Mapping[str, Any]


def family(name: str, *, elementwise: bool = False) -> Callable[..., Iterator[Point]]:
    """What a file of points calls once for each function: of(name, kind, expression of torch, places, jax=, tf=, ...)."""

    def of(
        function: str,
        kind: str,
        torch: str,
        places: Places,
        *,
        jax: str = "",
        tf: str = "",
        wrt: Sequence[int] = (),
        weights: Sequence[float] = (),
        alone: bool = False,
        note: str = "",
    ) -> Iterator[Point]:
        """A point for each place: what stands behind "@", and its input, or a tuple of several. One with infinity or NaN is a guard.

        wrt: the inputs that are differentiated, where not all are. alone: not elementwise, in a family that is.
        """
        given = {"torch": torch, "jax": jax, "tensorflow": tf}
        for place, value in places.items():
            inputs = value if isinstance(value, tuple) else (value,)
            yield Point(
                id=f"{function}@{place}",
                family=name,
                op=function.partition("(")[0],
                kind=kind if _is_finite(inputs) else "guard",
                expressions={framework: expression for framework, expression in given.items() if expression},
                inputs=inputs,
                differentiated=tuple(wrt) or tuple(range(len(inputs))),
                weights=tuple(float(weight) for weight in weights),
                elementwise=elementwise and not alone,
                note=note,
            )

    return of


def _is_finite(value: Any) -> bool:
    return math.isfinite(value) if isinstance(value, float) else all(map(_is_finite, value))
