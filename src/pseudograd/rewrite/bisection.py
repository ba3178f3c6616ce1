"""Which line decides? A program that behaves otherwise under another rule or edge is run again with the change at some of its lines.

A line is told apart by the way that leads to it: one line of a library may be reached from several lines of its caller, of which one
matters.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..dynamo import when_dynamo_arrives
from ..program import as_main, check, outcome
from ..trace import frames
from .context import Rewriting
from .mode import Replacement
from .run import contexts
from .sites import RuleBySite

_STANDARD = (sysconfig.get_path("stdlib") + os.sep, "<frozen")
FOUND, SAME, RANDOM = "found", "the change decides nothing", "the program does not repeat"


@dataclass(frozen=True)
class Place:
    """A call of torch at one line, reached by one way. path: that line and its callers, outwards to the program."""

    op: str
    where: str
    user_where: str
    expression: str
    path: tuple[str, ...]
    calls: int = field(default=0, compare=False)

    def via(self, others: Iterable[Place]) -> str | None:
        """The nearest caller that tells this way from those others which lead to the same line."""
        same = [other for other in others if other.where == self.where and other.path != self.path]
        for at, line in enumerate(self.path):
            if same and all(at >= len(other.path) or other.path[at] != line for other in same):
                return line
        return None


@dataclass(frozen=True)
class Bisection:
    """outcome: "found", or why nothing is. passes: does the program pass as it is, and with the change everywhere? decide: the smallest
    set found, each place of which is needed. places: all that the change reached.
    """

    change: str
    outcome: str
    passes: tuple[bool, bool]
    decide: tuple[Place, ...]
    places: tuple[Place, ...]
    runs: int

    def __str__(self) -> str:
        before, after = ("passes" if verdict else "fails" for verdict in self.passes)
        head = f"bisect: as it is the program {before}, with {self.change} everywhere it {after}; {self.runs} runs"
        if self.outcome == RANDOM:
            return f"{head}\nbisect: the same run passed once and failed once: {self.outcome}. Fix its seeds, or make --check sharper."
        if self.outcome == SAME:
            why = "the change reached no call" if not self.places else f"it reached {len(self.places)} places"
            return f"{head}\nbisect: nothing to find: {self.outcome} ({why})"
        needed = (
            "this line decides" if len(self.decide) == 1 else f"these {len(self.decide)} lines decide, each is needed"
        )
        lines = [head, f"bisect: of {len(self.places)} {needed}:"]
        for place in self.decide:
            lines.append(f"  {place.op:<12} {place.where}")
            via = place.via(self.places)
            if via is not None:
                start = place.path.index(via)
                lines.append(f"  {'':<12} reached from {', from '.join(place.path[start : start + 4])}")
            if place.user_where not in place.path[:1]:
                lines.append(f"  {'':<12} in the program: {place.user_where}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        found = {"kind": "pseudograd bisect", "torch": torch.__version__, **asdict(self)}
        found["decide"] = [{**asdict(place), "via": place.via(self.places)} for place in self.decide]
        return found


def bisect(
    program: str,
    arguments: Sequence[str] = (),
    *,
    pin: str | None = None,
    overrides: Sequence[str] = (),
    is_module: bool = False,
    checked_by: str | None = None,
    on_run: Callable[[int, int, int, bool], None] = lambda *numbers: None,
) -> Bisection:
    """Run a program again and again, with a change at part of its lines, until the lines that decide are known.

    Args:
        program, arguments, is_module: what python would run. Its exit status is the verdict: 0 passes.
        pin, overrides: the change, as `pseudograd run` takes it: an edge, and texts such as "clamp=inward".
        checked_by: a shell command that is run after each run of the program; its exit status is the verdict instead.
        on_run: called after each run with its number, how many places were changed, of how many, and whether it passed.
    Returns: what decides. Each run is a process of its own, in which compiled code runs eagerly, so that its lines are known.
    Raises: ValueError for a program that is not there, or an unknown rule or edge.
    Source: delta debugging, Zeller & Hildebrandt (2002).
    """
    check("bisect", program, is_module)
    changes = contexts(pin, overrides, "bisect")
    label = " and ".join(map(repr, changes))
    asked = {"pin": pin, "overrides": list(overrides), "program": program, "is_module": is_module}
    runner = _Runner(asked, arguments, checked_by, on_run)
    as_it_is, everywhere = runner.run([]), runner.run(None)
    repeats = as_it_is == runner.run([], again=True)
    verdicts = as_it_is, everywhere
    if not repeats or as_it_is == everywhere or not runner.places:
        why = SAME if repeats else RANDOM
        return Bisection(label, why, verdicts, (), tuple(runner.places.values()), runner.count)
    smallest = _smallest(lambda some: runner.run(some) == everywhere, list(runner.places))
    if runner.run(smallest, again=True) != everywhere:
        return Bisection(label, RANDOM, verdicts, (), tuple(runner.places.values()), runner.count)
    decide = tuple(runner.places[key] for key in smallest)
    return Bisection(label, FOUND, verdicts, decide, tuple(runner.places.values()), runner.count)


Key = tuple[str, ...]


def _smallest(is_enough: Callable[[list[Key]], bool], places: list[Key]) -> list[Key]:
    """A set that is enough and of which no place can be left out. One place is found in two runs for each halving."""
    parts = 2
    while len(places) > 1:
        size = -(-len(places) // parts)
        chunks = [places[at : at + size] for at in range(0, len(places), size)]
        enough = next((chunk for chunk in chunks if is_enough(chunk)), None)
        if enough is not None:
            places, parts = enough, 2
            continue
        rests = [[place for place in places if place not in chunk] for chunk in chunks] if parts > 2 else []
        enough = next((rest for rest in rests if is_enough(rest)), None)
        if enough is not None:
            places, parts = enough, max(parts - 1, 2)
        elif parts >= len(places):
            break
        else:
            parts = min(2 * parts, len(places))
    return places


class _Runner:
    """Runs the program in processes of its own, and remembers what each set of places gave."""

    def __init__(self, asked: dict[str, Any], arguments: Sequence[str], checked_by: str | None, on_run: Any) -> None:
        self.asked, self.arguments, self.checked_by, self.on_run = asked, arguments, checked_by, on_run
        self.places: dict[Key, Place] = {}
        self.count = 0
        self._known: dict[frozenset[Key] | None, bool] = {}

    def run(self, some: list[Key] | None, again: bool = False) -> bool:
        """Does it pass with the change at these places? None: everywhere."""
        key = None if some is None else frozenset(some)
        if key in self._known and not again:
            return self._known[key]
        with tempfile.TemporaryDirectory() as folder:
            given, seen = Path(folder) / "given.json", Path(folder) / "seen.json"
            given.write_text(json.dumps({**self.asked, "places": some, "seen": str(seen)}))
            command = [sys.executable, "-c", "from pseudograd.rewrite import bisection; bisection.work()", str(given)]
            status = subprocess.run([*command, *self.arguments], capture_output=True, check=False).returncode
            if self.checked_by is not None:
                status = subprocess.run(self.checked_by, shell=True, capture_output=True, check=False).returncode
            for one in json.loads(seen.read_text()) if seen.exists() else ():
                place = Place(**{**one, "path": tuple(one["path"])})
                self.places.setdefault((place.op, *place.path), place)
        self.count += 1
        self._known[key] = passes = status == 0
        changed = len(self.places) if some is None else len(some)
        self.on_run(self.count, changed, len(self.places), passes)
        return passes


# --- in the process that runs the program -----------------------------------------------------------------------------


class _AtPlaces(RuleBySite):
    """A change at some places; None: at all. It notes where it was asked for."""

    def __init__(self, rule: Any, places: set[Key] | None, seen: dict[Key, dict[str, Any]]) -> None:
        super().__init__(lambda site: rule)
        self._change, self._places, self._seen = rule, places, seen

    def rule(self, spelling: Any, primitive: str, inputs: tuple[Any, ...]) -> Any:
        path = tuple(_path())
        key = (spelling.name, *path)
        if key not in self._seen:
            self._seen[key] = {"op": spelling.name, **_ends(), "path": path, "calls": 0}
        self._seen[key]["calls"] += 1
        return self._change if self._places is None or key in self._places else None


def _path() -> Iterable[str]:
    """The lines that lead here, from the call of torch outwards; neither torch's, nor ours, nor Python's own."""
    frame: Any = frames.calling_frame()
    while frame is not None:
        file = frame.f_code.co_filename
        if (
            frames.is_users(file)
            and (frames.is_of_a_package(file) or not file.startswith(_STANDARD))
            and file != "<string>"
        ):
            yield frames.shown(frame.f_code, frame.f_lineno)
        frame = frame.f_back


def _ends() -> dict[str, str]:
    """The line that calls torch and the program's own, as a report names them."""
    frame = frames.calling_frame()
    call, program = frames.point(frame), frames.point(frames.program_frame(frame))
    expression = "" if call is None else call.expression
    return {"where": frames.named(call), "user_where": frames.named(program), "expression": expression}


def work() -> None:
    """Run a program with the change at the places that a file names, and write down which places there are."""
    if sys.path and sys.path[0] == "":
        del sys.path[0]
    given = json.loads(Path(sys.argv[1]).read_text())
    arguments = sys.argv[2:]
    places = None if given["places"] is None else {tuple(key) for key in given["places"]}
    seen: dict[Key, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(as_main(given["program"], arguments, given["is_module"]))
        for context in contexts(given["pin"], given["overrides"], "bisect"):
            changed = {
                switch: Replacement(_AtPlaces(one.rule, places, seen), one.is_pin)
                for switch, one in context.replacements.items()
            }
            stack.enter_context(Rewriting(repr(context), changed))
        when_dynamo_arrives(lambda dynamo: torch.compiler.set_stance("force_eager"))
        status = outcome("bisect", given["program"], given["is_module"])
    Path(given["seen"]).write_text(json.dumps(list(seen.values())))
    sys.exit(status)
