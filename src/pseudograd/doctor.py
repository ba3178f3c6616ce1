"""`pseudograd doctor`: what the installed torch does at a bound, what other eras do, and which of our kernels run."""

from __future__ import annotations

from typing import Any

import torch

from . import engine, kernels
from .errors import unknown_name
from .listen import patches
from .torch_table.eras import ERAS, era_of, installed_era, measure, outside_every_mode
from .torch_table.forms import edge_cases
from .torch_table.private import status
from .torch_table.records import EdgeCase


def examine() -> dict[str, Any]:
    """The findings as plain data: versions, an entry for each way to call a clamp, an entry for each kernel."""
    from . import __version__

    era = installed_era()
    others = [name for name in ERAS if name != era]
    return {
        "pseudograd": __version__,
        "torch": torch.__version__,
        "era": era,
        "expected_era": era_of(torch.__version__),
        "forms": [_describe_case(case, others) for case in edge_cases()],
        "kernels": kernels.status(),
        "compile_over_functorch": engine.registration(),
        "missing_private_names": status(),
        "patched": patches.status(),
    }


def _describe_case(case: EdgeCase, other_eras: list[str]) -> dict[str, object]:
    measured = outside_every_mode(lambda: measure(case.f))
    elsewhere = {era: case.slopes_in(era) for era in other_eras}
    return {
        "form": case.text,
        "installed": measured._asdict(),
        "other_eras": {name: slopes._asdict() for name, slopes in elsewhere.items()},
        "changes": any(slopes != measured for slopes in elsewhere.values()),
        "as_known": measured == case.slopes_in(era_of(torch.__version__)),
    }


def edge_text(expected: str) -> tuple[bool, str]:
    """Does the installed torch have the expected edge where bounds are numbers? The answer as a bool and as a line."""
    edges = list(dict.fromkeys(era.edge for era in ERAS.values()))
    if expected not in edges:
        raise unknown_name("doctor", "--expect", edges, expected)
    edge = ERAS[installed_era()].edge
    verdict = "as expected" if edge == expected else f"expected {expected}"
    return edge == expected, f"torch {torch.__version__}: the edge of number bounds is {edge}, {verdict}"


def text(findings: dict[str, Any]) -> str:
    """The findings as a person reads them."""
    others = [name for name in ERAS if name != findings["era"]]
    width = max(len(row["form"]) for row in findings["forms"])
    lines = [
        f"torch {findings['torch']} behaves as {findings['era']}; pseudograd {findings['pseudograd']}",
        "",
        f"{'dy/dx where x is exactly at the bound':{width}}  {'here':12}  {'  '.join(f'{name:12}' for name in others)}".rstrip(),
    ]
    for row in findings["forms"]:
        note = "  changed" if row["changes"] else ""
        odd = "" if row["as_known"] else "  NOT what was measured for this version: please report it"
        cells = [_slopes_text(row["installed"]), *(_slopes_text(row["other_eras"][name]) for name in others)]
        lines.append(f"{row['form']:{width}}  {'  '.join(f'{cell:12}' for cell in cells)}".rstrip() + note + odd)
    lines += ["", "second number: what a tensor bound gets", "", "kernels"]
    lines += [f"  {row['kernel']:10}  {row['state']:12}  {row['why']}" for row in findings["kernels"]]
    lines.append(f"  torch.compile over torch.func: {findings['compile_over_functorch']}")
    for row in findings["missing_private_names"]:
        lines.append(f"  this torch has no {row['name']}: {row['without']}")
    lines += ["", "patched now" if findings["patched"] else "patched now: nothing"]
    lines += [f"  {row['name']}, until {row['until']}" for row in findings["patched"]]
    if findings["era"] != findings["expected_era"]:
        lines.append(
            f"  This torch behaves as {findings['era']}, its version says {findings['expected_era']}: please report it."
        )
    return "\n".join(lines)


def _slopes_text(slopes: dict[str, float | None]) -> str:
    bound = slopes["bound"]
    return f"{slopes['x']:g}" if bound is None else f"{slopes['x']:g}, {bound:g}"
