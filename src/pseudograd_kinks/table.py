"""The kink table: points at which a function has no slope, a tie or a singular value, and what each framework does there.

table.json has one line for each point. To add a point, add its line without "gradients"; scripts/collect_kinks.py measures them.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from pseudograd.errors import must, unknown_name
from pseudograd.record import Record

from .outcome import Json, Outcome, parse_number

FILE = Path(__file__).with_name("table.json")
KINDS = {
    "kink": "the slope jumps",
    "tie": "several entries are equal, and the gradient is given to one of them or shared",
    "jump": "the value jumps",
    "singular": "the slope is infinite or has no limit",
    "guard": "infinity or NaN is near, and something may keep it away",
}
FRAMEWORKS = ("torch", "jax", "tensorflow")
_VARIABLES = "xyzw"  # what the expressions call the inputs
Version = tuple[int, ...]
Nested: TypeAlias = "float | str | list[Nested]"  # an input in table.json


class Span(NamedTuple):
    """Measured versions with the same outcome, from `first` to `last`, both included."""

    first: Version
    last: Version
    outcome: Outcome

    def __contains__(self, version: object) -> bool:
        return isinstance(version, tuple) and self.first <= version <= self.last

    @property
    def versions(self) -> str:
        """ "2.8-2.13"; a single version as it is."""
        return "-".join(dict.fromkeys(map(dotted, (self.first, self.last))))


class Point(Record, kw_only=True):
    """A function, its inputs, and its gradients.

    id: the op with its arguments, "@", and the input.
    op: the name by which a user asks for the op.
    kind: one of KINDS.
    expressions: by framework, the function of the inputs x, y, z, w.
    inputs: numbers in nested lists.
    differentiated: the indices of the inputs that get a gradient.
    spans: by framework, the outcomes in eager mode, from the oldest version on.
    exceptions: by framework and route, the outcomes that differ from eager mode.
    changes: by the first version with a new gradient, why the gradient changed.
    weights: the weight of each entry of the result in the sum that is differentiated; if empty, all are 1.
    elementwise: are the inputs flat lists that may be repeated, so that a vectorised kernel runs?
    """

    id: str
    family: str
    op: str
    kind: str
    expressions: dict[str, str]
    inputs: tuple[object, ...]
    differentiated: tuple[int, ...]
    spans: dict[str, list[Span]]
    exceptions: dict[tuple[str, str], list[Span]]
    changes: dict[str, str]
    weights: tuple[float, ...] = ()
    elementwise: bool = False
    note: str = ""

    def function(self, framework: str, names: Json) -> Callable[..., Any]:
        """The expression of `framework` as a function. names: the modules that it uses."""
        code = f"lambda {', '.join(_VARIABLES[: len(self.inputs)])}: {self.expressions[framework]}"
        function: Callable[..., object] = eval(code, {**names, "math": math, "inf": math.inf, "nan": math.nan})
        return function

    def gradient(self, framework: str, version: str | None = None) -> list[list[float]] | None:
        """The gradient of each differentiated input, by default in the last measured version. An input without a gradient has zeros.

        None if the framework raises an error, lacks the function, or was not measured in this version.
        """
        outcome = self.outcome(framework, version)
        if outcome is None or outcome.gradient is None:
            return None
        sizes = [_count(self.inputs[index]) for index in self.differentiated]
        pairs = zip(outcome.gradient, sizes, strict=True)
        return [[0.0] * size if numbers is None else list(numbers) for numbers, size in pairs]

    def outcome(self, framework: str, version: str | None = None, route: str = "eager") -> Outcome | None:
        """The outcome, by default in the last measured version; None if it was not measured. A span has every version between its ends."""
        if framework not in FRAMEWORKS:
            raise unknown_name("kinks", "framework", FRAMEWORKS, framework)
        spans = self.spans.get(framework, [])
        wanted: Version = spans[-1].last if spans else ()
        if version is not None:
            wanted = parse_version(version)
        for span in (*self.exceptions.get((framework, route), ()), *spans):
            if wanted in span:
                return span.outcome
        return None


class Table(NamedTuple):
    """The content of table.json.

    points: the points by their ids.
    measured: by framework and version, the version in full and the routes.
    """

    points: dict[str, Point]
    measured: dict[str, dict[str, Json]]

    def versions(self, framework: str) -> list[str]:
        """The measured versions, from the oldest on."""
        return sorted(self.measured[framework], key=parse_version)

    def match_torch(self, version: str) -> str:
        """The measured version of torch with which this version is compared: the same version, or else the last one before it."""
        return [known for known in self.versions("torch") if parse_version(known) <= parse_version(version)][-1]


@functools.cache
def load() -> Table:
    """The table of the package."""
    return parse_table(json.loads(FILE.read_text(encoding="utf-8")))


def parse_table(stored: Json) -> Table:
    return Table({row["id"]: _parse_point(**row) for row in stored["points"]}, stored["measured"])


def _parse_point(
    inputs: list[Nested], gradients: Json | None = None, exceptions: Json | None = None, **row: Any
) -> Point:
    row = {"changes": {}, **row, **{name: tuple(row.get(name, ())) for name in ("differentiated", "weights")}}
    spans = {framework: [_parse_span(span) for span in spans] for framework, spans in (gradients or {}).items()}
    by_route = {
        (framework, route): [_parse_span(span) for span in spans]
        for framework, routes in (exceptions or {}).items()
        for route, spans in routes.items()
    }
    return Point(inputs=tuple(map(_parse_nested, inputs)), spans=spans, exceptions=by_route, **row)


def _parse_span(stored: Json) -> Span:
    first, _, last = stored["versions"].partition("-")
    return Span(parse_version(first), parse_version(last or first), Outcome.from_json(stored))


def _parse_nested(stored: Nested) -> Nested:
    return [_parse_nested(item) for item in stored] if isinstance(stored, list) else parse_number(stored)


def _count(value: object) -> int:
    return sum(map(_count, value)) if isinstance(value, list) else 1


def parse_version(text: str) -> Version:
    """(2, 13) of "2.13.0+cpu"."""
    try:
        major, minor = text.split("+")[0].split(".")[:2]
        return int(major), int("".join(digit for digit in minor if digit.isdigit()))
    except (ValueError, AttributeError) as error:
        raise ValueError(must("kinks", "version", "be two numbers, such as '2.13'", text)) from error


def dotted(version: Version) -> str:
    return ".".join(map(str, version))
