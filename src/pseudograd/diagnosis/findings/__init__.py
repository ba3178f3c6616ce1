"""From what was recorded to what a person should know. Every file of this folder but `kind.py` is one kind of finding: its `KIND`, a row.

Whatever speaks of codes reads `KINDS`: the order in which they are told, `--fail-on`, the page, the JSON and the docs.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..records import Finding
from .kind import Evidence, Kind, percent
from .starved import _of_starved  # noqa: F401  it stood here before each kind had a file, and is still found here

__all__ = ["CODES", "KINDS", "Evidence", "Kind", "described", "found", "percent"]


def _rows() -> tuple[Kind, ...]:
    names = [one.name for one in pkgutil.iter_modules(__path__) if one.name != "kind"]
    rows: list[Kind] = [importlib.import_module(f"{__name__}.{name}").KIND for name in names]
    return tuple(sorted(rows, key=lambda kind: kind.order))


KINDS = _rows()  # the most telling first
CODES = tuple(sorted(kind.as_code for kind in KINDS))  # by number, for the table that `lint` shares


def found(evidence: Evidence) -> list[Finding]:
    """Every finding, in the order in which a backward meets its line; what was seen at no line of a backward comes last."""
    findings = [(kind, one) for kind in KINDS for one in kind.find(evidence)]
    evidence.deliberate.muted = len(_folded((kind, one) for kind, one in findings if one.is_muted))
    met: dict[tuple[str, str], int] = {}
    for at, site in enumerate(evidence.sites):
        met.setdefault((site.where, site.expression), at)
    told = _folded((kind, one) for kind, one in findings if not one.is_muted)
    return sorted(told, key=lambda one: met.get((one.where, one.expression), len(met)))


def _folded(findings: Iterable[tuple[Kind, Finding]]) -> list[Finding]:
    """What is said of one line stands once: the most telling code, with the others' evidence behind it."""
    groups: dict[Any, list[tuple[Kind, Finding]]] = {}
    for number, (kind, one) in enumerate(findings):
        is_alone = one.where == "?" or kind.is_alone
        groups.setdefault(number if is_alone else (one.where, one.expression), []).append((kind, one))
    folded = []
    for group in groups.values():
        _, first = min(group, key=lambda pair: (pair[0].order, -pair[1].share))
        some = [one for _, one in group]
        rest = tuple(dict.fromkeys(one.evidence for one in some if one.evidence != first.evidence))
        modules = list(dict.fromkeys(one.module for one in some if one.module))
        module = ", ".join(modules[:4]) + (f" and {len(modules) - 4} more" if len(modules) > 4 else "")
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
