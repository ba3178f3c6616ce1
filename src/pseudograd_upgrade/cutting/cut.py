"""From the event that differs to a program of ten lines, or to why there is none."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..differences import Difference
from ..interpreters import Interpreter
from ..recorded import FORWARD, Event
from ..runs import Runner
from ..schedule import Schedule
from . import text
from .call import Call, of_content
from .shrinking import Shrinking
from .trees import SameAloneError, UnwritableError
from .workers import Found, Workers

_MOST = 4  # events before the one that differs
_SECONDS = 120


@dataclass(frozen=True)
class _Keeping(Interpreter):
    """targets: keys of events, the one that differs last."""

    targets: Sequence[Sequence[Any]] = ()
    follows: ClassVar[str] = "pseudograd_upgrade.cutting.keeping"

    @property
    def said(self) -> str:
        return f"{super().said}, for the arguments of {self.targets[-1][1]}"

    @property
    def asked(self) -> Mapping[str, Any]:
        return {**super().asked, "targets": self.targets}


@dataclass(frozen=True)
class Cut:
    """program: its text, "" where there is none. prints: what it prints under the older and the newer torch. why: there is none.
    is_same_alone: with the same arguments the call gives the same under both, so that what differs came with them.
    """

    program: str = ""
    prints: tuple[str, ...] = ()
    why: str = ""
    is_same_alone: bool = False

    def lines(self, torch: tuple[str, str]) -> list[str]:
        """For the answer."""
        if not self.program:
            return [f"not cut out: {self.why}"]
        return [
            "cut out, this alone shows it:",
            *(f"  {line}" for line in self.program.splitlines()),
            *self._said(torch),
        ]

    def file(self, torch: tuple[str, str]) -> str:
        """The program, and what it prints."""
        return "".join([self.program, *(f"# {line}\n" for line in self._said(torch))])

    def _said(self, torch: tuple[str, str]) -> list[str]:
        return [
            f"torch {version} prints {' '.join(printed.split())}"
            for version, printed in zip(torch, self.prints, strict=True)
        ]


def cut(runner: Runner, old: Interpreter | None, new: Interpreter, difference: Difference) -> Cut:
    try:
        if old is None:
            raise UnwritableError("that needs --from, the interpreter of the older torch")
        _asked_alike(difference)
        return _cut(runner, old, new, difference)
    except UnwritableError as error:
        return Cut(why=str(error), is_same_alone=isinstance(error, SameAloneError))
    except Exception as error:  # the answer stands without it
        return Cut(why=f"an error of ours, {type(error).__name__}: {error}")


def _asked_alike(difference: Difference) -> None:
    """A program that asks the two for different things needs no run to say so."""
    ops = [{event.site.op for event in some if event.site.kind == FORWARD} for some in _only(difference)]
    if all(ops):
        raise UnwritableError("the two are asked for different functions there")
    if difference.is_reordered and not any(_only(difference)):
        raise UnwritableError("what differs is the order of several calls")
    one, other = difference.old.said, difference.new.said
    if one != other and one.count("=") == other.count("=") and one.count(",") == other.count(","):
        raise UnwritableError("the two are asked for the same function with different arguments")


def _only(difference: Difference) -> tuple[tuple[Event, ...], tuple[Event, ...]]:
    return difference.only_old, difference.only_new


def _cut(runner: Runner, old: Interpreter, new: Interpreter, difference: Difference) -> Cut:
    events = [*difference.only_old[:_MOST], difference.old]
    kept = _kept(runner, old, difference.step, events)
    with Workers([old.path, new.path]) as workers:
        shrinking = Shrinking(workers)
        found, why = None, UnwritableError("the call was not met again in another run")
        for at, event in enumerate(events):
            if at not in kept:
                continue
            try:
                found = shrinking.shrunk(_call(kept[at], event))
                break
            except UnwritableError as error:
                why = error
        if found is None:
            raise why
    return _verified(found, old, new)


def _kept(runner: Runner, old: Interpreter, step: int, events: list[Event]) -> dict[int, object]:
    """By event: its call, as the program's process kept it."""
    keys = [[*event.site[:3], [kept.shape for kept in event.tensors], event.occurrence] for event in events]
    run = runner.run(_Keeping(old.path, old.torch, targets=keys), Schedule(0, 0, (step, step)))
    found: dict[int, object] = run.raw.get("found", {})
    if not found and run.errors:
        raise UnwritableError(f"an error of ours; {run.errors[0]}")
    return found


def _call(content: Any, event: Event) -> Call:
    if content is None:
        raise UnwritableError(f"no call of torch made {event.site.op}: code of a custom Function or in C++")
    return of_content(content, event.site.kind)


def _verified(found: Found, old: Interpreter, new: Interpreter) -> Cut:
    """The text itself, run by both as python runs it."""
    for program in text.programs(found):
        prints = tuple(_printed(one.path, program) for one in (old, new))
        if prints[0] != prints[1]:
            return Cut(program, prints)
    raise UnwritableError("written as a program, it prints the same under both")


def _printed(python: str, program: str) -> str:
    with tempfile.TemporaryDirectory(prefix="pseudograd-cut-") as folder:
        file = Path(folder) / "program.py"
        file.write_text(program, encoding="utf-8")
        done = subprocess.run(
            [python, str(file)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    if done.returncode:
        raise UnwritableError(f"written as a program, it fails: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return done.stdout.strip()
