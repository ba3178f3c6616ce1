"""What must hold, each as a record that names its case. A record is judged from a results file, so a kept file can be judged again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from .cases import QUESTIONS, Case, plan
from .results import Measured, Record

TIME, SAVED = "microseconds", "saved_bytes"
PER_ELEMENT, MIB = "bytes per element", "MiB"
_SIZES = (10, 100_000, 1_000_000, 10_000_000)
_LARGE = _SIZES[1:]


@dataclass(frozen=True)
class Promise:
    """The time of `route` in `case` is at most `limit` times that of `against`; or, without one, its `quantity` at most `limit`."""

    case: Case
    route: str
    against: str | None
    limit: float
    quantity: str = TIME

    def __str__(self) -> str:
        if self.against is not None:
            return f"{self.case}: {self.route} at most {self.limit:g} x {self.against}"
        return f"{self.case}: {self.route} at most {self.limit:g} {self.quantity}"

    def value(self, results: Mapping[Case, Measured]) -> float | None:
        """None where it was not measured."""
        measured = results.get(self.case, {}).get(self.route)
        if measured is None:
            return None
        if self.against is not None:
            return measured["over"].get(self.against)
        if self.quantity == PER_ELEMENT:
            return measured[SAVED] / self.case.size
        return measured[SAVED] / 2**20 if self.quantity == MIB else measured[self.quantity]

    def judge(self, results: Mapping[Case, Measured]) -> Record:
        """The record that a results file keeps."""
        value = self.value(results)
        return {**asdict(self), "found": value, "holds": None if value is None else value <= self.limit}


def promises(import_ms: float) -> tuple[Promise, ...]:
    stricter = _stricter(import_ms)
    cases = {promise.case for promise in stricter if (promise.route, promise.against) == ("inward", "native")}
    clamps = plan(QUESTIONS[name] for name in ("size", "dtype", "layout"))
    never_slower = (Promise(case, "inward", "native", 1.3) for case in clamps if case not in cases)
    return (*stricter, *never_slower)


def _stricter(import_ms: float) -> tuple[Promise, ...]:
    """The promises beside "no size, dtype or layout slower than 1.3 times native".

    Compiled, the same loop is generated for a formula and for a rule that is as simple: 5 % are for noise.
    """
    over = {
        "floor": (1.15, 1.20, 1.20, 1.10),
        "native": (1.10, 0.20, 0.20, 0.38),
        "snippet": (0.80, 0.30, 0.25, 0.30),
    }
    return (
        *(
            Promise(Case("clamp", size), "inward", against, limit)
            for against, limits in over.items()
            for size, limit in zip(_SIZES, limits, strict=True)
        ),
        *(Promise(Case("clamp", size, "bfloat16"), "inward", "native", 0.2) for size in _LARGE),
        *(
            Promise(Case(f"clamp, bounds {kind}", size), "inward", "native", 0.4)
            for kind in ("per channel", "of full size")
            for size in _LARGE
        ),
        *(
            Promise(Case("clamp", size, data=data), "inward", "native", 0.5)
            for data in ("sorted", "unclipped")
            for size in _LARGE
        ),
        *(
            Promise(Case("clamp", size), "inward, compiled", f"{against}, compiled", 1.05)
            for against in ("formula", "snippet")
            for size in _LARGE
        ),
        *(Promise(Case("gelu, backward", size), "fewbit", "floor", 1.5) for size in _LARGE),
        *(Promise(Case("gelu, backward", size), "fewbit", None, 0.251, PER_ELEMENT) for size in _LARGE),
        Promise(Case("network"), "inward", None, 215, MIB),
        Promise(Case("import"), "pseudograd", None, import_ms, "milliseconds"),
    )


def needed(promises: Iterable[Promise]) -> dict[Case, tuple[str, ...]]:
    """The cases and routes that the promises name, and no others."""
    routes: dict[Case, tuple[str, ...]] = {}
    for promise in promises:
        names = (*routes.get(promise.case, ()), promise.route, *([promise.against] if promise.against else []))
        routes[promise.case] = tuple(dict.fromkeys(names))
    return routes
