"""The command `pseudograd bisect`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pseudograd_notices.options import add_format, add_program, check_format, print_answer

from ._arguments import add_change, choose_pin

PLACE = 70
HELP = "which line decides how a program behaves under another edge or rule?"
EXAMPLE = 'pseudograd bisect --pin "torch<=2.13" train.py'
STATUS = "0 if it found the lines that decide, 1 if not"
CODES = "pseudograd_notices.answers"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add_change(command, frameworks="; not jax or tensorflow, which `run` takes")
    add("--check", metavar="CMD", help="judge each run by the exit status of this command, not by that of the program")
    add("--json", type=Path, metavar="FILE", help="also write the answer to FILE, as JSON")
    add_format(command)
    add_program(command)


def run(options: argparse.Namespace) -> int:
    from pseudograd_notices.answers import report_bisection

    from ..listen.program.files import checked_file, json_text, write
    from ..listen.program.signals import stoppable
    from ..rewrite.bisect import FOUND, bisect

    check_format("bisect", options.output_format)
    files = {"--json": options.json, "--output-file": options.output_file}
    targets = {name: checked_file("bisect", name, file) for name, file in files.items() if file is not None}
    options.output_file = targets.get("--output-file")
    with stoppable():
        answer = bisect(
            options.program,
            options.arguments,
            pin=choose_pin("bisect", options),
            overrides=options.override,
            is_module=options.is_module,
            checked_by=options.check,
            on_run=lambda run, changed, places, passes: print(
                f"bisect: run {run}, the change at {changed} of {places} places: {'passes' if passes else 'fails'}",
                file=sys.stderr,
                flush=True,
            ),
        )
    text = json_text(answer.to_json())
    if "--json" in targets:
        write("bisect", "--json", targets["--json"], text)
    print_answer("bisect", answer, report_bisection(text, options.program), options)
    return 0 if answer.outcome == FOUND else 1
