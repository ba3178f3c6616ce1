"""The fields of a report, made from the evidence of one diagnosis."""

from __future__ import annotations

from collections.abc import Iterable

from ..count.leaf import Leaf
from ..count.stalls import Stall
from ..count.whatif import Change
from ..records import Copied, Finding
from . import findings
from .copied import copies
from .dead_units import calm_lines
from .findings.kind import Evidence, part
from .norms import History, Norm, histories, norms_of


class Results(Evidence):
    """Each field of `Report` by its name. `Diagnosis` makes one when its context has ended."""

    @property
    def backwards(self) -> int:
        return self.recorder.backwards

    @property
    def errors(self) -> list[str]:
        return self.noted.lines

    @part
    def _all_findings(self) -> Iterable[Finding]:
        return findings.find_all(self)

    @part
    def findings(self) -> Iterable[Finding]:
        folded = findings.fold(finding for finding in self._all_findings if not finding.is_muted)
        return findings.sort_findings(folded, self.sites)

    @property
    def muted(self) -> int:
        return len(findings.fold(finding for finding in self._all_findings if finding.is_muted))

    @part
    def calm(self) -> Iterable[str]:
        return [*self.starving.calm(), *calm_lines(self.partly)]

    @part
    def copied(self) -> Iterable[Copied]:
        return copies(tally for tally in self.tallies if tally.calls)

    @property
    def _measured(self) -> list[Leaf]:
        """The parameters whose norms were measured."""
        return [leaf for _, leaf in self.leaves if leaf.sizes is not None]

    @part
    def norms(self) -> Iterable[Norm]:
        return norms_of(self._measured)

    @part
    def stalled(self) -> Iterable[Stall]:
        return [steps.record for steps in self.stalls.parameters() if not steps.keeps_rest]

    @part
    def history(self) -> Iterable[History]:
        return histories(self._measured, self.sensitivity, self.stalled)

    @part
    def parameters(self) -> Iterable[str]:
        yield from (leaf.name for _, leaf in self.leaves)
        yield from (leaf.name for crowd in self.leaves.crowds.values() for leaf in crowd.members.values())

    @property
    def whatif(self) -> dict[str, list[Change]]:
        return self.asking.answers() if self.asking else {}

    @property
    def inexact(self) -> dict[str, list[str]]:
        return self.asking.inexact if self.asking else {}

    @property
    def untouched(self) -> list[str]:
        return self.asking.untouched if self.asking else []

    @property
    def unsensed(self) -> dict[str, int]:
        return dict(self.asking.meter.refused) if self.asking and self.asking.meter else {}
