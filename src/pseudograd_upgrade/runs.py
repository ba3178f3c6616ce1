"""Interpreters, and runs of the program in them with what hears it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from pseudograd.errors import must
from pseudograd.listen.program import follow as programs
from pseudograd.rewrite.standard_input import StandardInput

from .recording import OTHER_ORDER, SHAKEN, Recording, read_content
from .schedule import Schedule

_PYTHON, _TORCH = (3, 10), (2, 8)
_SECONDS = 60
_LINES = 12  # of stderr that an answer shows
_ASK = """
import importlib.metadata, importlib.util, json, sys
def version(name):
    try:
        return importlib.metadata.version(name) if importlib.util.find_spec(name) else None
    except importlib.metadata.PackageNotFoundError:
        return None
print(json.dumps({"python": sys.version_info[:2], "torch": version("torch"), "extensions": version("typing_extensions")}))
"""
# Sums go in another order: other vectors, another number of threads.
_ANOTHER_ORDER = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}


@dataclass(frozen=True)
class Interpreter:
    """path: absolute, as it was given otherwise: a link into a virtual environment stays one. is_shaken: are parameters moved by roundings?
    module: what hears the program in its process.
    """

    path: str
    torch: str
    is_shaken: bool = field(default=False, kw_only=True)
    module: ClassVar[str] = "pseudograd_upgrade.following"

    def label(self, torch: str) -> str:
        """What a run is called, of a torch that says it is this one."""
        return torch

    @property
    def details(self) -> str:
        """What a line about a run says behind the torch."""
        return f", {SHAKEN}" if self.is_shaken else ""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of a run besides those of this process."""
        return {}

    @property
    def options(self) -> Mapping[str, object]:
        """What the module in the process is told."""
        return {"is_shaken": self.is_shaken}


def find_interpreter(argument: str, name: str) -> Interpreter:
    """The interpreter behind a path or a name on PATH, asked without importing its torch; ValueError where it cannot run the program."""
    file = shutil.which(name)
    if file is None:
        raise ValueError(must("upgrade", argument, "be an interpreter that can be run", name))
    path = os.path.abspath(file)
    try:
        facts = json.loads(ask_python(path, _ASK))
        python, torch = tuple(facts["python"]), facts["torch"]
    except (OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as error:
        raise ValueError(must("upgrade", argument, "be a python that can be run", name)) from error
    if torch is None:
        raise ValueError(must("upgrade", argument, "have torch", name, "Its python found none. Install it there"))
    if python < _PYTHON:
        raise ValueError(must("upgrade", argument, "be Python 3.10 or later", name, f"It is {python[0]}.{python[1]}"))
    if facts["extensions"] is None:
        raise ValueError(must("upgrade", argument, "have typing_extensions", name, "Install it there"))
    if tuple(int(part) for part in torch.split("+")[0].split(".")[:2]) < _TORCH:
        raise ValueError(must("upgrade", argument, "have torch 2.8 or later", name, f"It has {torch}"))
    return Interpreter(path, torch)


def ask_python(path: str, program: str, seconds: float = _SECONDS) -> str:
    """What a short program prints there."""
    command, pipes = [path, "-c", program], {"capture_output": True, "stdin": subprocess.DEVNULL}
    return str(subprocess.run(command, text=True, timeout=seconds, check=False, **pipes).stdout)  # type: ignore[call-overload]


@contextlib.contextmanager
def our_packages() -> Iterator[str]:
    """A folder with our packages and nothing else, for the path of an interpreter that may have other ones, or none."""
    home = Path(__file__).resolve().parents[1]
    packages = [path for path in (home / "pseudograd", *home.glob("pseudograd_*")) if path.is_dir()]
    with tempfile.TemporaryDirectory(prefix="pseudograd-path-") as folder:
        for package in packages:
            link = Path(folder) / package.name
            try:
                link.symlink_to(package, target_is_directory=True)
            except OSError:  # a system without links
                shutil.copytree(package, link)
        yield folder


@dataclass
class Runner:
    """program: with -m in front of a module, and its arguments. home: the folder of our packages. on_run: called with each run's number and
    what it is.
    """

    program: Sequence[str]
    home: str
    seed: int
    on_run: Callable[[int, str], None]
    count: int = 0

    def __post_init__(self) -> None:
        self._stdin = StandardInput()

    def run(
        self,
        interpreter: Interpreter,
        schedule: Schedule,
        *,
        other_order: bool = False,
        pin: str | None = None,
        lines: Sequence[str] | None = None,
    ) -> Recording:
        self.count += 1
        self.on_run(self.count, _describe(interpreter, schedule, other_order, pin, lines))
        threads = None
        path = os.pathsep.join([self.home, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {"PYTHONPATH": path, "PYTHONHASHSEED": str(self.seed), **interpreter.environment}
        if other_order:
            threads = 1 if os.environ.get("OMP_NUM_THREADS") != "1" else min(2, os.cpu_count() or 1)
            environment |= {**_ANOTHER_ORDER, "OMP_NUM_THREADS": str(threads)}
        options = {"seed": self.seed, "threads": threads, "schedule": list(schedule), "pin": pin, "lines": lines}
        job = {"module": interpreter.module, "asked": {**options, **interpreter.options}}
        with self._stdin.open_for_run() as stdin:
            command = [interpreter.path, *self.program]
            done = programs.run(command, job, stdin=stdin, is_quiet=True, environment=environment)
        stderr = done.stderr.decode(errors="replace").rstrip().splitlines()[-_LINES:]
        content = next((part.content for part in done.parts if part.is_main and part.content), None)
        if content is None:
            content = {"torch": interpreter.torch, "sites": [], "steps": {}, "losses": []}
        recording = read_content(content, done.status, stderr, dict.fromkeys(done.errors))
        return replace(recording, torch=interpreter.label(recording.torch))


def _describe(
    interpreter: Interpreter, schedule: Schedule, other_order: bool, pin: str | None, lines: Sequence[str] | None
) -> str:
    text = f"torch {interpreter.label(interpreter.torch)}"
    if other_order:
        text += f", {OTHER_ORDER}"
    if schedule.window is not None:
        first, last = schedule.window
        text += f", step {first}" if first == last else f", steps {first} to {last}"
    if pin is not None:
        text += f", pinned to {pin!r} {'everywhere' if lines is None else 'at ' + ', '.join(lines)}"
    return text + interpreter.details
