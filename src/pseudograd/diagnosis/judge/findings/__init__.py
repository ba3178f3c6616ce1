"""The kinds of findings. Every file of this folder but `kind.py` is one kind of finding: its `KIND`, a row.

Order, `--fail-on`, page, JSON and docs read `KINDS`; no list names the files.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import replace

from ....wording import shortened
from ...records import Finding
from .kind import Evidence, Kind, part

__all__ = ["CODES", "KINDS", "Evidence", "Kind", "Results", "describe"]


def _rows() -> tuple[Kind, ...]:
    names = [module.name for module in pkgutil.iter_modules(__path__) if module.name != "kind"]
    rows: list[Kind] = [importlib.import_module(f"{__name__}.{name}").KIND for name in names]
    return tuple(sorted(rows, key=lambda kind: kind.order))


KINDS = _rows()  # by their order
CODES = tuple(sorted(kind.as_code for kind in KINDS))  # by number, for the table that `lint` shares


class Results(Evidence):
    """Each field of `Report` by its name. `Diagnosis` makes one when its context has ended."""

    @part
    def _all_findings(self) -> Iterable[Finding]:
        """Findings that somebody declared deliberate are among them, muted."""
        findings = [finding for kind in KINDS for finding in kind.find(self)]
        is_left_out = self.deliberate.code
        return [
            replace(finding, is_muted=True) if is_left_out(finding.number, finding.where) else finding
            for finding in findings
        ]

    @part
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
    """One finding for each line: of the kind with the smallest order, with the evidence of the others."""
    rows = {kind.code: kind for kind in KINDS}
    groups: dict[object, list[Finding]] = {}
    for number, finding in enumerate(findings):
        is_alone = finding.where == "?" or rows[finding.code].is_alone
        groups.setdefault(number if is_alone else (finding.where, finding.expression), []).append(finding)
    folded = []
    for group in groups.values():
        first = min(group, key=lambda finding: (rows[finding.code].order, -finding.share))
        rest = tuple(dict.fromkeys(_neighbour_of(first, other) for other in group if other.evidence != first.evidence))
        modules = list(dict.fromkeys(finding.module for finding in group if finding.module))
        issue = next((finding.issue for finding in group if finding.issue), None)
        folded.append(replace(first, also=rest, issue=issue, module=shortened(modules, 4) or None))
    return folded


def _neighbour_of(first: Finding, other: Finding) -> str:
    """The evidence of another finding of the line. One of the same kind can have another cause."""
    has_own_cause = other.code == first.code and other.cause != first.cause
    return f"{other.evidence} ({other.cause})" if has_own_cause else other.evidence


def describe(findings: Iterable[Finding]) -> list[dict[str, object]]:
    """The meaning of each code of these findings."""
    codes = {finding.code for finding in findings}
    names = "code", "number", "meaning", "next_step", "protects"
    return [{name: getattr(kind, name) for name in names} for kind in KINDS if kind.code in codes]
