"""`pseudograd diagnose`: a program that nobody edits, with a report of its gradients at the end."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pseudograd_notices.code import select_codes
from pseudograd_notices.options import split_ignore, split_words

from ..errors import must
from ..listen.program import follow as programs
from ..listen.program.files import checked_file, json_text, write
from ..rewrite.whole_program import rules_of
from ..wording import shortened
from .context import Diagnosis
from .count import ranks
from .judge import findings
from .processes import merged, values_of
from .tell.notices import Output
from .tell.page import page
from .tell.text import between_ranks

_SHOWN = 8
_ANY = "any"  # code
FAILED = 4  # the exit status where `--fail-on` holds
_ON = re.compile(r"(?P<code>[\w-]+)\s*(?:>\s*(?P<share>[0-9.eE+-]+))?")


def condition(
    text: str, is_known: Callable[[str, str, str], bool] = lambda number, where, expression: False
) -> Callable[[Diagnosis], list[str]]:
    """From 'cut>0.5', 'starved' or 'any': the places where it holds.

    is_known: does a baseline hold this number at this line, with this expression? Then it does not count.
    """
    found = _ON.fullmatch(text.strip())
    kinds = {kind.code: kind for kind in findings.KINDS}
    try:
        least = float(found["share"] or 0) if found else 0.0
    except ValueError:
        found = None
    if found is None or found["code"] not in (*kinds, _ANY):
        remedy = f"The codes are {', '.join(kinds)} and {_ANY}; a share stands behind as in 'cut>0.5'"
        raise ValueError(must("diagnose", "--fail-on", "be a finding's code, with a share if wanted", text, remedy))
    code = found["code"]
    kind = kinds.get(code)

    def holds(diagnosis: Diagnosis) -> list[str]:
        if kind is not None and kind.places is not None:
            over = [site for site, share in kind.places(diagnosis.sites) if share > least]
            return [site.where for site in over if not is_known(kind.number, site.where, site.expression)]
        return [one.where for one in diagnosis.findings if code in (one.code, _ANY) and one.share > least]

    return holds


def left_out(select: Sequence[str], ignore: Sequence[str], fail_on: str | None) -> list[str]:
    """What `diagnose` takes as ignore: patterns and the numbers of codes. A code that is not told cannot be what the status hangs on."""
    known = findings.CODES
    told = select_codes("diagnose", "--select", split_words(select) or ["all"], known)
    numbers, patterns = split_ignore("diagnose", ignore, known)
    numbers |= {code.number for code in known} - told
    asked = None if fail_on is None else fail_on.partition(">")[0].strip()
    if any(code.name == asked and code.number in numbers for code in known):
        remedy = "Select it, or ask for another"
        raise ValueError(
            must("diagnose", "--fail-on", "name a code that --select and --ignore leave in", fail_on, remedy)
        )
    return [*patterns, *sorted(numbers)]


def changes(texts: Sequence[str]) -> dict[str, Any]:
    """What `diagnose` takes as whatif, of texts such as 'clamp=inward' and 'torch>=2.14'."""
    found: dict[str, object] = {}
    for text in texts:
        is_era = text.strip().startswith("torch") or "=" not in text
        found[text] = text if is_era else rules_of([text], "diagnose", "--whatif")
    return found


def run(
    program: str,
    arguments: Sequence[str],
    is_module: bool,
    asked: Mapping[str, object],
    *,
    steps: int | None = None,
    html: Path | None = None,
    json_file: Path | None = None,
    fails: Callable[[Diagnosis], list[str]] | None = None,
    output: Output | None = None,
) -> int:
    """Run it as `python program arguments` would, up to so many backward passes; then the report, on the standard error.

    asked: what `diagnose` is called with in each process of the program; what-ifs as texts. The exit status is the program's; or, if that
    is 0 and `fails` holds somewhere, or has nothing to hold for, 4. output: what of it is new, and in which format it is shown, too.
    """
    programs.check("diagnose", program, is_module)
    output = Output(program) if output is None else output
    nothing = _diagnosis(asked)  # the errors of wrong arguments, before any work
    files: tuple[tuple[str, Path | None, Callable[[object], str]], ...] = (
        ("--html", html, page),
        ("--json", json_file, _as_json),
        ("--write-baseline", output.to_be_known, output.as_baseline),
        ("--output-file", output.file, lambda found: output.rendered(output.new(found))),
    )
    targets = [(name, checked_file("diagnose", name, file), made) for name, file, made in files if file is not None]
    for _, target, _ in targets:
        ranks.forget(target)
    job = {"module": __name__, "asked": dict(asked), "steps": steps}
    done = programs.run(programs.command_of(program, arguments, is_module), job)
    found = output.new(merged(done.parts, done.unseen, nothing))
    is_told = (found.backwards or not done.unseen) and (output.file is None or output.format != "text")
    said = str(found).splitlines() if is_told else []  # "none started" would be wrong
    status, lines, whole = done.status, [*said, *_who(found.processes, done)], found
    if output.to_be_known is not None and not found.backwards:
        targets = [one for one in targets if one[0] != "--write-baseline"]
        lines.append(
            "diagnose: --write-baseline: no backward pass was seen, so nothing is known to be there: not written"
        )
        status = status or FAILED
    for name, target, made in targets:
        try:
            with ranks.of_all(target, done) as seen:
                if seen is not None:
                    whole = merged(*seen, nothing)
                    write("diagnose", name, target, made(whole))
        except ValueError as error:
            lines.append(str(error))
            status = status or 2
    if whole.differences and not found.differences:  # the last of the ranks to end knows the others
        lines += between_ranks(whole.differences)
    if fails is not None:
        why = _failed(fails, found, done)
        lines += why
        status = status or (FAILED if why else 0)
    with contextlib.suppress(OSError, ValueError):  # nobody reads it
        print("\n".join(lines), file=sys.stderr)
        if output.format != "text" and output.file is None:
            print(output.rendered(found), end="", flush=True)
    return status


def _failed(fails: Callable[[Diagnosis], list[str]], found: Any, done: programs.Run) -> list[str]:
    """Why the status is 4; nothing where the gate holds. What nobody saw did not pass."""
    where = fails(found)
    if where:
        return [f"diagnose: --fail-on holds at {', '.join(where[:5])}"]
    if done.unseen:
        names = ", ".join(map(str, done.unseen[:5]))
        return [f"diagnose: --fail-on: what {names} did was not seen to its end, so it is not known to pass"]
    if not found.backwards:
        return ["diagnose: --fail-on: no backward pass was seen, so nothing is known to pass"]
    return []


def _who(processes: Sequence[Mapping[str, object]], done: programs.Run) -> list[str]:
    """Which processes the report is of, where that is not the program itself alone."""
    lines = []
    here = ranks.rank()
    if len(processes) > 1 or any(not one["is_main"] for one in processes):
        each = [f"{one['name']}: {one['backwards']:,}" for one in processes]
        lines.append(f"diagnose: backward passes by process: {shortened(each, _SHOWN)}")
    elif here is not None:
        lines.append(f"diagnose: this is rank {here[0]} of {here[1]}; --json and --html hold all ranks")
    lines += [
        f"diagnose: {one} made backward passes and ended without a report: it was killed, it crashed, or it still runs"
        for one in done.unseen[:_SHOWN]
    ]
    lines += [f"diagnose: not followed: {error}" for error in dict.fromkeys(done.errors)]
    return lines


def _as_json(found: Any) -> str:
    return json_text(found.to_json())


# --- in each process of the program -----------------------------------------------------------------------------------


def _diagnosis(asked: Mapping[str, Any]) -> Diagnosis:
    return Diagnosis(None, changes(asked["whatif"]), asked["detail"], asked["ignore"], asked.get("sensitivity", False))


class _Following:
    """A diagnosis from the moment torch is there to the end of the process."""

    def __init__(self, asked: Mapping[str, object], steps: int | None, process: Any) -> None:
        self.diagnosis = _diagnosis(asked)
        self.process, self.steps = process, steps
        self.shows = process.is_main and sys.stderr is not None and sys.stderr.isatty()
        self.last = time.monotonic()
        self.diagnosis.after_backward(self.after)
        self.diagnosis.__enter__()

    def after(self, backwards: int) -> None:
        """Says that there is something to say, shows now and then how far it is, and ends the program after so many."""
        self.process.mark()
        if self.shows and time.monotonic() - self.last > 1:
            self.last = time.monotonic()
            print(f"\rdiagnose: {backwards:,} backward passes\r", end="", file=sys.stderr, flush=True)
        if self.steps is not None and backwards >= self.steps:
            raise programs.Enough

    def content(self) -> Any:
        self.diagnosis.stop_listening()
        return values_of(self.diagnosis)

    def forked(self) -> None:
        self.diagnosis.stop_listening()


def begin(job: Mapping[str, Any], process: object) -> _Following:
    """What `running.process` calls."""
    return _Following(job["asked"], job["steps"], process)
