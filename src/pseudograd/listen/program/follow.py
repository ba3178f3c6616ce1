"""Run a program for a command, unedited and by python itself.

The program runs in a process of its own, so it runs as without us. In it, and in every python process that it starts, `process` begins what
the command wants to do there. Each of these processes writes a part of the answer, and the command reads the parts.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ...errors import must
from .signals import handle_signals, hold_signals

_PATIENCE = 15.0  # seconds that a program has to end after SIGTERM
_SECONDS_TO_CLEAN_UP = 2.0  # for a program whose command was stopped
_SECONDS_BETWEEN_LOOKS = 0.05
# The code and `__file__` name a file that stays: a tracer, such as coverage, reads its lines when the folder of the run is gone.
_RUN_FILE = """\
with open({0!r}, encoding="utf-8") as file:
    exec(compile(file.read(), {0!r}, "exec"))
__file__ = {0!r}
"""


def check(where: str, program: str, is_module: bool) -> None:
    """Raise an error if python could not run the program."""
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise ValueError(
            f"{where}: python must not be run with -E, -I or -S, which keep its children from being followed. Leave it out."
        )
    if not is_module:
        path = Path(program)
        if not (path.is_file() or (path / "__main__.py").is_file()):
            raise ValueError(must(where, "the script", "be a file", program))
        return
    package = program.partition(".")[0]
    sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    finally:
        sys.path.remove(os.getcwd())
    if spec is None:
        remedy = f"No module named {package}"
        raise ValueError(must(where, "the module", "be one that python can run", program, remedy))


class Enough(SystemExit):
    """Raised inside a program to end it, because the command has seen enough."""

    def __init__(self) -> None:
        super().__init__(0)


@dataclass(frozen=True)
class Part:
    """What one process of the program has reported."""

    process: int
    rank: int | None  # in the distributed job of the process; None without a job
    is_main: bool
    content: Any = None

    def __str__(self) -> str:
        return f"process {self.process}" if self.rank is None else f"rank {self.rank}"


@dataclass(frozen=True)
class Run:
    """One run of a program for a command."""

    status: int
    parts: tuple[Part, ...]
    unseen: tuple[Part, ...] = ()  # processes that had something to report, but ended before they wrote it
    errors: tuple[str, ...] = ()  # errors of ours, not of the program
    stdout: bytes = b""
    stderr: bytes = b""

    def last_lines(self, most: int) -> tuple[str, ...]:
        """The last lines of the stderr of a quiet run, and before them half as many of its stdout, where pytest writes failures."""
        out, err = (text.decode(errors="replace").rstrip().splitlines() for text in (self.stdout, self.stderr))
        return (*out[-(most // 2) :], *err[-most:])


def command_of(program: str, arguments: Sequence[str], is_module: bool) -> list[str]:
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, *(["-m"] if is_module else []), program, *arguments]


def run(
    command: Sequence[str],
    job: Mapping[str, object],
    *,
    stdin: IO[bytes] | int | None = None,
    is_quiet: bool = False,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> Run:
    """Run the command with the job in each of its python processes.

    is_quiet: what the program prints is returned, not shown.
    environment: further variables.
    seconds: the time after which the program gets SIGTERM.
    """
    with _followed(job, {**os.environ, **(environment or {})}) as (folder, environment):
        status, stdout, stderr = _run_process(command, environment, stdin, is_quiet, seconds)
        parts = [Part(**pickle.loads(file.read_bytes())) for file in _files(folder, "part")]
        marks = {file.stem: Part(**json.loads(file.read_text(encoding="utf-8"))) for file in _files(folder, "mark")}
        reported = {file.stem for file in _files(folder, "part")}
        return Run(
            status,
            tuple(sorted(parts, key=_order)),
            tuple(sorted((mark for name, mark in marks.items() if name not in reported), key=_order)),
            tuple(file.read_text(encoding="utf-8") for file in _files(folder, "error")),
            stdout,
            stderr,
        )


def _files(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.glob(f"[0-9]*.{kind}"))


def _order(part: Part) -> tuple[object, ...]:
    return part.rank is not None, part.rank or 0, not part.is_main, part.process


@contextlib.contextmanager
def _followed(job: Mapping[str, object], environment: Mapping[str, str]) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder for the parts, and the environment in which each python process writes its part there."""
    folder = Path(tempfile.mkdtemp(prefix="pseudograd-"))
    try:
        source = Path(__file__).resolve().parent
        begin, hook = source / "sitecustomize.py", source.parents[1] / "import_hook.py"
        (folder / "sitecustomize.py").write_text(_RUN_FILE.format(str(begin)), encoding="utf-8")
        (folder / "pseudograd_import_hook.py").write_text(_RUN_FILE.format(str(hook)), encoding="utf-8")
        (folder / "root.txt").write_text(str(source.parents[2]), encoding="utf-8")
        (folder / "job.json").write_text(json.dumps({**job, "parent": os.getpid()}), encoding="utf-8")
        others = environment.get("PYTHONPATH")
        path = os.pathsep.join([str(folder), *([others] if others else [])])
        yield folder, {**environment, "PYTHONPATH": path}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_process(
    command: Sequence[str],
    environment: dict[str, str],
    stdin: IO[bytes] | int | None,
    is_quiet: bool,
    seconds: float | None = None,
) -> tuple[int, bytes, bytes]:
    """Run the command. Returns the exit status as a shell has it, and the stdout and stderr of a quiet run."""
    sys.stdout.flush()
    sys.stderr.flush()
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)] if is_quiet else []
        streams: dict[str, Any] = dict(zip(("stdout", "stderr"), outputs, strict=False))
        # The program inherits the file descriptors that this process has from its shell.
        process = subprocess.Popen(command, env=environment, stdin=stdin, close_fds=False, **streams)
        if not is_quiet:  # a quiet run is one of several, and has no report: a signal ends it with its command
            stack.enter_context(_signals_reach(process))
        status = _wait(process, seconds)
        stdout, stderr = map(_load, outputs) if outputs else (b"", b"")
        # Popen gives the negative number of a signal that ended the process, a shell 128 plus this number.
        return status if status >= 0 else 128 - status, stdout, stderr


def _load(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _wait(process: subprocess.Popen[bytes], seconds: float | None) -> int:
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(seconds)
        return _end(process, _PATIENCE)
    except BaseException:  # this process has to stop, so the program has to end, too
        with hold_signals():
            _end(process, _SECONDS_TO_CLEAN_UP)
        raise


def _end(process: subprocess.Popen[bytes], patience: float) -> int:
    """End the program and, on a system with /proc, the processes that it started: by SIGTERM, and by SIGKILL after `patience` seconds."""
    family, parents = {process.pid}, _parents()
    while children := {child for child, parent in parents.items() if parent in family} - family:
        family |= children
    started = family - {process.pid}
    process.terminate()
    _send(signal.SIGTERM, started)
    end = time.monotonic() + patience
    while process.poll() is None or started & _parents().keys():
        if time.monotonic() > end:
            process.kill()
            if started:  # never on Windows, which has no SIGKILL
                _send(signal.SIGKILL, started)
            break
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return process.wait()


def _send(number: signal.Signals, processes: set[int]) -> None:
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended
            os.kill(process, number)


def _parents() -> dict[int, int]:
    """The parent of each running process; empty on a system without /proc."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            state, parent = file.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state != "Z":  # a zombie has ended already
                parents[int(file.parent.name)] = int(parent)
    return parents


@contextlib.contextmanager
def _signals_reach(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass SIGTERM on, and Ctrl-C unless the terminal sends it to both processes. This process goes on: it has to write the report."""
    timers: list[threading.Timer] = []

    def terminate(number: int, frame: object) -> None:
        process.send_signal(number)
        timers.append(threading.Timer(_PATIENCE, process.kill))
        timers[-1].daemon = True
        timers[-1].start()

    def interrupt(number: int, frame: object) -> None:
        if not _is_in_front():
            process.send_signal(number)

    try:
        # A signal that is ignored here, as under nohup, is ignored by the program, too.
        with handle_signals({} if os.name == "nt" else {signal.SIGTERM: terminate, signal.SIGINT: interrupt}):
            yield
    finally:
        for timer in timers:
            timer.cancel()


def _is_in_front() -> bool:
    """Does the terminal send Ctrl-C to this process and to the program, which is in the same group?"""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
