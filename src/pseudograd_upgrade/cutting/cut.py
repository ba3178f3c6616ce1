"""From the event that differs to a program of ten lines, or to the reason why there is none."""

from __future__ import annotations

import io
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from ..differences import Difference
from ..recording import BACKWARD, FORWARD, UPDATE, Event
from ..runs import Interpreter, Runner
from ..schedule import Schedule
from .call import Call
from .shrink import Mismatch, shrink
from .text import SameAloneError, UnwritableError
from .workers import Workers

_MOST = 4  # events before the one that differs
_SECONDS = 120


@dataclass(frozen=True)
class _Keeping(Interpreter):
    """targets: keys of events, the one that differs last."""

    targets: Sequence[Sequence[object]] = ()
    module: ClassVar[str] = "pseudograd_upgrade.cutting.keeping"

    @property
    def details(self) -> str:
        return f"{super().details}, for the arguments of {self.targets[-1][1]}"

    @property
    def options(self) -> Mapping[str, object]:
        return {**super().options, "targets": self.targets}


@dataclass(frozen=True)
class Cut:
    """program: its text, "" where there is none. prints: what it prints under the older and the newer torch. why: there is none.
    is_same_alone: with the same arguments the call gives the same under both, so that the difference came with them.
    """

    program: str = ""
    prints: tuple[str, ...] = ()
    why: str = ""
    is_same_alone: bool = False

    def lines(self, torch: tuple[str, str]) -> list[str]:
        """The lines of the answer."""
        if not self.program:
            return [f"not cut out: {self.why}"]
        program = [f"  {line}" for line in self.program.splitlines()]
        return ["cut out, this alone shows it:", *program, *self._prints(torch)]

    def file(self, torch: tuple[str, str]) -> str:
        """The program, and what it prints."""
        return "".join([self.program, *(f"# {line}\n" for line in self._prints(torch))])

    def _prints(self, torch: tuple[str, str]) -> list[str]:
        return [
            f"torch {version} prints {' '.join(text.split())}" for version, text in zip(torch, self.prints, strict=True)
        ]


def cut(runner: Runner, old: Interpreter | None, new: Interpreter, difference: Difference) -> Cut:
    try:
        if old is None:
            raise UnwritableError("that needs --from, the interpreter of the older torch")
        _check_alike(difference)
        return _verify(_smallest(runner, old, new, difference), old, new)
    except UnwritableError as error:
        return Cut(why=str(error), is_same_alone=isinstance(error, SameAloneError))
    except Exception as error:  # the answer stands without it
        return Cut(why=f"an error of ours, {type(error).__name__}: {error}")


def _check_alike(difference: Difference) -> None:
    """Where the program asks the two for different things, no run is needed to say so."""
    if difference.old.origin.kind == UPDATE:
        raise UnwritableError("the step of an optimiser is not taken apart")
    only = (difference.only_old, difference.only_new)
    if all(any(event.origin.kind == FORWARD for event in events) for events in only):
        raise UnwritableError("the two are asked for different functions there")
    if difference.is_reordered and not any(only):
        raise UnwritableError("what differs is the order of several calls")
    old, new = difference.old.options, difference.new.options
    if old != new and old.count("=") == new.count("=") and old.count(",") == new.count(","):
        raise UnwritableError("the two are asked for the same function with different arguments")


def _smallest(runner: Runner, old: Interpreter, new: Interpreter, difference: Difference) -> Mismatch:
    events = [*difference.only_old[:_MOST], difference.old]
    calls = _fetch_calls(runner, old, difference.step, events)
    error = UnwritableError("the call was not met again in another run")
    with Workers([old.path, new.path]) as workers:
        for at, content in sorted(calls.items()):
            try:
                return shrink(workers, read_call(content, events[at]))
            except UnwritableError as reason:
                error = reason
    raise error


def _fetch_calls(runner: Runner, old: Interpreter, step: int, events: list[Event]) -> dict[int, Any]:
    """The call of each event, as another run of the program kept it."""
    keys = [[*event.origin[:3], [tensor.shape for tensor in event.tensors], event.occurrence] for event in events]
    run = runner.run(_Keeping(old.path, old.torch, targets=keys), Schedule(0, 0, (step, step)))
    calls: dict[int, Any] = run.raw.get("calls", {})
    if not calls and run.errors:
        raise UnwritableError(f"an error of ours; {run.errors[0]}")
    return calls


def read_call(content: Any, event: Event) -> Call:
    """The call that the program's process kept. UnwritableError where it kept none."""
    if content is None:
        raise UnwritableError(f"no call of torch made {event.origin.op}: code of a custom Function or in C++")
    if content["why"]:
        raise UnwritableError(content["why"])
    kind = event.origin.kind
    tensors = torch.load(io.BytesIO(content["tensors"]), weights_only=True, map_location="cpu")
    requires, grads = content["requires"], tuple((at, name) for at, name in content["grads"])
    if kind == BACKWARD and not grads:
        raise UnwritableError("nothing that the call returns requires a gradient")
    if kind == BACKWARD and not requires:
        raise UnwritableError("none of its arguments requires a gradient")
    if kind != BACKWARD:
        requires, grads = (), ()
    autocast = content["autocast"] and tuple(content["autocast"])
    args, kwargs = tuple(content["args"]), content["kwargs"]
    call = Call(kind, content["form"], content["name"], args, kwargs, tensors, frozenset(requires), grads, autocast)
    return call.but()


def _verify(mismatch: Mismatch, old: Interpreter, new: Interpreter) -> Cut:
    """The text itself, run by both as python runs it."""
    for program in mismatch.programs():
        prints = tuple(run_program(interpreter.path, program) for interpreter in (old, new))
        if prints[0] != prints[1]:
            return Cut(program, prints)
    raise UnwritableError("written as a program, it prints the same under both")


def run_program(python: str, program: str) -> str:
    with tempfile.TemporaryDirectory(prefix="pseudograd-cut-") as folder:
        file = Path(folder) / "program.py"
        file.write_text(program, encoding="utf-8")
        pipes: dict[str, Any] = {"capture_output": True, "stdin": subprocess.DEVNULL}
        done = subprocess.run([python, str(file)], cwd=folder, text=True, timeout=_SECONDS, check=False, **pipes)
    if done.returncode:
        raise UnwritableError(f"written as a program, it fails: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return done.stdout.strip()
