"""What `compare` found: numbers by variant and seed, and the verdicts that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import must, unknown_name
from ..paired import Better, Difference, difference, holm
from ..tasks.base import ERAS, INSTALLED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KIND = "pseudograd comparison"
Values = Mapping[str, tuple[float, ...]]  # by variant, one for each seed
CLOSED, OPENED = ERAS


@dataclass(frozen=True, eq=False)
class Comparison:
    """values[number][variant] has one value for each of `seeds`, NaN where the run failed; `failures[variant, seed]` says how.

    The first number is the one that matters most. repeats: the seed changes nothing, so each variant has one value and no test.
    replaced: the families of `override`, if run was called unedited.
    """

    run: str
    better: Mapping[str, Better]
    seeds: tuple[int, ...]
    values: Mapping[str, Values]
    failures: Mapping[tuple[str, int], str] = field(default_factory=dict)
    replaced: tuple[str, ...] = ()
    repeats: bool = False
    torch: str = ""
    seconds: float = 0.0

    @property
    def variants(self) -> tuple[str, ...]:
        return tuple(next(iter(self.values.values())))

    @cached_property
    def _verdicts(self) -> dict[str, dict[str, Difference]]:
        return {number: self._corrected(number, INSTALLED) for number in self.values}

    def _corrected(self, number: str, other: str) -> dict[str, Difference]:
        """By Holm; variants that gave the same numbers throughout are one comparison."""
        found = self._against(number, other)
        rows = self.values[number]
        first = {repr(rows[name]): name for name in reversed(found)}
        corrected = holm({name: found[name] for name in first.values()})
        return {name: corrected[first[repr(rows[name])]] for name in found}

    def _against(self, number: str, other: str) -> dict[str, Difference]:
        rows, better = self.values[number], self.better[number]
        once = slice(0, 1) if self.repeats else slice(None)
        return {
            name: difference(values[once], rows[other][once], better=better)
            for name, values in rows.items()
            if name != other
        }

    def verdict(self, variant: str, number: str | None = None) -> Difference:
        """A variant against torch.clamp as installed, corrected for all variants."""
        found = self._verdicts[self.number(number)]
        if variant not in found:
            raise unknown_name("compare", "variant", found, variant)
        return found[variant]

    def edge(self, number: str | None = None) -> Difference:
        """The old edge (zero/closed) against the new one (zero/open); one comparison, named beforehand."""
        return self._against(self.number(number), OPENED)[CLOSED]

    def edge_verdict(self, number: str | None = None) -> str:
        """ "the old edge" (torch <= 2.13), "the new edge" (torch >= 2.14) or "no difference"."""
        return {"better": "the old edge", "worse": "the new edge"}.get(self.edge(number).verdict, "no difference")

    def leaders(self, number: str | None = None) -> tuple[str, ...]:
        """The variant with the best median, and behind it all that cannot be told apart from it: more than one is a tie."""
        number = self.number(number)
        ranked = self.ranked(number)
        found = self._corrected(number, ranked[0])
        # Better than what all of these equal.
        better = ranked[0] != INSTALLED and self.verdict(ranked[0], number).verdict == "better"
        equal = [name for name in ranked if repr(self.values[number][name]) == repr(self.values[number][INSTALLED])]
        tied = [name for name in ranked[1:] if self._is_level(found[name]) and not (better and name in equal)]
        return ranked[0], *tied

    def _is_level(self, found: Difference) -> bool:
        return found.favours == "no difference" if self.repeats else found.verdict == "no difference"

    def ranked(self, number: str | None = None) -> tuple[str, ...]:
        """The variants by their medians, the best first."""
        number = self.number(number)
        sign = 1.0 if self.better[number] == "lower" else -1.0

        def badness(name: str) -> float:
            median = self.median(name, number)
            return math.inf if math.isnan(median) else sign * median

        return tuple(sorted(self.variants, key=badness))

    def median(self, variant: str, number: str | None = None) -> float:
        """Over the seeds; a NaN is as bad as a number can be, and the median where half of them are."""
        number = self.number(number)
        worst = math.inf if self.better[number] == "lower" else -math.inf
        values = self.values[number][variant]
        ordered = sorted(worst if math.isnan(value) else value for value in values)
        low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
        if worst in (low, high) and any(math.isnan(value) for value in values):
            return math.nan
        return low if low == high else low + (high - low) / 2

    def number(self, name: str | None) -> str:
        """The name of a number, checked; None for the first."""
        if name is None:
            return next(iter(self.values))
        if name not in self.values:
            raise unknown_name("compare", "number", self.values, name)
        return name

    def __str__(self) -> str:
        from .text import text

        return text(self)

    def plot(self, number: str | None = None, *, ax: Axes | None = None) -> Axes:
        """Every seed of every variant as a dot, their median as a line, and the verdict beside it; needs matplotlib."""
        from .picture import draw

        return draw(self, self.number(number), ax)

    def to_json(self) -> dict[str, Any]:
        """Plain data: what was measured, and the verdicts. NaN becomes None, what is infinite "inf" or "-inf"."""
        from .. import __version__

        return {
            "kind": KIND,
            "pseudograd": __version__,
            "torch": self.torch,
            "run": self.run,
            "replaced": list(self.replaced),
            "better": dict(self.better),
            "seeds": list(self.seeds),
            "repeats": self.repeats,
            "seconds": self.seconds,
            "values": {
                number: {name: [written(value) for value in values] for name, values in rows.items()}
                for number, rows in self.values.items()
            },
            "failures": [[variant, seed, told] for (variant, seed), told in self.failures.items()],
            "verdicts": {
                number: {name: _as_json(found) for name, found in verdicts.items()}
                for number, verdicts in self._verdicts.items()
            },
            "edge": {number: _as_json(self.edge(number)) for number in self.values},
        }

    def write(self, file: Path | str) -> None:
        """The JSON in a file, whole or not at all."""
        import json

        from ..program import checked_file, write

        path = checked_file("compare", "file", Path(file))
        write("compare", "file", path, json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n")


def from_json(stored: Mapping[str, Any]) -> Comparison:
    """The comparison that `to_json` wrote. Raises ValueError for anything else."""
    try:
        return Comparison(
            run=str(stored["run"]),
            better={str(key): value for key, value in stored["better"].items()},
            seeds=tuple(int(seed) for seed in stored["seeds"]),
            values={
                number: {name: tuple(map(read, values)) for name, values in rows.items()}
                for number, rows in stored["values"].items()
            },
            failures={(variant, seed): told for variant, seed, told in stored["failures"]},
            replaced=tuple(stored["replaced"]),
            repeats=bool(stored["repeats"]),
            torch=str(stored["torch"]),
            seconds=float(stored["seconds"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(must("compare", "a comparison", "be as compare wrote it", str(error))) from error


def written(value: float) -> float | str | None:
    if math.isfinite(value):
        return value
    return None if math.isnan(value) else str(value)


def read(value: float | str | None) -> float:
    return math.nan if value is None else float(value)


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of the values that are finite; NaN where there are none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return math.nan, math.nan
    mean = math.fsum(finite) / len(finite)
    if len(finite) < 2:
        return mean, math.nan
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in finite) / (len(finite) - 1))


def _as_json(found: Difference) -> dict[str, Any]:
    return {
        "verdict": found.verdict,
        "mean": written(found.mean),
        "spread": written(found.spread),
        "p": found.p,
        "least_p": found.least_p,
        "comparisons": found.comparisons,
        "seeds_that_differ": found.seeds[1],
    }
