"""Find the lines that decide whether a program passes: run it again and again, with another rule or edge at some of its lines.

Calls at one line are told apart by the path that leads to them: several lines of a program may lead to a line of a library, and perhaps
only some of them matter.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from ..dynamo import when_dynamo_arrives
from ..errors import must
from ..listen import frames
from ..listen.program import follow as programs
from ..listen.program.process import Process
from ..listen.program.signals import Stopped
from ..notebook import to_html
from ..rule import RuleLike
from ..torch_table.records import Spelling
from ..wording import counted
from .context import Rewriting
from .mode import Replacement
from .sites import RuleBySite
from .standard_input import StandardInput
from .whole_program import Following, contexts

_STANDARD_LIBRARY = (sysconfig.get_path("stdlib") + os.sep, "<frozen")
_STDERR_LINES, _CALLERS = 5, 4  # how many are shown
# How often the run with the answer, and each run with one line less, is repeated: its first verdict may be chance. If 1 verdict in 10 is
# wrong by chance, then about 1 search in 1,000 names wrong lines; many end without an answer.
_REPEATS = 2
FOUND, SAME, RANDOM = "found", "the change decides nothing", "the program does not repeat"
Key = tuple[str, ...]
OnRun = Callable[[int, int, int, bool], None]


@dataclass(frozen=True)
class CallSite:
    """A call of torch at one line, reached by one path: that line and its callers, outwards to the program."""

    op: str
    where: str
    user_where: str
    expression: str
    path: tuple[str, ...]
    calls: int = field(default=0, compare=False)

    def callers(self, others: Iterable[CallSite]) -> tuple[str, ...]:
        """The callers that tell this path from the other paths to the same line: as few as possible, the nearest ones first."""
        rivals = [other for other in others if other.where == self.where and other.path != self.path]

        def has_same_caller(other: CallSite, at: int) -> bool:
            return at < len(other.path) and other.path[at] == self.path[at]

        chosen: list[int] = []
        while rivals and self.path:
            left_by_caller = [[other for other in rivals if has_same_caller(other, at)] for at in range(len(self.path))]
            best = min(range(len(self.path)), key=lambda at: len(left_by_caller[at]))
            if len(left_by_caller[best]) == len(rivals):
                break  # the other paths begin with this path
            rivals = left_by_caller[best]
            chosen.append(best)
        return tuple(self.path[at] for at in sorted(chosen))


@dataclass(frozen=True)
class Bisection:
    """The answer of `bisect`. passes: does the program pass as it is, and does it pass with the change everywhere?"""

    change: str
    outcome: str  # "found", or why nothing was found
    passes: tuple[bool, bool]
    decide: tuple[CallSite, ...]  # call sites that decide together; each of them is needed
    places: tuple[CallSite, ...]  # all call sites that the change reached
    runs: int
    is_alone: bool = True  # with the change at all other sites, does the program behave as it does without a change?
    stderr: tuple[str, ...] = ()  # the last lines of a run that fails

    def _repr_html_(self) -> str:
        return to_html(str(self))

    def __str__(self) -> str:
        ending = ["bisect: a run that fails ends with:", *(f"  {line}" for line in self.stderr)] if self.stderr else []
        return "\n".join([*self._answer_lines(), *ending])

    def _answer_lines(self) -> Iterator[str]:
        before, after = ("passes" if verdict else "fails" for verdict in self.passes)
        count = len(self.places)
        yield f"bisect: as it is the program {before}, with {self.change} everywhere it {after}; {self.runs} runs"
        if self.outcome == RANDOM:
            remedy = "Fix its seeds, or make --check sharper"
            yield f"bisect: the same run passed once and failed once: {self.outcome}. {remedy}."
            return
        if self.outcome == SAME:
            why = f"it reached {counted(count, 'place')}" if count else "the change reached no call"
            yield f"bisect: nothing to find: {self.outcome} ({why})"
            return
        lines = len(self.decide)
        yield f"bisect: of {count} " + (
            "this line decides:" if lines == 1 else f"these {lines} lines decide, each is needed:"
        )
        for site in self.decide:
            yield f"  {site.op:<12} {site.where}"
            callers = site.callers(self.places)
            if len(callers) == 1:
                start = site.path.index(callers[0])
                yield f"  {'':<12} reached from {', from '.join(site.path[start : start + _CALLERS])}"
            elif callers:
                yield f"  {'':<12} reached by way of {' and '.join(callers)}"
            if site.user_where not in site.path[:1]:
                yield f"  {'':<12} in the program: {site.user_where}"
        yield "bisect: each run that decides was repeated, with the same verdict; if 1 verdict in 10 were wrong by chance,"
        yield "bisect: fewer than 1 of 100 searches would name wrong lines, and many would end without an answer"
        if not self.is_alone:
            elsewhere = "it is enough there, and it is enough elsewhere"
            yield f"bisect: with the change everywhere but there the program {after}, too: {elsewhere}"

    def to_json(self) -> dict[str, Any]:
        decide = [{**asdict(site), "callers": site.callers(self.places)} for site in self.decide]
        return {"kind": "pseudograd bisect", "torch": torch.__version__, **asdict(self), "decide": decide}


def bisect(
    program: str,
    arguments: Sequence[str] = (),
    *,
    pin: str | None = None,
    overrides: Sequence[str] = (),
    is_module: bool = False,
    checked_by: str | None = None,
    on_run: OnRun = lambda *numbers: None,
) -> Bisection:
    """Run a program again and again, with a change at part of its lines, until the lines that decide are known.

    Args:
        program, arguments, is_module: what python would run. Its exit status is the verdict: 0 passes.
        pin, overrides: the change, as `pseudograd run` takes it: an edge, and texts such as "clamp=RULE".
        checked_by: a shell command that is run after each run of the program; its exit status is the verdict instead.
        on_run: called after each run with its number, how many places were changed, of how many, and whether it passed.
    Returns: the lines that decide. The runs that show it are repeated; if a verdict differs then, the outcome is "the program does not
        repeat". The last run has the change at all other lines. Each run is a process of its own, gets the whole standard input, and runs
        compiled code eagerly, so that its lines are known.
    Raises: ValueError for a program that is not there, or an unknown rule or edge.
    Source: delta debugging, Zeller & Hildebrandt (2002).
    """
    programs.check("bisect", program, is_module)
    label = " and ".join(map(repr, _contexts(pin, overrides)))
    command = programs.command_of(program, arguments, is_module)
    runner = _Runner({"pin": pin, "overrides": list(overrides)}, command, checked_by, on_run)
    try:
        return _search(label, runner)
    except Stopped as stop:
        stop.known = _describe_progress(label, runner)
        raise


def _contexts(pin: str | None, overrides: Sequence[str]) -> list[Rewriting]:
    """The contexts that make the change. Raises an error for the pin to a framework, which has no call sites."""
    changes = contexts(pin, overrides, "bisect")
    if any(context.conventions and not context.replacements for context in changes):
        raise ValueError(must("bisect", "pin", "be an edge or a version of torch", pin))
    return changes


def _search(label: str, runner: _Runner) -> Bisection:
    as_it_is, everywhere = runner.run([]), runner.run(None)
    is_repeatable = runner.repeats([]) and runner.repeats(None)

    def answer(outcome: str, decide: Sequence[Key] = (), is_alone: bool = True) -> Bisection:
        sites = tuple(runner.sites[key] for key in decide)
        verdicts, all_sites = (as_it_is, everywhere), tuple(runner.sites.values())
        return Bisection(label, outcome, verdicts, sites, all_sites, runner.count, is_alone, runner.stderr)

    if not is_repeatable or as_it_is == everywhere or not runner.sites:
        return answer(SAME if is_repeatable else RANDOM)
    smallest = _find_smallest(lambda keys: runner.run(keys) == everywhere, list(runner.sites))
    without_one = [[key for key in smallest if key != left_out] for left_out in smallest] if len(smallest) > 1 else []
    repeated = [smallest, *without_one]
    for keys in [smallest, *(_REPEATS * repeated)]:
        if (runner.run(keys, again=True) == everywhere) != (keys is smallest):
            return answer(RANDOM)
    others = [key for key in runner.sites if key not in smallest]
    return answer(FOUND, smallest, runner.run(others) == as_it_is or not runner.repeats(others))


def _describe_progress(label: str, runner: _Runner) -> str:
    as_it_is, everywhere = runner.known.get(frozenset()), runner.known.get(None)
    before, after = (_VERDICTS[verdict] for verdict in (as_it_is, everywhere))
    lines = [f"bisect: stopped after {counted(runner.count, 'run')}, before the answer"]
    lines.append(f"bisect: as it is the program {before}, with {label} everywhere it {after}")
    if everywhere is not None and as_it_is != everywhere:
        enough = [keys for keys, passes in runner.known.items() if keys is not None and passes == everywhere]
        suspects = min([frozenset(runner.sites), *enough], key=len)
        for title, is_suspect in (
            ("still suspects, as the change at these alone is enough", True),
            ("cleared, as the change is not needed there", False),
        ):
            sites = [site for key, site in runner.sites.items() if (key in suspects) is is_suspect]
            lines.append(f"bisect: {title}: {counted(len(sites), 'place')}")
            lines += dict.fromkeys(f"  {site.op:<12} {site.where}" for site in sites)
    return "\n".join(lines)


_VERDICTS = {None: "was not run to its end", True: "passes", False: "fails"}


def _find_smallest(is_enough: Callable[[list[Key]], bool], keys: list[Key]) -> list[Key]:
    """A set of keys that is enough, of which each is needed. A single key is found in at most two runs for each halving."""
    parts = 2
    while len(keys) > 1:
        size = -(-len(keys) // parts)
        chunks = [keys[at : at + size] for at in range(0, len(keys), size)]
        enough = next((chunk for chunk in chunks if is_enough(chunk)), None)
        if enough is not None:
            keys, parts = enough, 2
            continue
        rests = [[key for key in keys if key not in chunk] for chunk in chunks] if parts > 2 else []
        enough = next((rest for rest in rests if is_enough(rest)), None)
        if enough is not None:
            keys, parts = enough, max(parts - 1, 2)
        elif parts >= len(keys):
            break
        else:
            parts = min(2 * parts, len(keys))
    return keys


class _Runner:
    """Runs the program with the change at some call sites. It collects the sites and the verdicts."""

    def __init__(
        self, change: dict[str, object], command: Sequence[str], checked_by: str | None, on_run: OnRun
    ) -> None:
        self.change, self.command, self.checked_by, self.on_run = change, command, checked_by, on_run
        self.sites: dict[Key, CallSite] = {}
        self.count = 0
        self.stderr: tuple[str, ...] = ()  # the last lines of the first run that failed
        self.known: dict[frozenset[Key] | None, bool] = {}  # the last verdict of each run, by the sites with the change
        self._stdin = StandardInput()

    def run(self, keys: list[Key] | None, again: bool = False) -> bool:
        """Does the program pass with the change at these call sites? None: everywhere. again: run it even if the verdict is known."""
        changed = None if keys is None else frozenset(keys)
        if changed in self.known and not again:
            return self.known[changed]
        job = {"module": __name__, "change": {**self.change, "places": keys}}
        with self._stdin.open_for_run() as stdin:
            run = programs.run(self.command, job, stdin=stdin, is_quiet=True)
        status = run.status
        if self.checked_by is not None:
            status = subprocess.run(
                self.checked_by, shell=True, stdin=subprocess.DEVNULL, capture_output=True, check=False
            ).returncode
        if run.errors and not run.parts:
            raise ValueError(f"bisect: the change must reach the program, got an error there. {run.errors[0]}")
        self._add_sites(run.parts)
        if status and not self.stderr:
            self.stderr = run.last_lines(_STDERR_LINES)
        self.count += 1
        self.known[changed] = passes = status == 0
        self.on_run(self.count, len(self.sites) if keys is None else len(keys), len(self.sites), passes)
        return passes

    def repeats(self, keys: list[Key] | None) -> bool:
        """Does another run with the change at these call sites have the same verdict as the last one?"""
        return self.run(keys) == self.run(keys, again=True)

    def _add_sites(self, parts: Sequence[programs.Part]) -> None:
        sites: dict[Key, CallSite] = {}
        for site in itertools.chain.from_iterable(part.content for part in parts):
            key = (site.op, *site.path)
            sites[key] = replace(site, calls=site.calls + (sites[key].calls if key in sites else 0))
        self.sites = {**sites, **self.sites}  # the calls are those of the first run that reached the site


# --- in the process that runs the program -----------------------------------------------------------------------------


class _AtSites(RuleBySite):
    """The change at the call sites with these keys; None for all sites. It notes the sites of all calls."""

    def __init__(self, rule: RuleLike, keys: set[Key] | None, sites: dict[Key, CallSite]) -> None:
        super().__init__(lambda site: rule)
        self._change, self._keys, self._sites = rule, keys, sites

    def rule(self, spelling: Spelling, primitive: str, inputs: tuple[object, ...]) -> RuleLike | None:
        path = tuple(_lines_of_callers())
        key = (spelling.name, *path)
        site = self._sites.get(key)
        if site is None:
            frame = frames.calling_frame()
            call, program = frames.point(frame), frames.point(frames.next_program_frame(frame))
            expression = "" if call is None else call.expression
            site = CallSite(spelling.name, frames.file_and_line(call), frames.file_and_line(program), expression, path)
        self._sites[key] = replace(site, calls=site.calls + 1)
        return self._change if self._keys is None or key in self._keys else None


def _lines_of_callers() -> Iterator[str]:
    """The lines that lead here, from the call of torch outwards, without those of torch, of pseudograd and of Python itself."""
    frame = frames.calling_frame()
    while frame is not None:
        file = frame.f_code.co_filename
        is_standard = file.startswith(_STANDARD_LIBRARY) and not frames.is_of_a_package(file)
        if frames.is_users(file) and not is_standard and file != "<string>":
            yield frames.format_location(frame.f_code, frame.f_lineno)
        frame = frame.f_back


class _Following(Following):
    """The change at the call sites that a job names, and the sites of all calls."""

    def __init__(self, change: Mapping[str, Any], process: Process) -> None:
        self.sites: dict[Key, CallSite] = {}
        keys = None if change["places"] is None else set(map(tuple, change["places"]))
        entered = []
        for context in _contexts(change["pin"], change["overrides"]):
            replacements = {
                switch: Replacement(_AtSites(replacement.rule, keys, self.sites), replacement.op)
                for switch, replacement in context.replacements.items()
            }
            entered.append(Rewriting(repr(context), replacements))
        when_dynamo_arrives(lambda dynamo: torch.compiler.set_stance("force_eager"))
        super().__init__(entered, process)

    def content(self) -> list[CallSite]:
        return list(self.sites.values())


def begin(job: Mapping[str, Any], process: Process) -> _Following:
    """Enter the change in a process of the program. `listen.program.process` calls this."""
    return _Following(job["change"], process)
