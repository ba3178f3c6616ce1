"""The kinds of findings: every file of this folder, except `kind.py`, has one in its variable `KIND`.

`KINDS` collects them, so no list names the files.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import replace

from ....wording import shortened
from ...records import Finding
from .kind import Evidence, Kind, computed_once

__all__ = ["CODES", "KINDS", "Evidence", "Kind", "Results", "describe"]


def _rows() -> tuple[Kind, ...]:
    names = [module.name for module in pkgutil.iter_modules(__path__) if module.name != "kind"]
    rows: list[Kind] = [importlib.import_module(f"{__name__}.{name}").KIND for name in names]
    return tuple(sorted(rows, key=lambda kind: kind.order))


KINDS = _rows()  # sorted by `order`
CODES = tuple(sorted(kind.about for kind in KINDS))  # sorted by number, for the table that `lint` shares


class Results(Evidence):
    """All fields of `Report`. `Diagnosis` keeps one object of this class when its context has ended."""

    @computed_once
    def _all_findings(self) -> Iterable[Finding]:
        """The findings; those that are declared deliberate are muted."""
        findings = [finding for kind in KINDS for finding in kind.find(self)]
        is_ignored = self.deliberate.code
        return [
            replace(finding, is_muted=True) if is_ignored(finding.number, finding.where) else finding
            for finding in findings
        ]

    @computed_once
    def findings(self) -> Iterable[Finding]:
        """The findings in the order in which a backward meets their lines; findings without such a line come last."""
        order: dict[tuple[str, str], int] = {}
        for number, site in enumerate(self.sites):
            order.setdefault((site.where, site.expression), number)
        folded = _fold(finding for finding in self._all_findings if not finding.is_muted)
        return sorted(folded, key=lambda finding: order.get((finding.where, finding.expression), len(order)))

    @property
    def muted(self) -> int:
        return len(_fold(finding for finding in self._all_findings if finding.is_muted))


def _fold(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each line: that of the kind with the smallest order, with the evidence of the others."""
    kinds = {kind.code: kind for kind in KINDS}
    groups: dict[object, list[Finding]] = {}
    for number, finding in enumerate(findings):
        is_alone = finding.where == "?" or kinds[finding.code].is_alone
        groups.setdefault(number if is_alone else (finding.where, finding.expression), []).append(finding)
    folded = []
    for group in groups.values():
        first = min(group, key=lambda finding: (kinds[finding.code].order, -finding.share))
        others = [other for other in group if other.evidence != first.evidence]
        also = tuple(dict.fromkeys(_evidence_beside(first, other) for other in others))
        modules = list(dict.fromkeys(finding.module for finding in group if finding.module))
        issue = next((finding.issue for finding in group if finding.issue), None)
        folded.append(replace(first, also=also, issue=issue, module=shortened(modules, 4) or None))
    return folded


def _evidence_beside(first: Finding, other: Finding) -> str:
    """The evidence of another finding of the line; with its cause, if it is of the same kind and has another cause."""
    has_own_cause = other.code == first.code and other.cause != first.cause
    return f"{other.evidence} ({other.cause})" if has_own_cause else other.evidence


def describe(findings: Iterable[Finding]) -> list[dict[str, object]]:
    """The meaning of each code of these findings."""
    codes = {finding.code for finding in findings}
    return [
        {
            "code": kind.code,
            "number": kind.number,
            "meaning": kind.about.meaning,
            "next_step": kind.about.mend,
            "protects": kind.protects,
        }
        for kind in KINDS
        if kind.code in codes
    ]
