"""A report with everything that a person reads: text, page, numbers for a logger. What writes these is imported when somebody asks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .records import Report

if TYPE_CHECKING:
    from .ranks import Difference
    from .records import Finding


class Readable(Report):
    """What `Diagnosis` and the report of a program have in common."""

    def to_json(self) -> dict[str, object]:
        """Everything, in plain lists, dictionaries and numbers."""
        from .tell.as_json import json_of

        return json_of(self)

    def metrics(self) -> dict[str, float]:
        """A flat dict for any logger: "pseudograd/findings/cut", "pseudograd/cut/gate.py:7", "pseudograd/norm/fc.weight" and so on."""
        from .tell.metrics import metrics_of

        return metrics_of(self)

    def __str__(self) -> str:
        from .tell.text import text

        return text(self)

    def _repr_html_(self) -> str:
        from ..notebook import framed
        from .tell.page import page

        return framed(page(self))

    def write_html(self, file: str | Path) -> Path:
        """Write one self-contained page. Raises ValueError where that fails; an older file stays until the new one is complete."""
        from ..listen.program.files import checked_file, write
        from .tell.page import page

        target = checked_file("diagnose", "file", Path(file))
        write("diagnose", "file", target, page(self))
        return target


class ProgramReport(Readable):
    """The report about a program with all its processes.

    processes: name, rank, backward passes and findings of each process. unseen: processes that ended without a report. differences: what
    one rank has and another rank lacks. known: findings that a baseline holds; they are not among `findings`.
    """

    processes: list[dict[str, object]]
    unseen: list[str]
    differences: list[Difference]
    known: tuple[Finding, ...] = ()

    def __init__(self, values: Mapping[str, object]) -> None:
        vars(self).update(values)

    def drop_known(self, known: tuple[Finding, ...]) -> ProgramReport:
        """The same report with these findings moved to `known`."""
        new = [finding for finding in self.findings if not any(finding is other for other in known)]
        return ProgramReport({**vars(self), "findings": new, "known": known})
