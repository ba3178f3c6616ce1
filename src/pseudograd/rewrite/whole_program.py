"""`pseudograd run`: run a program, unedited, inside a pin, an override or both."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import must
from ..listen import hooks
from ..listen.program import follow as programs
from ..listen.program.files import checked_file, json_text, write
from ..listen.program.process import Process
from ..ops.bound_rules import DEFAULT_RULE
from ..parse_rule import parsed
from ..rule import OPS, RuleLike
from ..torch_table.forms import SWITCHES
from .context import Rewriting
from .override import override
from .pin_edge import pin_edge
from .report import join_reports

NOTHING_REWRITTEN = 3  # the exit status if `--require` fails


def contexts(pin: str | None, overrides: Sequence[str], where: str = "run") -> list[Rewriting]:
    """The contexts of `--override FAMILY=RULE` and `--pin EDGE`, the outer one first."""
    rules = rules_of(overrides, where)
    if pin is None and not rules:
        raise ValueError(f"{where}: one of --pin and --override must be given, got neither.")
    return [*([override(**rules)] if rules else []), *([pin_edge(pin)] if pin is not None else [])]


def rules_of(overrides: Sequence[str], where: str = "run", argument: str = "--override") -> dict[str, RuleLike]:
    """Parse FAMILY=RULE texts into the arguments of `override`."""
    rules: dict[str, RuleLike] = {}
    for text in overrides:
        family, equals, rule = (part.strip() for part in text.partition("="))
        if not (family and equals and rule):
            raise ValueError(must(where, argument, f"be FAMILY=RULE, such as clamp={DEFAULT_RULE}", text))
        rules[family] = _parse_rule(family, rule, where, argument)
    return rules


def _parse_rule(family: str, text: str, where: str, argument: str) -> RuleLike:
    if family not in SWITCHES:
        return text  # `override` raises the error
    rule, edge = parsed(OPS[SWITCHES[family]], text, f"{where}: {argument}")
    if edge is not None:
        remedy = "Each family has its own; --pin changes that of torch's clamps"
        raise ValueError(must(where, argument, "name no edge", text, remedy))
    return rule


def run(
    program: str,
    arguments: Sequence[str],
    is_module: bool,
    change: Mapping[str, Any],
    *,
    json_file: Path | None = None,
    requires: bool = False,
) -> int:
    """Run the program as `python program arguments` would, then print the reports and write them to `json_file`.

    change: "pin", "overrides" and "imports", as the command takes them, for each process of the program.
    requires: must each context rewrite something, except a pin to the era of the installed torch? If one does not, returns 3 in place of 0.
    Otherwise returns the status of the program.
    """
    entered = contexts(change["pin"], change["overrides"])
    programs.check("run", program, is_module)
    target = None if json_file is None else checked_file("run", "--json", json_file)
    job = {"module": __name__, "change": dict(change)}
    ended = programs.run(programs.command_of(program, arguments, is_module), job)
    reports = [
        join_reports([context.report(), *(part.content[at] for part in ended.parts)])
        for at, context in enumerate(entered)
    ]
    status, lines = ended.status, [str(report) for report in reports]
    lines += [f"run: not followed: {error}" for error in dict.fromkeys(ended.errors)]
    if target is not None:
        try:
            rows = [dataclasses.asdict(report) for report in reports]
            text = json_text({"kind": "pseudograd run", "torch": torch.__version__, "contexts": rows})
            write("run", "--json", target, text)
        except ValueError as error:
            lines.append(str(error))
            status = status or 2
    idle = [report.label for report in reports if not (report.rewritten or report.is_torchs_own)]
    if requires and idle:
        lines.append(f"run: --require: nothing was rewritten by {' and '.join(idle)}")
        status = status or NOTHING_REWRITTEN
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed
        for line in lines:
            print(f"pseudograd: {line}", file=sys.stderr)
    return status


# --- in each process of the program -----------------------------------------------------------------------------------


class Following:
    """The contexts of a command, entered in every thread of a process from the import of torch on."""

    def __init__(self, entered: Iterable[Rewriting], process: Process) -> None:
        self.entered = list(entered)
        self._open: list[Rewriting | hooks.NewThreads] = [*self.entered, *map(_enter_in_threads, self.entered)]
        for context in self._open:
            context.__enter__()
        process.mark()

    def content(self) -> object:
        return [context.report() for context in self.entered]

    def forked(self) -> None:
        for context in self._open:
            context.__exit__()


def _enter_in_threads(context: Rewriting) -> hooks.NewThreads:
    return hooks.NewThreads(lambda: context)


def begin(job: Mapping[str, Any], process: Process) -> Following:
    """Enter the contexts in a process of the program. `listen.program.process` calls this."""
    change = job["change"]
    sys.path.insert(0, os.getcwd())
    try:
        for name in change["imports"]:
            importlib.import_module(name)
    finally:
        sys.path.remove(os.getcwd())
    return Following(contexts(change["pin"], change["overrides"]), process)
