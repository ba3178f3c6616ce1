"""The command `pseudograd bisect`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pseudograd_notices.options import add_program

from ._arguments import add_change, choose_pin

PLACE = 70
HELP = "which line decides how a program behaves under another edge or rule?"
EXAMPLE = 'pseudograd bisect --pin "torch<=2.13" train.py'
STATUS = "0 if it found the lines that decide, 1 if not"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add_change(command)
    command.add_argument(
        "--check", metavar="CMD", help="judge each run by the exit status of this command, not by that of the program"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="also write the answer to FILE, as JSON")
    add_program(command)


def run(options: argparse.Namespace) -> int:
    from ..listen.program.files import checked_file, json_text, write
    from ..listen.program.signals import stoppable
    from ..rewrite.bisect import FOUND, bisect

    target = None if options.json is None else checked_file("bisect", "--json", options.json)
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
    if target is not None:
        write("bisect", "--json", target, json_text(answer.to_json()))
    print(answer)
    return 0 if answer.outcome == FOUND else 1
