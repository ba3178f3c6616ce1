"""A Comparison: the result of `compare`, as text, picture, table and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import not_installed
from ..listen.program.files import checked_file, json_text, write
from ..notebook import figure_of, to_html
from . import picture
from .statistics import Difference
from .text import comparison_text
from .training import ONLY
from .verdicts import Verdicts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STORED = "torch", "run", "replaced", "better", "seeds", "repeats", "seconds", "baseline", "is_given", "values"


@dataclass(frozen=True, eq=False)
class Comparison(Verdicts):
    """The result of `compare`. print() shows it, `plot` draws it, `write` stores it; `verdict`, `edge_verdict` and `leaders` answer."""

    def __str__(self) -> str:
        return comparison_text(self)

    def _repr_html_(self) -> str:
        seeds = picture.seeds_picture(self, self.number(None))
        return to_html(str(self), lambda: figure_of(lambda axes: picture.draw_seeds(seeds, axes), seeds.size))

    def plot(self, number: str | None = None, *, ax: Axes | None = None) -> Axes:
        """Every seed of every variant as a dot, their median as a line, and the verdict beside it. Needs matplotlib."""
        return picture.draw_seeds(picture.seeds_picture(self, self.number(number)), ax)

    def to_frame(self) -> Any:
        """A pandas.DataFrame with a row for each variant and seed, a column for each number, and the error of a run that failed."""
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

    def to_json(self) -> dict[str, object]:
        """Plain data: the numbers and the verdicts. NaN becomes None, an infinite number "inf" or "-inf"."""
        return {
            "kind": "pseudograd comparison",
            "pseudograd": version("pseudograd"),
            **{name: plain_numbers(getattr(self, name)) for name in _STORED},
            "reached": self.reached.to_json(),
            "failures": [[variant, seed, failure] for (variant, seed), failure in self.failures.items()],
            "verdicts": {
                number: {name: _verdict_json(self.verdict(name, number)) for name in self.others}
                for number in self.values
            },
            "edge": {number: _verdict_json(self.edge(number)) for number in self.values} if self.edges() else {},
        }

    def write(self, file: Path | str) -> None:
        """Write the JSON to a file. After an error the file is as it was before."""
        path = checked_file("compare", "file", Path(file))
        write("compare", "file", path, json_text(self.to_json()))


def plain_numbers(value: object) -> Any:
    """The value as JSON has it: NaN becomes None, an infinite number "inf" or "-inf"."""
    if isinstance(value, Mapping):
        return {key: plain_numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_numbers(item) for item in value]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return None if math.isnan(value) else str(value)


def _verdict_json(verdict: Difference) -> dict[str, object]:
    names = ("verdict", "mean", "spread", "p", "least_p", "comparisons", "shift", "interval", "balance")
    renamed = {
        "interval_level": verdict.level,
        "higher_lower": verdict.wins,
        "seeds_that_differ": verdict.seeds_that_differ,
    }
    return {**plain_numbers({**{name: getattr(verdict, name) for name in names}, **renamed})}
