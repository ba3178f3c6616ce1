"""Which line decides? A program that behaves otherwise under another rule or edge is run again with the change at some of its lines.

A line is told apart by the way that leads to it: one line of a library may be reached from several lines of its caller, of which one
matters.
"""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from ..dynamo import when_dynamo_arrives
from ..errors import must
from ..listen import frames
from ..listen.program import follow as programs
from ..notebook import shown
from ..torch_table.records import Spelling
from .context import Rewriting
from .mode import Replacement
from .sites import RuleBySite
from .standard_input import StandardInput
from .whole_program import contexts

_STANDARD = (sysconfig.get_path("stdlib") + os.sep, "<frozen")
_SHOWN = 5  # lines of stderr
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
        callers = self.callers(others)
        return callers[0] if len(callers) == 1 else None

    def callers(self, others: Iterable[Place]) -> tuple[str, ...]:
        """As `via`; where ways cross, so that no one caller tells, those that do together."""
        same = [other for other in others if other.where == self.where and other.path != self.path]
        told = [
            [other for other in same if at >= len(other.path) or other.path[at] != line]
            for at, line in enumerate(self.path)
        ]
        chosen: list[int] = []
        while same:
            best = max(range(len(self.path)), key=lambda at: sum(other in told[at] for other in same), default=0)
            rest = [other for other in same if other not in told[best]] if told else same
            if len(rest) == len(same):
                break  # what is left goes on where this way ends
            same = rest
            chosen.append(best)
        return tuple(self.path[at] for at in sorted(chosen))


@dataclass(frozen=True)
class Bisection:
    """outcome: "found", or why nothing is. passes: does the program pass as it is, and with the change everywhere? decide: the smallest
    set found, each place of which is needed. places: all that the change reached. is_alone: with the change everywhere else the program
    does as without it. stderr: the last lines of a run that fails.
    """

    change: str
    outcome: str
    passes: tuple[bool, bool]
    decide: tuple[Place, ...]
    places: tuple[Place, ...]
    runs: int
    is_alone: bool = True
    stderr: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        return shown(str(self))

    def __str__(self) -> str:
        said = [f"  {line}" for line in self.stderr]
        return "\n".join([self._answer(), *(["bisect: a run that fails ends with:", *said] if said else [])])

    def _answer(self) -> str:
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
            callers = place.callers(self.places)
            if len(callers) == 1:
                start = place.path.index(callers[0])
                lines.append(f"  {'':<12} reached from {', from '.join(place.path[start : start + 4])}")
            elif callers:
                lines.append(f"  {'':<12} reached by way of {' and '.join(callers)}")
            if place.user_where not in place.path[:1]:
                lines.append(f"  {'':<12} in the program: {place.user_where}")
        if not self.is_alone:
            lines.append(
                f"bisect: with the change everywhere but there the program {after}, too: it is enough there, and it is enough elsewhere"
            )
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        found = {"kind": "pseudograd bisect", "torch": torch.__version__, **asdict(self)}
        found["decide"] = [
            {**asdict(place), "via": place.via(self.places), "callers": place.callers(self.places)}
            for place in self.decide
        ]
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
        pin, overrides: the change, as `pseudograd run` takes it: an edge, and texts such as "clamp=RULE".
        checked_by: a shell command that is run after each run of the program; its exit status is the verdict instead.
        on_run: called after each run with its number, how many places were changed, of how many, and whether it passed.
    Returns: what decides, once a run with the change everywhere else has been asked, too. Each run is a process of its own, in which
        compiled code runs eagerly, so that its lines are known, and gets the whole standard input.
    Raises: ValueError for a program that is not there, or an unknown rule or edge.
    Source: delta debugging, Zeller & Hildebrandt (2002).
    """
    programs.check("bisect", program, is_module)
    changes = contexts(pin, overrides, "bisect")
    label = " and ".join(map(repr, changes))
    runner = _Runner(
        {"pin": pin, "overrides": list(overrides)},
        programs.command_of(program, arguments, is_module),
        checked_by,
        on_run,
    )
    as_it_is, everywhere = runner.run([]), runner.run(None)
    repeats = as_it_is == runner.run([], again=True)

    def answer(outcome: str, decide: Sequence[Key] = (), is_alone: bool = True) -> Bisection:
        places = tuple(runner.places[key] for key in decide)
        verdicts, all_places = (as_it_is, everywhere), tuple(runner.places.values())
        return Bisection(label, outcome, verdicts, places, all_places, runner.count, is_alone, runner.stderr)

    if not repeats or as_it_is == everywhere or not runner.places:
        return answer(SAME if repeats else RANDOM)
    smallest = _smallest(lambda some: runner.run(some) == everywhere, list(runner.places))
    if runner.run(smallest, again=True) != everywhere:
        return answer(RANDOM)
    others = [key for key in runner.places if key not in smallest]
    return answer(FOUND, smallest, runner.run(others) == as_it_is)


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

    def __init__(self, asked: dict[str, object], command: Sequence[str], checked_by: str | None, on_run: Any) -> None:
        self.asked, self.command, self.checked_by, self.on_run = asked, command, checked_by, on_run
        self.places: dict[Key, Place] = {}
        self.count = 0
        self.stderr: tuple[str, ...] = ()  # the last lines of the first run that failed
        self._known: dict[frozenset[Key] | None, bool] = {}
        self._stdin = StandardInput()

    def run(self, some: list[Key] | None, again: bool = False) -> bool:
        """Does it pass with the change at these places? None: everywhere."""
        key = None if some is None else frozenset(some)
        if key in self._known and not again:
            return self._known[key]
        job = {"module": __name__, "asked": {**self.asked, "places": some}}
        with self._stdin.for_a_run() as stdin:
            done = programs.run(self.command, job, stdin=stdin, is_quiet=True)
        status = done.status
        if self.checked_by is not None:
            nothing = subprocess.DEVNULL
            status = subprocess.run(
                self.checked_by, shell=True, stdin=nothing, capture_output=True, check=False
            ).returncode
        self._add(done.parts)
        if status and not self.stderr:
            self.stderr = tuple(done.stderr.decode(errors="replace").rstrip().splitlines()[-_SHOWN:])
        self.count += 1
        self._known[key] = passes = status == 0
        changed = len(self.places) if some is None else len(some)
        self.on_run(self.count, changed, len(self.places), passes)
        return passes

    def _add(self, parts: Sequence[programs.Part]) -> None:
        """The places that a run met, in all of its processes."""
        met: dict[Key, Place] = {}
        for one in (one for part in parts for one in part.content):
            place = Place(**{**one, "path": tuple(one["path"])})
            key = (place.op, *place.path)
            met[key] = replace(place, calls=place.calls + (met[key].calls if key in met else 0))
        for key, place in met.items():
            self.places.setdefault(key, place)


# --- in the process that runs the program -----------------------------------------------------------------------------


class _AtPlaces(RuleBySite):
    """A change at some places; None: at all. It notes where it was asked for."""

    def __init__(self, rule: object, places: set[Key] | None, seen: dict[Key, dict[str, Any]]) -> None:
        super().__init__(lambda site: rule)
        self._change, self._places, self._seen = rule, places, seen

    def rule(self, spelling: Spelling, primitive: str, inputs: tuple[object, ...]) -> Any:
        path = tuple(_path())
        key = (spelling.name, *path)
        if key not in self._seen:
            self._seen[key] = {"op": spelling.name, **_ends(), "path": path, "calls": 0}
        self._seen[key]["calls"] += 1
        return self._change if self._places is None or key in self._places else None


def _path() -> Iterable[str]:
    """The lines that lead here, from the call of torch outwards; neither torch's, nor ours, nor Python's own."""
    frame = frames.calling_frame()
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


class _Following:
    """The change at the places that a job names, and which places there are."""

    def __init__(self, asked: Mapping[str, Any], process: Any) -> None:
        self.seen: dict[Key, dict[str, Any]] = {}
        places = None if asked["places"] is None else {tuple(key) for key in asked["places"]}
        self.entered = []
        for context in contexts(asked["pin"], asked["overrides"], "bisect"):
            if context.kinks and not context.replacements:
                raise ValueError(must("bisect", "pin", "be an edge or a version of torch", asked["pin"]))
            changed = {
                switch: Replacement(_AtPlaces(one.rule, places, self.seen), one.op)
                for switch, one in context.replacements.items()
            }
            self.entered.append(Rewriting(repr(context), changed).__enter__())
        when_dynamo_arrives(lambda dynamo: torch.compiler.set_stance("force_eager"))
        process.mark()

    def content(self) -> Any:
        return list(self.seen.values())

    def forked(self) -> None:
        for context in self.entered:
            context.__exit__()


def begin(job: Mapping[str, Any], process: object) -> _Following:
    """What `running.process` calls."""
    return _Following(job["asked"], process)
