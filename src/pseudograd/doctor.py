"""`pseudograd doctor`: what the installed torch does at a bound, what the other era does, and which of our kernels run."""

from __future__ import annotations

from typing import Any

import torch

from . import engine, kernels
from .errors import unknown_name
from .torch_facts import ERAS, FORMS, Slopes, era_of, installed_era, measure, outside_every_mode

EDGES = ("closed", "open")  # of number bounds, in the order of ERAS


def examine() -> dict[str, Any]:
    """The findings as plain data: versions, one row for each form of call, one for each kernel."""
    from . import __version__

    era = installed_era()
    other = next(name for name in ERAS if name != era)
    return {
        "pseudograd": __version__,
        "torch": torch.__version__,
        "era": era,
        "expected_era": era_of(torch.__version__),
        "forms": [_row(name, other) for name in FORMS],
        "kernels": kernels.status(),
        "compile_over_functorch": engine.registration(),
    }


def _row(name: str, other: str) -> dict[str, Any]:
    form = FORMS[name]
    found = outside_every_mode(lambda: measure(form))
    return {
        "form": name,
        "installed": found._asdict(),
        "other_era": form.slopes[other]._asdict(),
        "changes": found != form.slopes[other],
        "as_known": found == form.slopes[era_of(torch.__version__)],
    }


def edge_text(expected: str) -> tuple[bool, str]:
    """Is the edge of number bounds the expected one, "closed" or "open"? And one line that says so."""
    if expected not in EDGES:
        raise unknown_name("doctor", "--expect", EDGES, expected)
    found = EDGES[ERAS.index(installed_era())]
    verdict = "as expected" if found == expected else f"expected {expected}"
    return found == expected, f"torch {torch.__version__}: the edge of number bounds is {found}, {verdict}"


def text(findings: dict[str, Any]) -> str:
    """The findings as a person reads them."""
    other = next(name for name in ERAS if name != findings["era"])
    width = max(len(row["form"]) for row in findings["forms"])
    lines = [
        f"torch {findings['torch']} behaves as {findings['era']}; pseudograd {findings['pseudograd']}",
        "",
        f"{'dy/dx where x is exactly at the bound':{width}}  {'here':12}  {other}",
    ]
    for row in findings["forms"]:
        note = "  changed" if row["changes"] else ""
        odd = "" if row["as_known"] else "  NOT what was measured for this version: please report it"
        here, there = (_shown(row[key]) for key in ("installed", "other_era"))
        lines.append(f"{row['form']:{width}}  {here:12}  {there}{note}{odd}")
    lines += ["", "second number: what a tensor bound gets", "", "kernels"]
    lines += [f"  {row['kernel']:10}  {row['state']:12}  {row['why']}" for row in findings["kernels"]]
    lines.append(f"  torch.compile over torch.func: {findings['compile_over_functorch']}")
    if findings["era"] != findings["expected_era"]:
        lines.append(
            f"  This torch behaves as {findings['era']}, its version says {findings['expected_era']}: please report it."
        )
    return "\n".join(lines)


def _shown(slopes: dict[str, float | None]) -> str:
    found = Slopes(**slopes)  # type: ignore[arg-type]
    return f"{found.x:g}" if found.bound is None else f"{found.x:g}, {found.bound:g}"
