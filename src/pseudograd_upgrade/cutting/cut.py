"""Write a program of ten lines that shows the first difference of two torches, or say why there is none."""

from __future__ import annotations

import io
import json
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..differences import Difference
from ..recording import BACKWARD, FORWARD, UPDATE, Event, Schedule
from ..runs import Interpreter, Runner, run_python
from .call import Call, NoProgramError, Outcome, SameAloneError
from .recorder import Snapshot
from .shrink import LateError, Mismatch, shrink

_MOST_EVENTS = 4  # of those that come before the one that differs
_SECONDS_TO_SHRINK = 60.0
_WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Cut:
    """program: the text of the program. prints: its output under the older and the newer torch. why: the reason if there is no program.
    is_same_alone: the call alone gives the same under both, so the difference came with its arguments.
    """

    program: str = ""
    prints: tuple[str, ...] = ()
    why: str = ""
    is_same_alone: bool = False

    def lines(self, versions: tuple[str, str]) -> list[str]:
        """The lines of the answer."""
        if not self.program:
            return [f"not cut out: {self.why}"]
        program = [f"  {line}" for line in self.program.splitlines()]
        return ["cut out, this alone shows it:", *program, *self._output_lines(versions)]

    def file(self, versions: tuple[str, str]) -> str:
        return "".join([self.program, *(f"# {line}\n" for line in self._output_lines(versions))])

    def _output_lines(self, versions: tuple[str, str]) -> list[str]:
        pairs = zip(versions, self.prints, strict=True)
        return [f"torch {version} prints {' '.join(text.split())}" for version, text in pairs]


def cut(runner: Runner, old: Interpreter, new: Interpreter, difference: Difference) -> Cut:
    """A program of ten lines that shows the difference, or the reason why there is none."""
    try:
        _check_alike(difference)
        mismatch = _find_smallest(runner, old, new, difference)
        for program in mismatch.call.programs(mismatch.name, mismatch.outcome):
            prints = tuple(run_program(interpreter.path, program) for interpreter in (old, new))
            if prints[0] != prints[1]:
                return Cut(program, prints)
        raise NoProgramError("written as a program, it prints the same under both")
    except (NoProgramError, LateError) as error:
        return Cut(why=str(error), is_same_alone=isinstance(error, SameAloneError))
    except Exception as error:  # the answer is complete without a program
        return Cut(why=f"an error of ours, {type(error).__name__}: {error}")


def _check_alike(difference: Difference) -> None:
    """Raise NoProgramError if the program asks the two torches for different things. Then no run is necessary."""
    if difference.old.origin.kind == UPDATE:
        raise NoProgramError("the step of an optimiser is not taken apart")
    only = (difference.only_old, difference.only_new)
    if any(event.origin.kind == FORWARD for events in only for event in events):
        raise NoProgramError("the two are not asked for the same functions there")
    if difference.is_reordered and not any(only):
        raise NoProgramError("what differs is the order of several calls")
    old, new = difference.old.options, difference.new.options
    # If one call has more arguments, a function of torch may have made it, and its two versions differ. Then no program is wrong.
    if old != new and old.count("=") == new.count("=") and old.count(",") == new.count(","):
        raise NoProgramError("the two are asked for the same function with different arguments")


def _find_smallest(runner: Runner, old: Interpreter, new: Interpreter, difference: Difference) -> Mismatch:
    """Run the program once more for the arguments of the events, and shrink the first call that differs."""
    events = [*difference.only_old[:_MOST_EVENTS], difference.old]
    keys = [[*event.origin[:3], [tensor.shape for tensor in event.tensors], event.occurrence] for event in events]
    step = difference.step
    python = old.but(recorder="pseudograd_upgrade.cutting.recorder", targets=keys)
    run = runner.run(python, Schedule(first=0, every=0, window=(step, step)))
    calls: dict[int, str | Snapshot | None] = run.raw.get("calls", {})
    if not calls and run.errors:
        raise NoProgramError(f"an error of ours; {run.errors[0]}")
    error = NoProgramError("the call was not met again in another run")
    with Workers([old.path, new.path]) as workers:
        for at, content in sorted(calls.items()):
            try:
                return shrink(workers, read_call(content, events[at]))
            except NoProgramError as reason:
                error = reason
    raise error


def read_call(content: str | Snapshot | None, event: Event) -> Call:
    """The call that the program's process recorded for an event. content: the call, or a text that says why there is none; None if no call
    of torch made it.
    """
    kind = event.origin.kind
    if content is None:
        raise NoProgramError(f"no call of torch made {event.origin.op}: code of a custom Function or in C++")
    if isinstance(content, str):
        raise NoProgramError(content)
    call, data = content
    if kind == BACKWARD and not call.grads:
        raise NoProgramError("nothing that the call returns requires a gradient")
    if kind == BACKWARD and not call.requires:
        raise NoProgramError("none of its arguments requires a gradient")
    if kind != BACKWARD:
        call = replace(call, requires=frozenset(), grads=())
    return call.but(kind=kind, tensors=torch.load(io.BytesIO(data), weights_only=True, map_location="cpu"))


def run_program(python: str, program: str) -> str:
    done = run_python(python, program)
    if done.returncode:
        raise NoProgramError(f"written as a program, it fails: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return done.stdout.strip()


class Workers:
    """Two workers, in the interpreters of the older and of the newer torch. They end after a minute."""

    def __init__(self, pythons: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pseudograd-cut-")
        self._processes = [
            subprocess.Popen(
                [python, str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=self._folder.name,
            )
            for python in pythons
        ]
        self._is_late = False
        self._timer = threading.Timer(_SECONDS_TO_SHRINK, self._stop)
        self._timer.daemon = True

    def __enter__(self) -> Workers:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        for process in self._processes:
            process.kill()
            process.communicate()
        self._folder.cleanup()

    def _stop(self) -> None:
        self._is_late = True
        for process in self._processes:
            process.kill()

    def run(self, call: Call) -> tuple[Outcome, Outcome]:
        tensors = Path(self._folder.name) / "tensors"
        torch.save(dict(call.tensors), tensors)
        job = {"tensors": str(tensors), "requires": sorted(call.requires), "lines": call.lines()}
        files = [Path(self._folder.name) / str(at) for at in range(2)]
        try:
            for process, file in zip(self._processes, files, strict=True):
                assert process.stdin is not None
                process.stdin.write(json.dumps({**job, "outcome": str(file)}) + "\n")
                process.stdin.flush()
            old, new = (self._receive(*pair) for pair in zip(self._processes, files, strict=True))
            return old, new
        except (OSError, EOFError) as error:
            late = LateError("the call alone takes too long here")
            raise late if self._is_late else NoProgramError("the call alone ends its process") from error

    def _receive(self, process: subprocess.Popen[str], file: Path) -> Outcome:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise EOFError
        answer = json.loads(line)
        if answer["error"] is not None:
            return Outcome(answer["error"], {})
        return Outcome(None, torch.load(file, weights_only=True), answer["is_random"], answer["is_tensor"])
