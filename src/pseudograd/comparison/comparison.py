"""A Comparison: what `compare` found, as text, picture, table and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import must, not_installed
from ..listen.program.files import checked_file, json_text, write
from ..notebook import figure_of, shown
from . import arrays, picture
from .compared import Compared
from .comparison_text import text
from .paired import Difference
from .reached import Reached
from .returned import ONLY
from .variants import INSTALLED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KIND = "pseudograd comparison"


@dataclass(frozen=True, eq=False)
class Comparison(Compared):
    """What `compare` found. print() shows it, `plot` draws it, `write` keeps it; `verdict`, `edge_verdict` and `leaders` answer."""

    def __str__(self) -> str:
        return text(self)

    def _repr_html_(self) -> str:
        seeds = picture.seeds_of(self, self.number(None))
        return shown(str(self), lambda: figure_of(lambda axes: picture.draw(seeds, axes), seeds.size))

    def plot(self, number: str | None = None, *, ax: Axes | None = None) -> Axes:
        """Every seed of every variant as a dot, their median as a line, and the verdict beside it; of a curve its median over the seeds and
        their range; of a picture a tile for each variant. Needs matplotlib.
        """
        if number is not None and number in self.arrays:
            return arrays.draw(self, number, ax)
        return picture.draw(picture.seeds_of(self, self.number(number)), ax)

    def to_frame(self) -> Any:
        """A pandas.DataFrame: a row for each variant and seed, a column for each number, and why a run failed. Needs pandas."""
        try:
            import pandas
        except ImportError as error:
            raise not_installed("to_frame", "pandas", "pandas") from error
        columns = {"result" if number == ONLY else number: rows for number, rows in self.values.items()}
        return pandas.DataFrame(
            {
                "variant": variant,
                "seed": seed,
                **{column: rows[variant][index] for column, rows in columns.items()},
                "failure": self.failures.get((variant, seed)),
            }
            for variant in self.variants
            for index, seed in enumerate(self.seeds)
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data: what was measured, and the verdicts. NaN becomes None, what is infinite "inf" or "-inf"."""
        return {
            "kind": KIND,
            "pseudograd": version("pseudograd"),
            "torch": self.torch,
            "run": self.run,
            "replaced": list(self.replaced),
            "better": dict(self.better),
            "seeds": list(self.seeds),
            "repeats": self.repeats,
            "seconds": self.seconds,
            "baseline": self.baseline,
            "reached": self.reached.to_json(),
            "notes": list(self.notes),
            "is_given": self.is_given,
            "arrays": {
                name: {variant: list(by_seed) for variant, by_seed in rows.items()}
                for name, rows in self.arrays.items()
            },
            "values": written(self.values),
            "failures": [[variant, seed, told] for (variant, seed), told in self.failures.items()],
            "verdicts": {
                number: {name: _as_json(self.verdict(name, number)) for name in self.others} for number in self.values
            },
            "edge": {number: _as_json(self.edge(number)) for number in self.values} if self.edges() else {},
        }

    def write(self, file: Path | str) -> None:
        """The JSON in a file, whole or not at all."""
        path = checked_file("compare", "file", Path(file))
        write("compare", "file", path, json_text(self.to_json()))


def from_json(stored: Mapping[str, Any]) -> Comparison:
    """The comparison that `to_json` wrote. Raises ValueError for anything else."""
    try:
        return Comparison(
            run=str(stored["run"]),
            better={str(key): value for key, value in stored["better"].items()},
            seeds=tuple(int(seed) for seed in stored["seeds"]),
            values={
                number: {name: tuple(float(read(value)) for value in values) for name, values in rows.items()}
                for number, rows in stored["values"].items()
            },
            failures={(variant, seed): told for variant, seed, told in stored["failures"]},
            replaced=tuple(stored["replaced"]),
            repeats=bool(stored["repeats"]),
            torch=str(stored["torch"]),
            seconds=float(stored["seconds"]),
            baseline=str(stored.get("baseline", INSTALLED)),
            reached=Reached.from_json(stored.get("reached", {})),
            notes=tuple(map(str, stored.get("notes", ()))),
            is_given=bool(stored.get("is_given", False)),
            arrays={
                name: {variant: dict.fromkeys(map(int, seeds)) for variant, seeds in rows.items()}
                for name, rows in stored.get("arrays", {}).items()
            },
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(must("compare", "a comparison", "be as compare wrote it", str(error))) from error


def written(value: object) -> Any:
    """As JSON has it: NaN becomes None, what is infinite "inf" or "-inf"."""
    if isinstance(value, Mapping):
        return {key: written(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [written(one) for one in value]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return None if math.isnan(value) else str(value)


def read(value: Any) -> Any:
    """What `written` wrote, with what JSON has no number for."""
    return {None: math.nan, "inf": math.inf, "-inf": -math.inf}.get(value, value)


def _as_json(found: Difference) -> dict[str, object]:
    return {
        "verdict": found.verdict,
        "mean": written(found.mean),
        "spread": written(found.spread),
        "p": found.p,
        "least_p": found.least_p,
        "comparisons": found.comparisons,
        "seeds_that_differ": found.seeds[1],
        "shift": written(found.shift),
        "interval": written(found.interval),
        "interval_level": found.level,
        "balance": found.balance,
        "higher_lower": list(found.wins),
    }
