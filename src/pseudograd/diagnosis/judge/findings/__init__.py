"""From what was recorded to what a person should know. Every file of this folder but `kind.py` is one kind of finding: its `KIND`, a row.

Whatever speaks of codes reads `KINDS`: the order in which they are told, `--fail-on`, the page, the JSON and the docs.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from ....wording import shortened
from ...records import Finding, Starved
from .kind import Evidence, Kind, percent

__all__ = ["CODES", "KINDS", "Evidence", "Kind", "described", "found", "percent"]


def _rows() -> tuple[Kind, ...]:
    names = [one.name for one in pkgutil.iter_modules(__path__) if one.name != "kind"]
    rows: list[Kind] = [importlib.import_module(f"{__name__}.{name}").KIND for name in names]
    return tuple(sorted(rows, key=lambda kind: kind.order))


KINDS = _rows()  # the most telling first
CODES = tuple(sorted(kind.as_code for kind in KINDS))  # by number, for the table that `lint` shares


def found(evidence: Evidence) -> list[Finding]:
    """Every finding, in the order in which a backward meets its line; what was seen at no line of a backward comes last."""
    findings = [one for kind in KINDS for one in kind.find(evidence)]
    findings += _of_starved([one for one in evidence.starved if one.parameter not in evidence.with_narrow_windows])
    left_out = evidence.deliberate.codes
    findings = [replace(one, is_muted=one.is_muted or one.number in left_out) for one in findings]
    evidence.deliberate.muted = len(_folded(one for one in findings if one.is_muted))
    met: dict[tuple[str, str], int] = {}
    for at, site in enumerate(evidence.sites):
        met.setdefault((site.where, site.expression), at)
    told = _folded(one for one in findings if not one.is_muted)
    return sorted(told, key=lambda one: met.get((one.where, one.expression), len(met)))


def _of_starved(starved: Sequence[Starved]) -> list[Finding]:
    """What the rows that blame something for starved parameters say of these."""
    return [one for kind in KINDS if kind.blame is not None for one in kind.blame(starved)]


def _folded(findings: Iterable[Finding]) -> list[Finding]:
    """What is said of one line stands once: the most telling code, with the others' evidence behind it. One without a row tells least."""
    rows = {kind.code: kind for kind in KINDS}
    groups: dict[object, list[Finding]] = {}
    for number, one in enumerate(findings):
        is_alone = one.where == "?" or (one.code in rows and rows[one.code].is_alone)
        groups.setdefault(number if is_alone else (one.where, one.expression), []).append(one)
    folded = []
    for some in groups.values():
        first = min(some, key=lambda one: (rows[one.code].order if one.code in rows else math.inf, -one.share))
        rest = tuple(dict.fromkeys(one.evidence for one in some if one.evidence != first.evidence))
        modules = list(dict.fromkeys(one.module for one in some if one.module))
        module = shortened(modules, 4)
        issue = next((one.issue for one in some if one.issue), None)
        folded.append(replace(first, also=rest, issue=issue, module=module or None))
    return folded


def described(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """What the codes of these findings mean, each once, the most telling first."""
    codes = {one.code for one in findings}
    return [
        {name: getattr(kind, name) for name in ("code", "number", "meaning", "next_step", "protects")}
        for kind in KINDS
        if kind.code in codes
    ]
