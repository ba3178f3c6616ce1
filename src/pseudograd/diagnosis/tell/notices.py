"""A diagnosis in the formats of `lint`, its baseline, and the findings that a baseline does not have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pseudograd_notices.formats import FORMATS
from pseudograd_notices.formats import Report as Notices
from pseudograd_notices.notice import Key, Notice, Problem, baseline_text, new_notices
from pseudograd_notices.options import NO_CHOICE, Chosen

from ..judge import findings
from ..processes import ProgramReport
from ..records import Finding


@dataclass(frozen=True)
class Output:
    """How and where a command writes its findings."""

    program: str  # the script or module
    format: str = "text"  # the value of `--output-format`
    file: Path | None = None  # the value of `--output-file`
    known: Counter[Key] | None = None  # the findings of the baseline
    new_baseline_file: Path | None = None  # the value of `--write-baseline`
    chosen: Chosen = NO_CHOICE

    def is_known(self, number: str, where: str, expression: str) -> bool:
        """Is this finding in the baseline, or do the settings leave its code out in this file?"""
        notice = self._notice(number, "", where, "", expression)
        is_in_baseline = self.known is not None and self.known[notice.rebase(self.chosen.settings.root).key] > 0
        return is_in_baseline or self.chosen.leaves_out(notice)

    def _notice(self, code: str, name: str, where: str, message: str, expression: str) -> Notice:
        """A finding without a line is a notice about the program itself."""
        file, _, digits = where.rpartition(":")
        path, line = (file, int(digits)) if file and digits.isdigit() else (self.program, 0)
        return Notice(code, name, path, line, 0, line, 0, message, expression)

    def _notices(self, report: ProgramReport) -> Sequence[Notice]:
        notices = []
        for finding in report.findings:
            expression = finding.expression or ", ".join(finding.parameters)
            message = f"{finding.evidence}; {finding.cause}"
            notices.append(self._notice(finding.number, finding.code, finding.where, message, expression))
        return notices

    def drop_known(self, report: ProgramReport) -> ProgramReport:
        """The same report without the findings of the baseline, which move to `known`."""
        if self.known is None:
            return report
        notices = self._notices(report)
        new = set(map(id, new_notices(notices, self.known, self.chosen.settings.root)))
        groups: dict[bool, list[Finding]] = {True: [], False: []}
        for finding, notice in zip(report.findings, notices, strict=True):
            groups[id(notice) in new].append(finding)
        return ProgramReport({**vars(report), "findings": groups[True], "known": groups[False]})

    def render(self, report: ProgramReport) -> str:
        """The report in the requested format. A process without a report is a problem, so an empty report does not pass."""
        if self.format == "text":
            return f"{report}\n"
        problems = [Problem(self.program, 0, f"{name} was not seen to its end") for name in report.unseen]
        if not report.backwards:
            problems.append(Problem(self.program, 0, "no backward pass was seen, so nothing is known"))
        notices = self._notices(report)
        return FORMATS[self.format](Notices("diagnose", notices, problems, findings.CODES, known=len(report.known)))

    def format_baseline(self, report: ProgramReport) -> str:
        assert self.new_baseline_file is not None
        return baseline_text(self._notices(report), self.chosen.own, self.new_baseline_file, self.chosen.settings.root)
