"""`pseudograd diagnose` runs a program as it is, and prints a report of its gradients at the end."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.optim.optimizer import register_optimizer_step_pre_hook

from pseudograd_notices.options import Chosen, choose

from ..errors import must
from ..listen.harmless import quietly
from ..listen.program import follow as programs
from ..listen.program.files import checked_file, json_text, write
from ..listen.program.signals import Stopped
from ..rewrite.pin_edge import pin_edge
from ..rewrite.standard_input import StandardInput
from ..rewrite.whole_program import rules_of
from ..wording import shortened
from .context import Diagnosis
from .judge import findings
from .judge.findings.convention import pin_text
from .processes import PROCESSES_SHOWN, ProgramReport, fields_of, merge
from .records import Report
from .side_by_side import Pin, train_side_by_side
from .tell.notices import Output
from .tell.page import page
from .tell.text import head

if TYPE_CHECKING:
    from types import FrameType

    from torch import Tensor

    from ..listen.program.process import Process

_ANY_CODE = "any"  # in a condition: a finding of any code
_LINES_SHOWN = 5
FAILED = 4  # the exit status where `--fail-on` holds
_CONDITION = re.compile(r"(?P<code>[\w-]+)\s*(?:>\s*(?P<share>[0-9.eE+-]+))?")
Condition = Callable[[Report], list[str]]  # the lines where it holds
Job = Mapping[str, Any]  # the instructions for each process of the program; "options": the arguments of `Diagnosis`


class _Target(NamedTuple):
    """A file to write: the argument of the command that names it, and a function that makes its text."""

    argument: str
    file: Path
    make_text: Callable[[ProgramReport], str]


def parse_condition(
    text: str, is_known: Callable[[str, str, str], bool] = lambda number, where, expression: False
) -> Condition:
    """A function that lists the lines where the condition in `text` holds, such as 'cut>0.5', 'starved' or 'any'.

    is_known(number, where, expression): does a baseline hold this finding? Then the line does not count.
    """
    match = _CONDITION.fullmatch(text.strip())
    kinds = {kind.code: kind for kind in findings.KINDS}
    try:
        least = float(match["share"] or 0) if match else 0.0
    except ValueError:
        match = None
    if match is None or match["code"] not in (*kinds, _ANY_CODE):
        remedy = f"The codes are {', '.join(kinds)} and {_ANY_CODE}; a share follows the code, as in 'cut>0.5'"
        raise ValueError(must("diagnose", "--fail-on", "be a finding's code, with a share if wanted", text, remedy))
    code = match["code"]
    kind = kinds.get(code)

    def holds(report: Report) -> list[str]:
        if kind is not None and kind.places is not None:
            sites = [site for site, share in kind.places(report.sites) if share > least]
            return [site.where for site in sites if not is_known(kind.number, site.where, site.expression)]
        findings_of_code = [finding for finding in report.findings if code in (finding.code, _ANY_CODE)]
        return [finding.where for finding in findings_of_code if finding.share > least]

    return holds


def parse_conditions(conditions: str | Sequence[str]) -> Callable[[Report], str]:
    """A function that says which of the conditions hold, and where; it returns "" if none does."""
    texts = [conditions] if isinstance(conditions, str) else conditions
    by_text = {text: parse_condition(text) for text in texts}

    def list_failures(report: Report) -> str:
        lines = {text: holds(report) for text, holds in by_text.items()}
        return "; ".join(f"{text} at {_first_lines(where)}" for text, where in lines.items() if where)

    return list_failures


def _first_lines(lines: Sequence[str]) -> str:
    return ", ".join(lines[:_LINES_SHOWN])


def choose_codes(options: argparse.Namespace) -> Chosen:
    """What `--select`, `--ignore` and the settings choose. `--fail-on` must not name a code that is left out."""
    chosen, fail_on = choose("diagnose", findings.CODES, options, "all"), options.fail_on
    name = None if fail_on is None else fail_on.partition(">")[0].strip()
    if any(code.name == name and code.number not in chosen.numbers for code in findings.CODES):
        remedy = "Select it, or ask for another"
        must_be = "name a code that --select and --ignore leave in"
        raise ValueError(must("diagnose", "--fail-on", must_be, fail_on, remedy))
    return chosen


def run(
    program: str,
    arguments: Sequence[str],
    is_module: bool,
    options: Mapping[str, object],
    *,
    steps: int | None = None,
    html: Path | None = None,
    json_file: Path | None = None,
    fails: Condition | None = None,
    output: Output | None = None,
    side_by_side: bool = False,
) -> int:
    """Run the program as `python program arguments` would. Then print the report on the standard error.

    options: the arguments of `Diagnosis` in each process of the program, with the what-ifs as texts.
    steps: end the program after so many backward passes.
    fails: the condition of `--fail-on`.
    output: the format and the file of the report, and its baseline.
    side_by_side: for each line whose convention may decide the training, run the program again under the other convention.

    Returns the exit status of the program. If that is 0, it returns 2 where a file cannot be written. It returns 4 where `fails` holds or
    cannot be judged, and where no backward pass was seen for a new baseline.
    """
    programs.check("diagnose", program, is_module)
    output = Output(program) if output is None else output
    empty = _make_diagnosis(options)  # before any work, because it raises the errors of wrong arguments
    targets = _targets(output, html, json_file)
    job = {"module": __name__, "options": dict(options), "steps": steps}
    command = programs.command_of(program, arguments, is_module)
    # If each rank is a command of its own, nothing is run again: such a run would wait for the other ranks.
    done = _run_side_by_side(command, job) if side_by_side and _rank() is None else programs.run(command, job)
    whole = merge(done.parts, done.unseen, empty)  # with the findings of the baseline
    report = output.drop_known(whole)
    is_printed = output.file is None or output.format != "text"
    # Without a backward, the text says that none started. A process that was not seen to its end may have started one.
    has_text = bool(report.backwards) or not done.unseen
    lines = [*head(report), "", *str(report).splitlines()] if is_printed and has_text else []
    lines += _describe_processes(report, done)
    status = done.status
    if output.new_baseline_file is not None and not report.backwards:
        targets = [target for target in targets if target.argument != "--write-baseline"]
        lines.append("diagnose: --write-baseline: no backward pass was seen, so the baseline is not written")
        status = status or FAILED
    errors = _write(targets, whole)
    lines += errors
    status = status or (2 if errors else 0)
    if fails is not None:
        why = _failures(fails, report, done)
        lines += why
        status = status or (FAILED if why else 0)
    with contextlib.suppress(OSError, ValueError):  # the reader has closed the stream
        print("\n".join(lines), file=sys.stderr)
        if output.format != "text" and output.file is None:
            print(output.render(report), end="", flush=True)
    return status


def _run_side_by_side(command: Sequence[str], job: Job) -> programs.Run:
    stdin = StandardInput()

    def run(**more: object) -> programs.Run:
        with stdin.open_for_run() as source:
            return programs.run(command, {**job, "keeps_losses": True, **more}, stdin=source, is_quiet="pin" in more)

    def run_again(pin: Pin | None, where: str, steps: int) -> programs.Run:
        change = "as it is" if pin is None else f"with pin_edge({pin_text(pin)}) at {where}"
        print(f"diagnose: one more run, {change}", file=sys.stderr)
        return run(pin=pin, where=where, steps=steps, options={**job["options"], "sensitivity": False})

    done = run()
    try:
        return train_side_by_side(done, run_again, job["steps"])
    except Stopped as stop:
        return replace(done, status=stop.status)


def _targets(output: Output, html: Path | None, json_file: Path | None) -> list[_Target]:
    """The files to write. If each rank is a command of its own, rank 1 writes `found.rank1.json` in place of `found.json`, and so on."""
    rank, targets = _rank(), []

    def add(argument: str, file: Path | None, make_text: Callable[[ProgramReport], str]) -> None:
        if file is not None:
            file = file.with_stem(f"{file.stem}.rank{rank}") if rank else file
            targets.append(_Target(argument, checked_file("diagnose", argument, file), make_text))

    add("--html", html, page)
    add("--json", json_file, lambda report: json_text(report.to_json()))
    add("--write-baseline", output.new_baseline_file, output.format_baseline)
    add("--output-file", output.file, lambda report: output.render(output.drop_known(report)))
    return targets


def _rank() -> int | None:
    """The rank of this command, which a launcher has started; None if it is the only one."""
    try:
        rank, count = int(os.environ.get("RANK", "")), int(os.environ.get("WORLD_SIZE", ""))
    except ValueError:
        return None
    return rank if 0 <= rank < count and count > 1 else None


def _write(targets: Sequence[_Target], report: ProgramReport) -> list[str]:
    """Write the files. Returns the errors."""
    errors = []
    for target in targets:
        try:
            write("diagnose", target.argument, target.file, target.make_text(report))
        except ValueError as error:
            errors.append(str(error))
    return errors


def _failures(fails: Condition, report: Report, done: programs.Run) -> list[str]:
    """The reasons for status 4. A process that was not seen to its end has not passed."""
    where = fails(report)
    if where:
        return [f"diagnose: --fail-on holds at {_first_lines(where)}"]
    if done.unseen:
        names = _first_lines([str(part) for part in done.unseen])
        return [f"diagnose: --fail-on: what {names} did was not seen to its end, so it is not known to pass"]
    return [] if report.backwards else ["diagnose: --fail-on: no backward pass was seen, so nothing is known to pass"]


def _describe_processes(report: ProgramReport, done: programs.Run) -> list[str]:
    """Lines about the processes of the report, unless it is about the program alone."""
    processes, rank = report.processes, _rank()
    lines = []
    if len(processes) > 1 or any(not process["is_main"] for process in processes):
        each = [f"{process['name']}: {process['backwards']:,}" for process in processes]
        lines.append(f"diagnose: backward passes by process: {shortened(each, PROCESSES_SHOWN)}")
    elif rank is not None:
        lines.append(
            f"diagnose: this is rank {rank} alone; for one report start the launcher with pseudograd diagnose -m"
        )
    lines += [
        f"diagnose: {part} made backward passes and ended without a report: it was killed, it crashed, or it still runs"
        for part in done.unseen[:PROCESSES_SHOWN]
    ]
    return lines + [f"diagnose: not followed: {error}" for error in dict.fromkeys(done.errors)]


# --- in each process of the program -----------------------------------------------------------------------------------


def _make_diagnosis(options: Job) -> Diagnosis:
    changes: dict[str, object] = {}
    for text in options["whatif"]:
        is_era = text.strip().startswith("torch") or "=" not in text  # pin_edge refuses what names no era
        changes[text] = text if is_era else rules_of([text], "diagnose", "--whatif")
    return Diagnosis(None, changes, options["detail"], options["ignore"], options.get("sensitivity", False))


class _Follower:
    """A diagnosis from the moment torch is imported to the end of the process."""

    def __init__(self, job: Job, process: Process) -> None:
        self.losses: list[float] | None = [] if job.get("keeps_losses") else None
        self.is_scaled = False  # does a GradScaler multiply the losses?
        self.hook = None if self.losses is None else register_optimizer_step_pre_hook(self.note_scaler)
        # A pin is a pair: an argument of pin_edge, and its value.
        self.pin = pin_edge(**dict([job["pin"]])) if job.get("pin") else None
        if self.pin is not None:
            self.pin.lines = [job["where"]]
            self.pin.__enter__()
        self.diagnosis, self.process, self.steps = _make_diagnosis(job["options"]), process, job["steps"]
        self.diagnosis.after_backward(self.note_backward)
        self.diagnosis.__enter__()

    def note_backward(self, backwards: int, loss: Tensor | None) -> None:
        """Tell the command that this process has a report, and end the program after `steps` backward passes."""
        self.process.mark()
        if self.losses is not None:
            with quietly():
                self.losses.append(math.nan if loss is None else float(loss))
        if self.steps is not None and backwards >= self.steps:
            raise programs.Enough

    def note_scaler(self, *_: object) -> None:
        """Before each step of an optimiser: note if a GradScaler calls the step."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not self.is_scaled:
            if frame.f_code.co_filename.endswith("grad_scaler.py"):
                self.is_scaled = frame.f_locals["self"].is_enabled()
            frame = frame.f_back

    def content(self) -> dict[str, object]:
        self.diagnosis.stop_listening()
        if self.hook is not None:
            self.hook.remove()
        calls = None if self.pin is None else self.pin.report()
        is_pinned = calls is None or bool(calls.rewritten and not calls.missed)  # a run without a pin needs none
        return {**fields_of(self.diagnosis), "losses": self.losses, "is_pinned": is_pinned, "is_scaled": self.is_scaled}

    def forked(self) -> None:
        self.diagnosis.stop_listening()


def begin(job: Job, process: Process) -> _Follower:
    """`listen.program` calls it in each process."""
    return _Follower(job, process)
