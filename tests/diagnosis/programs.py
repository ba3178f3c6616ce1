"""Whole training programs for diagnose: those with one planted fault and those without, how they are written, run and judged.

A program is a function that trains something inside `diagnose` and returns the diagnosis. The line with the fault has the comment
`# fault: KIND`.
"""

import functools
import importlib
import inspect
import pickle
import pkgutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.records import Finding

from ..distributed import two_processes
from ..importing import can_import

_MARK = "# fault: "
Run = Callable[[], Diagnosis]


@dataclass(frozen=True)
class Outcome:
    """The parts of a diagnosis that a test reads. Travels between processes."""

    findings: list[Finding]
    starved: dict[str, str]  # by the name of the parameter: the line of the cause
    errors: list[str]

    @property
    def loud(self) -> list[Finding]:
        """Findings that ask for a change. The others say that something is meant, such as the clip of a policy."""
        return [finding for finding in self.findings if not finding.next_step.startswith("None")]


@dataclass(frozen=True)
class Program:
    """code: of the only finding that is expected; None for a healthy program. parameters: those that starve because of the fault.
    needs: a package that may be missing.
    """

    run: Run
    code: str | None = None
    parameters: tuple[str, ...] = ()
    needs: str | None = None
    ranks: int = 1

    @property
    def name(self) -> str:
        return f"{self.run.__module__.rpartition('.')[2]}/{self.run.__name__}"

    @property
    def is_runnable(self) -> bool:
        return self.needs is None or can_import(self.needs)

    @property
    def fault(self) -> tuple[str, str]:
        """The line of the fault, and its kind."""
        lines, first = inspect.getsourcelines(self.run)
        marked = [(number, line) for number, line in enumerate(lines, first) if _MARK in line]
        assert len(marked) == 1, f"{self.name} must have one line with {_MARK!r}, has {len(marked)}"
        ((number, line),) = marked
        file = Path(inspect.getfile(inspect.unwrap(self.run)))
        return f"{file.parent.name}/{file.name}:{number}", line.rpartition(": ")[2].strip()


_programs: list[Program] = []


def planted(code: str | None, *parameters: str, needs: str | None = None, ranks: int = 1) -> Callable[[Run], Run]:
    """The program has one fault: a finding with this code at the marked line. These parameters starve because of it."""

    def register(run: Run) -> Run:
        _programs.append(Program(run, code, parameters, needs, ranks))
        return run

    return register


def clean(needs: str | None = None, ranks: int = 1) -> Callable[[Run], Run]:
    """The program is as a competent person would write it."""
    return planted(None, needs=needs, ranks=ranks)


def load_programs(folder: str) -> list[Program]:
    """The programs of all files of a folder, "planted" or "clean"."""
    package = importlib.import_module(f"{__package__}.{folder}")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return [program for program in _programs if program.run.__module__.startswith(package.__name__)]


def run_here(program: Program) -> Outcome:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are the program's
        d = program.run()
        assert d.backwards, f"{program.name}: no backward pass was recorded"
        starved = {record.parameter: "?" if record.cause is None else record.cause.where for record in d.starved}
        return Outcome(d.findings, starved, d.errors)


def run_on_two_ranks(programs: Sequence[Program]) -> dict[str, list[Outcome]]:
    """Run them in turn in one pair of processes: the outcomes of both ranks, by the name of the program."""
    with tempfile.TemporaryDirectory() as folder:
        names = [program.name for program in programs]
        two_processes.run(functools.partial(_run_on_a_rank, names, Path(folder)))
        outcomes = [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in (0, 1)]
        return {name: [outcome[name] for outcome in outcomes] for name in names}


def _run_on_a_rank(names: list[str], folder: Path, rank: int) -> None:
    outcomes = {}
    for program in load_programs("planted") + load_programs("clean"):
        if program.name in names:
            try:
                outcomes[program.name] = run_here(program)
            except Exception as error:
                outcomes[program.name] = Outcome([], {}, [f"it raised {type(error).__name__}: {error}"])
    (folder / str(rank)).write_bytes(pickle.dumps(outcomes))


def find_mistakes(program: Program, outcome: Outcome) -> Iterator[str]:
    """What `diagnose` gets wrong about the program, in sentences."""
    yield from (f"an error of pseudograd: {error}" for error in outcome.errors)
    if program.code is None:
        yield from (f"a finding in a healthy program: {_describe(finding)}" for finding in outcome.loud)
        return
    where, _ = program.fault
    hits = [finding for finding in outcome.findings if finding.code == program.code and finding.where.endswith(where)]
    if not hits:
        yield f"no finding {program.code} at {where}"
    yield from (f"another finding: {_describe(finding)}" for finding in outcome.loud if finding not in hits)
    for parameter in program.parameters:
        if not outcome.starved.get(parameter, "nowhere").endswith(where):
            yield f"{parameter} must starve by {where}, got {outcome.starved.get(parameter, 'no starving')}"
    yield from (f"another parameter starves: {name}" for name in outcome.starved if name not in program.parameters)


def _describe(finding: Finding) -> str:
    return f"{finding.code} at {finding.where} `{finding.expression}`: {finding.evidence}; {finding.cause}"
