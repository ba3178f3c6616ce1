"""A diagnosis as `lint` shows what it finds: each finding at its file and line, with its code; what is known already, and what is new."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pseudograd_notices.formats import FORMATS, Report
from pseudograd_notices.notice import Key, Notice, Problem, baseline_text, new_notices

from ..judge import findings
from ..records import Finding


def _place(where: str, program: str) -> tuple[str, int]:
    """What was seen at no line is told of the program itself."""
    file, _, line = where.rpartition(":")
    return (file, int(line)) if file and line.isdigit() else (program, 0)


def notice(one: Finding, program: str) -> Notice:
    """At no line it is known by the parameters that it is about."""
    path, line = _place(one.where, program)
    what = one.expression or ", ".join(one.parameters)
    return Notice(one.number, one.code, path, line, 0, line, 0, f"{one.evidence}; {one.cause}", what)


@dataclass(frozen=True)
class Output:
    """What `--baseline`, `--write-baseline`, `--output-format` and `--output-file` ask for. program: what is run."""

    program: str
    format: str = "text"
    file: Path | None = None
    known: Counter[Key] | None = None
    to_be_known: Path | None = None

    def is_known(self, number: str, where: str, expression: str) -> bool:
        path, line = _place(where, self.program)
        one = Notice(number, "", path, line, 0, line, 0, "", expression)
        return self.known is not None and self.known[one.key] > 0

    def new(self, found: Any) -> Any:
        """The same diagnosis without the findings that are known; it says how many these were."""
        if self.known is None:
            return found
        some = [notice(one, self.program) for one in found.findings]
        told = set(map(id, new_notices(some, self.known)))
        left = [one for one, shown in zip(found.findings, some, strict=True) if id(shown) in told]
        return found.without_known(left)

    def rendered(self, found: Any) -> str:
        """In the format that was asked for. What nobody saw is a problem, so that an empty report is not taken for a clean one."""
        if self.format == "text":
            return f"{found}\n"
        problems = [Problem(self.program, 0, f"{one} was not seen to its end") for one in found.unseen]
        if not found.backwards:
            problems.append(Problem(self.program, 0, "no backward pass was seen, so nothing is known"))
        shown = self._notices(found)
        return FORMATS[self.format](Report("diagnose", shown, problems, findings.CODES, known=len(found.known)))

    def as_baseline(self, found: object) -> str:
        return baseline_text(self._notices(found))

    def _notices(self, found: Any) -> Sequence[Notice]:
        return [notice(one, self.program) for one in found.findings]
