"""Whole training programs for diagnose: those with one planted fault and those without, how they are written, found and judged.

A program is a function that trains something inside `diagnose` and returns the diagnosis. Its fault stands in it on the line with
`# fault: KIND`; a fault that has no line (a parameter that nobody uses) says so with `# fault nowhere: KIND`.
`python -m tests.diagnosis.programs` prints a table of all of them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pickle
import pkgutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.records import Finding

from ..distributed import two_processes
from ..importing import can_import

_MARK, _NOWHERE = "# fault: ", "# fault nowhere: "


@dataclass(frozen=True)
class Outcome:
    """What a test looks at of a diagnosis; travels between processes."""

    findings: list[Finding]
    starved: dict[str, str]  # by the name of the parameter: the line of the cause
    errors: list[str]

    @property
    def loud(self) -> list[Finding]:
        """Findings that ask for something. A calm one says of what is meant, such as the clip of a policy, that it is."""
        return [one for one in self.findings if not one.next_step.startswith("None")]


@dataclass(frozen=True)
class Program:
    """code: of the one finding that is expected; None for a healthy program. parameters: which starve for that reason. missed: why the
    fault is not found today.
    """

    run: Callable[[], Diagnosis]
    code: str | None = None
    parameters: tuple[str, ...] = ()
    needs: str | None = None  # a package that may be missing
    ranks: int = 1
    missed: str | None = None

    @property
    def name(self) -> str:
        return f"{self.run.__module__.rpartition('.')[2]}/{self.run.__name__}"

    @property
    def is_runnable(self) -> bool:
        return self.needs is None or can_import(self.needs)

    @property
    def marked(self) -> tuple[str, str]:
        """Where the fault stands, and its kind."""
        lines, first = inspect.getsourcelines(self.run)
        found = [(at, line) for at, line in enumerate(lines, first) if _MARK in line or _NOWHERE in line]
        assert len(found) == 1, f"{self.name} must have one line with {_MARK!r}, has {len(found)}"
        ((at, line),) = found
        file = Path(inspect.getfile(inspect.unwrap(self.run)))
        where = "?" if _NOWHERE in line else f"{file.parent.name}/{file.name}:{at}"
        return where, line.rpartition(": ")[2].strip()


_all: list[Program] = []


def planted(
    code: str, *parameters: str, needs: str | None = None, ranks: int = 1, missed: str | None = None
) -> Callable[[Callable[[], Diagnosis]], Callable[[], Diagnosis]]:
    """The program has one fault, which is a finding of this code at the marked line, and these parameters starve by it."""

    def keep(run: Callable[[], Diagnosis]) -> Callable[[], Diagnosis]:
        _all.append(Program(run, code, parameters, needs, ranks, missed))
        return run

    return keep


def clean(needs: str | None = None, ranks: int = 1) -> Callable[[Callable[[], Diagnosis]], Callable[[], Diagnosis]]:
    """The program is as a competent person would write it."""

    def keep(run: Callable[[], Diagnosis]) -> Callable[[], Diagnosis]:
        _all.append(Program(run, None, (), needs, ranks))
        return run

    return keep


def of(package: ModuleType) -> list[Program]:
    """All that the files of a package hold."""
    for found in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{found.name}")
    return [one for one in _all if one.run.__module__.startswith(package.__name__)]


def outcome(program: Program) -> Outcome:
    """Run it here."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are the program's
        d = program.run()
        assert d.backwards, f"{program.name}: no backward was seen"
        starved = {one.parameter: "?" if one.cause is None else one.cause.where for one in d.starved}
        return Outcome(d.findings, starved, d.to_json()["errors"])


def outcomes_on_two_ranks(programs: Sequence[Program]) -> dict[str, list[Outcome]]:
    """Run them in turn in one pair of processes: what each rank found, by the name of the program."""
    with tempfile.TemporaryDirectory() as folder:
        names = [one.name for one in programs]
        packages = sorted({one.run.__module__.rpartition(".")[0] for one in programs})
        two_processes.run(functools.partial(_keep_outcomes, packages, names, Path(folder)))
        return {name: [pickle.loads(_kept(Path(folder), name, rank).read_bytes()) for rank in (0, 1)] for name in names}


def _keep_outcomes(packages: list[str], names: list[str], folder: Path, rank: int) -> None:
    by_name = {one.name: one for package in packages for one in of(importlib.import_module(package))}
    for name in names:
        try:
            found = outcome(by_name[name])
        except Exception as error:
            found = Outcome([], {}, [f"it raised {type(error).__name__}: {error}"])
        _kept(folder, name, rank).write_bytes(pickle.dumps(found))


def _kept(folder: Path, name: str, rank: int) -> Path:
    return folder / f"{name.replace('/', '.')}.{rank}"


def amiss(program: Program, found: Outcome) -> Iterator[str]:
    """What is not as it should be, in sentences."""
    yield from (f"an error of ours: {error}" for error in found.errors)
    if program.code is None:
        yield from (f"a healthy program is told: {shown(one)}" for one in found.loud)
        return
    where, _ = program.marked
    hits = [one for one in found.findings if one.code == program.code and one.where.endswith(where)]
    if not hits:
        yield f"{program.code} at {where} was not found"
    yield from (f"told besides: {shown(one)}" for one in found.loud if one not in hits)
    for parameter in program.parameters:
        if not found.starved.get(parameter, "nowhere").endswith(where):
            yield f"{parameter} must starve by {where}, got {found.starved.get(parameter, 'no starving')}"
    yield from (f"{one} starves besides" for one in found.starved if one not in program.parameters)


def shown(finding: Finding) -> str:
    return f"{finding.code} at {finding.where} `{finding.expression}`: {finding.evidence}; {finding.cause}"


def table() -> None:
    """A line for each program that is as it should be, and what is amiss with the others."""
    from . import clean as healthy
    from . import planted as faulty

    chosen = [one for one in (*of(faulty), *of(healthy)) if all(word in one.name for word in sys.argv[1:])]
    pairs = [one for one in chosen if one.ranks == 2]
    ranked = outcomes_on_two_ranks(pairs) if pairs else {}
    for one in chosen:
        if not one.is_runnable:
            continue
        expected = "nothing" if one.code is None else f"{one.code} at {one.marked[0]} ({one.marked[1]})"
        try:
            found = ranked.get(one.name) or [outcome(one)]
            reasons = [reason for each in found for reason in amiss(one, each)]
        except Exception as error:
            reasons = [f"it raised {type(error).__name__}: {error}"]
        word = "missed" if one.missed and reasons else "FAIL" if reasons else "ok  "
        print(f"{word} {one.name}: {expected}", *reasons, sep="\n       ", flush=True)


if __name__ == "__main__":
    importlib.import_module("tests.diagnosis.programs").table()  # this file's own copy of the list stays empty
