"""A comparison as a table for other programs: a frame of pandas, and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import must, not_installed
from .compared import Compared
from .comparison_text import against, cell, less
from .returned import ONLY

_ESCAPED = str.maketrans(
    {
        **{one: f"\\{one}" for one in "&%$#_{}"},
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "\\": r"\textbackslash{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"$\pm$",
        "−": "$-$",
    }
)


def frame(found: Compared) -> Any:
    """A row for each variant and seed, a column for each number, and why a run failed."""
    try:
        import pandas
    except ImportError as error:
        raise not_installed("to_frame", "pandas", "pandas") from error
    rows = [
        {
            "variant": name,
            "seed": seed,
            **{"result" if number == ONLY else number: rows[name][place] for number, rows in found.values.items()},
            "failure": found.failures.get((name, seed)),
        }
        for name in found.variants
        for place, seed in enumerate(found.seeds)
    ]
    return pandas.DataFrame(rows)


def latex(found: Compared, numbers: Sequence[str]) -> str:
    """A table of booktabs, with the lines below it as comments: how it was judged."""
    if not numbers:
        raise ValueError(must("compare", "number", "be one of the comparison's", numbers))
    lines = [rf"% {found.run}: {len(found.seeds)} seeds, torch {found.torch}. Needs \usepackage{{booktabs}}."]
    for number in numbers:
        lines += _table(found, number)
    return "\n".join(lines) + "\n"


def _table(found: Compared, number: str) -> list[str]:
    better = f"{found.better[number]} is better"
    heading = better if number == ONLY else f"{number} ({better})"
    rows = [
        (name, cell(values), less(found, number, name), against(found, number, name))
        for name, values in found.values[number].items()
    ]
    return [
        r"\begin{tabular}{llll}",
        r"\toprule",
        _row(("variant", heading, f"less {found.baseline}", "verdict")),
        r"\midrule",
        *map(_row, rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]


def _row(cells: Sequence[str]) -> str:
    return " & ".join(one.translate(_ESCAPED) for one in cells) + r" \\"
