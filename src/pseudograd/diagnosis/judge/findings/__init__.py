"""The kinds of findings: every file of this folder, except `kind.py`, has one in its variable `KIND`.

`KINDS` collects them: a new file needs no entry in any list.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import replace

from ....listen.frames import NO_LINE
from ....wording import shortened
from ...records import Finding
from .kind import Evidence, Kind, computed_once

__all__ = ["CODES", "KINDS", "Evidence", "Kind", "Results", "describe"]


def _import_kinds() -> tuple[Kind, ...]:
    names = [module.name for module in pkgutil.iter_modules(__path__) if module.name != "kind"]
    kinds: list[Kind] = [importlib.import_module(f"{__name__}.{name}").KIND for name in names]
    return tuple(sorted(kinds, key=lambda kind: kind.order))


KINDS = _import_kinds()  # sorted by `order`
CODES = tuple(sorted(kind.about for kind in KINDS))  # sorted by number, for the table that `lint` shares


class Results(Evidence):
    """The evidence and the findings made from it: all fields of `Report`. `Diagnosis` keeps one when its context has ended."""

    @computed_once
    def _all_findings(self) -> Iterable[Finding]:
        """The findings; those that are declared deliberate are muted."""
        findings = [finding for kind in KINDS for finding in kind.find(self)]
        is_ignored = self.deliberate.ignores_code
        return [
            replace(finding, is_muted=True) if is_ignored(finding.number, finding.where) else finding
            for finding in findings
        ]

    @computed_once
    def findings(self) -> Iterable[Finding]:
        """The findings in the order in which a backward meets their lines; findings without such a line come last."""
        order: dict[tuple[str, str], int] = {}
        for position, site in enumerate(self.sites):
            order.setdefault((site.where, site.expression), position)
        folded = _fold(finding for finding in self._all_findings if not finding.is_muted)
        return sorted(folded, key=lambda finding: order.get((finding.where, finding.expression), len(order)))

    @property
    def muted(self) -> int:
        return len(_fold(finding for finding in self._all_findings if finding.is_muted))


def _fold(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each line: that of the kind with the smallest order, then the largest share; with the evidence of the others.

    A finding whose line is not known stands alone.
    """
    kinds = {kind.code: kind for kind in KINDS}
    groups: dict[object, list[Finding]] = {}
    for position, finding in enumerate(findings):
        is_alone = finding.where == NO_LINE or kinds[finding.code].is_alone
        groups.setdefault(position if is_alone else (finding.where, finding.expression), []).append(finding)
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
    """The evidence of the other finding of a line. Its cause is added if both are of the same kind and their causes differ."""
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
