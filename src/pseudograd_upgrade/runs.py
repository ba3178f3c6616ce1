"""Runs the program in an interpreter, with what hears it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pseudograd.listen.program import follow as programs
from pseudograd.rewrite.standard_input import StandardInput

from .interpreters import Interpreter
from .recorded import OTHER_ORDER, Recorded, of_content
from .schedule import Schedule

_SHOWN = 12  # lines of stderr
# Sums go in another order: other vectors, another number of threads.
_OTHER_ORDER = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}


@dataclass
class Runner:
    """program: with -m in front where it is a module, and its arguments. home: what goes onto the path. on_run: hears of each run."""

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
    ) -> Recorded:
        self.count += 1
        self.on_run(self.count, _said(interpreter, schedule, other_order, pin, lines))
        around, threads = _order(other_order)
        path = os.pathsep.join([self.home, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {"PYTHONPATH": path, "PYTHONHASHSEED": str(self.seed), **around, **interpreter.environment}
        asked = {"seed": self.seed, "threads": threads, "schedule": list(schedule), "pin": pin, "lines": lines}
        job = {"module": interpreter.follows, "asked": {**asked, **interpreter.asked}}
        with self._stdin.open_for_run() as stdin:
            command = [interpreter.path, *self.program]
            done = programs.run(command, job, stdin=stdin, is_quiet=True, environment=environment)
        return _recorded(done, interpreter)


def _recorded(done: programs.Run, interpreter: Interpreter) -> Recorded:
    stderr = done.stderr.decode(errors="replace").rstrip().splitlines()[-_SHOWN:]
    content = next((part.content for part in done.parts if part.is_main and part.content), None)
    if content is None:
        content = {"torch": interpreter.torch, "sites": [], "steps": {}, "losses": []}
    found = of_content(content, done.status, stderr, dict.fromkeys(done.errors))
    return replace(found, torch=interpreter.label(found.torch))


def _order(is_other: bool) -> tuple[dict[str, str], int | None]:
    """What sums go by: the environment and the number of threads, None for what they are."""
    if not is_other:
        return {}, None
    threads = 1 if os.environ.get("OMP_NUM_THREADS") != "1" else min(2, os.cpu_count() or 1)
    return {**_OTHER_ORDER, "OMP_NUM_THREADS": str(threads)}, threads


def _said(
    interpreter: Interpreter, schedule: Schedule, other_order: bool, pin: str | None, lines: Sequence[str] | None
) -> str:
    said = f"torch {interpreter.label(interpreter.torch)}"
    if other_order:
        said += f", {OTHER_ORDER}"
    if schedule.window is not None:
        first, last = schedule.window
        said += f", step {first}" if first == last else f", steps {first} to {last}"
    if pin is not None:
        said += f", pinned to {pin!r} {'everywhere' if lines is None else 'at ' + ', '.join(lines)}"
    return said + interpreter.said
