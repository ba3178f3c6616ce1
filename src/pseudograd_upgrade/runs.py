"""Interpreters, and runs of the program in them with a recorder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from pseudograd.errors import must
from pseudograd.listen.program import follow as programs
from pseudograd.rewrite.standard_input import StandardInput
from pseudograd.wording import counted

from .recording import OTHER_ORDER, SHAKEN, Recording, Schedule, SuiteRun, load_recording, load_suite

_OLDEST_PYTHON, OLDEST_TORCH = (3, 10), (2, 8)
MOST_RUNS, MOST_RUNS_OF_ROUTES = 17, 22  # that one answer can need
_LAST_LINES = 12  # that an answer shows
_DESCRIBE = """
import importlib.metadata, importlib.util, json, re, sys
packages = {}
for part in importlib.metadata.distributions():
    packages.setdefault(re.sub("[-_.]+", "-", str(part.metadata["Name"])).lower(), part.version)
torch = packages.get("torch") if importlib.util.find_spec("torch") else None
folders = [folder for folder in sys.path if folder]
print(json.dumps({"python": sys.version_info[:2], "torch": torch, "packages": packages, "folders": folders}))
"""
# Other vector instructions and another number of threads change the order of sums.
_OTHER_ORDER = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
# The text about each setting of a run, in the line about it. lines: those that are pinned; empty for all.
_DETAILS: dict[str, Callable[[Any], str]] = {
    "has_other_order": lambda _: OTHER_ORDER,
    "pin": lambda pin: f"pinned to {pin!r}",
    "lines": lambda lines: f"at {', '.join(lines)} alone",
    "is_shaken": lambda _: SHAKEN,
    "is_repeated": lambda _: "once more",
    "targets": lambda keys: f"for the arguments of {keys[-1][1]}",
    "is_cut": lambda _: "each line alone",
    "out": lambda lines: f"{', '.join(lines)} left out",
    "moved": lambda lines: f"{', '.join(lines)} moved off its point",
}


@dataclass(frozen=True)
class Interpreter:
    """A python with its torch, and how the program runs there.

    path: absolute; a link into a virtual environment stays a link. recorder: the module that records. settings: what it records, and what
    is changed in the run, such as a pin. environment: more variables of a run. route: the route through torch, if the question is about
    routes. python: the version of Python. packages: the versions of all packages, by name. folders: where this python looks for modules.
    """

    path: str
    torch: str
    recorder: str = "pseudograd_upgrade.recorder"
    settings: Mapping[str, object] = field(default_factory=dict, hash=False)
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    route: str = ""
    python: tuple[int, ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    folders: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def but(self, recorder: str = "", **settings: object) -> Interpreter:
        """A copy with another recorder or with more settings."""
        return replace(self, recorder=recorder or self.recorder, settings={**self.settings, **settings})

    def label(self, torch: str) -> str:
        """The name of a run whose torch reports this version."""
        return f"{torch} {self.route}".rstrip()

    def describe(self, schedule: Schedule) -> str:
        """The line about a run."""
        texts = [f"torch {self.label(self.torch)}"]
        if schedule.window is not None:
            first, last = schedule.window
            texts.append(f"step {first}" if first == last else f"steps {first} to {last}")
        texts += [text(self.settings[name]) for name, text in _DETAILS.items() if self.settings.get(name)]
        return ", ".join(texts)


def find_interpreter(argument: str, name: str) -> Interpreter:
    """The interpreter of a path, or of a name on PATH. ValueError if it cannot run the program; its torch is not imported."""

    def error(requirement: str, remedy: str | None = None) -> ValueError:
        return ValueError(must("upgrade", argument, requirement, name, remedy))

    file = shutil.which(name)
    if file is None:
        inside = Path(name, "Scripts/python.exe" if os.name == "nt" else "bin/python")
        raise error("be an interpreter that can be run", f"Name {inside}" if inside.is_file() else None)
    path = os.path.abspath(file)
    try:
        facts = json.loads(run_python(path, _DESCRIBE).stdout)
        python, torch = tuple(facts["python"]), facts["torch"]
    except (OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as reason:
        raise error("be a python that can be run") from reason
    if torch is None:
        raise error("have torch", "Its python found none. Install it there")
    for is_enough, requirement, remedy in (
        (python >= _OLDEST_PYTHON, "be Python 3.10 or later", f"It is {python[0]}.{python[1]}"),
        (parse_version(torch) >= OLDEST_TORCH, "have torch 2.8 or later", f"It has {torch}"),
    ):
        if not is_enough:
            raise error(requirement, remedy)
    folders = tuple(facts["folders"])
    return Interpreter(path, torch, python=python, packages=facts["packages"], folders=folders)


def parse_version(torch: str) -> tuple[int, ...]:
    """The first two numbers of a version of torch."""
    return tuple(int(part) for part in torch.split("+")[0].split(".")[:2])


def run_python(path: str, program: str) -> subprocess.CompletedProcess[str]:
    """Run a short program in another folder, so that it imports no files of this one."""
    command, folder = [path, "-c", program], tempfile.gettempdir()
    silent = subprocess.DEVNULL
    return subprocess.run(command, stdin=silent, capture_output=True, text=True, cwd=folder, timeout=120, check=False)


@contextlib.contextmanager
def open_runner(
    program: str, arguments: Sequence[str], is_module: bool, seed: int, limits: Limits | None = None
) -> Iterator[Runner]:
    """A runner of the program. Its interpreters get a folder on their path that holds our packages and nothing else."""
    programs.check("upgrade", program, is_module)
    home = Path(__file__).resolve().parents[1]
    packages = [home / "pseudograd", *(path for path in home.glob("pseudograd_*") if path.suffix in ("", ".py"))]
    with tempfile.TemporaryDirectory(prefix="pseudograd-path-") as folder:
        for package in packages:
            link = Path(folder) / package.name
            try:
                link.symlink_to(package, target_is_directory=package.is_dir())
            except OSError:  # a system without links
                (shutil.copytree if package.is_dir() else shutil.copy)(package, link)
        yield Runner([*(["-m"] if is_module else []), program, *arguments], folder, seed, limits or Limits())


class LimitError(Exception):
    """No further run is allowed."""


class Limits(NamedTuple):
    """seconds: the time limit of one run, which then ends with status 143. runs: the most runs of the command. steps: the backward passes
    after which a run ends. is_verbose: the output of the program is shown.
    """

    seconds: float | None = None
    runs: int | None = None
    is_verbose: bool = False
    steps: int | None = None


@dataclass
class Runner:
    """Runs the program. program: the command line after the interpreter. home: the folder with our packages. count: the runs so far."""

    program: list[str]
    home: str
    seed: int
    limits: Limits = field(default_factory=Limits)
    count: int = 0

    def __post_init__(self) -> None:
        self._stdin = StandardInput()
        self._seconds = 0.0  # the time of the last run

    def run(self, interpreter: Interpreter, schedule: Schedule) -> Recording:
        """Run the program once."""
        self._count_run(interpreter.describe(schedule))
        done = self.launch(interpreter, schedule)
        self._announce_cost(MOST_RUNS_OF_ROUTES if interpreter.route else MOST_RUNS)
        empty = {"torch": interpreter.torch, "steps": {}, "losses": []}
        content = next((part.content for part in done.parts if part.is_main and part.content), empty)
        recording = load_recording(content, done.status, done.last_lines(_LAST_LINES), dict.fromkeys(done.errors))
        return replace(recording, torch=interpreter.label(recording.torch))

    def run_suite(self, interpreter: Interpreter, schedule: Schedule, tests: Sequence[str] | None = None) -> SuiteRun:
        """Run a suite of pytest once. tests: the names of the tests to run; None for all."""
        scope = "" if tests is None else f", {counted(len(tests), 'test')}"
        self._count_run(f"{interpreter.describe(schedule)}{scope}")
        plugins = ",".join(filter(None, (os.environ.get("PYTEST_PLUGINS"), "pseudograd_upgrade.suite_plugin")))
        environment = {"PYTEST_PLUGINS": plugins}
        if tests is not None:
            file = Path(self.home) / "tests.json"
            file.write_text(json.dumps([*tests]), encoding="utf-8")
            environment["PSEUDOGRAD_UPGRADE_TESTS"] = str(file)
        recording = replace(interpreter.but("pseudograd_upgrade.suite_recorder"), environment=environment)
        done = self.launch(recording, schedule)
        self._announce_cost(None)
        contents = [part.content for part in done.parts if part.content]
        return load_suite(interpreter.torch, done.status, contents, done.last_lines(_LAST_LINES))

    def _count_run(self, text: str) -> None:
        """Print the line about the next run. Raises LimitError if no run is left."""
        if self.count == self.limits.runs:
            raise LimitError(self.count)
        self.count += 1
        print(f"upgrade: run {self.count}: {text}", file=sys.stderr, flush=True)

    def launch(self, interpreter: Interpreter, schedule: Schedule) -> programs.Run:
        path = os.pathsep.join([self.home, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {"PYTHONPATH": path, "PYTHONHASHSEED": str(self.seed), **interpreter.environment}
        limited = schedule._replace(last=self.limits.steps)
        settings = {"seed": self.seed, "schedule": list(limited), **interpreter.settings}
        if settings.get("has_other_order"):
            threads = 1 if os.environ.get("OMP_NUM_THREADS") != "1" else min(2, os.cpu_count() or 1)
            settings["threads"] = threads
            environment |= {**_OTHER_ORDER, "OMP_NUM_THREADS": str(threads)}
        recorder = {"module": interpreter.recorder, "settings": settings}
        command, limit = [interpreter.path, *self.program], self.limits.seconds
        with self._stdin.open_for_run() as stdin:
            began = time.monotonic()
            done = programs.run(command, recorder, stdin=stdin, is_quiet=True, environment=environment, seconds=limit)
            self._seconds = time.monotonic() - began
        if self.limits.is_verbose:
            for text in (done.stdout, done.stderr):
                print(text.decode(errors="replace").rstrip(), file=sys.stderr, flush=True)
        return done

    def _announce_cost(self, most: int | None) -> None:
        """Print the expected time after the first run. most: the most runs for an answer; None for a suite, whose tests decide."""
        if self.count != 1:
            return
        least, most_allowed = 2, min(filter(None, (most, self.limits.runs)), default=None)
        texts = [f"at least {least} runs, about {self._minutes(least)}"]
        if most_allowed is not None:
            texts.append(f"at most {most_allowed}, about {self._minutes(most_allowed)}")
        if most is None:
            texts.append("runs after the second have only the tests that differ")
        print(f"upgrade: the first run took {self._seconds:.0f} s: {'; '.join(texts)}", file=sys.stderr, flush=True)

    def _minutes(self, runs: int) -> str:
        minutes = runs * self._seconds / 60
        return f"{max(minutes, 0.1):.1f} minutes" if minutes < 10 else f"{minutes:.0f} minutes"
