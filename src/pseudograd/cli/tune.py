"""The command `pseudograd tune`."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ._arguments import add_import, add_own_case, current_folder, import_modules, own_case

if TYPE_CHECKING:
    from ..comparison.runs import Run

PLACE = 40
HELP = "find the rule for a training of yours with a budget of runs"
EXAMPLE = "pseudograd tune --task mine:run --budget 100"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add_own_case(command)
    add("--rules", metavar="A,B", help="rules to choose from, written as for compare")
    add_import(command)
    add("--budget", type=int, required=True, metavar="N", help="number of whole runs that the search may take")
    add("--steps", type=int, metavar="N", help="length of a whole run, if the function has an argument steps")
    add("--json", type=Path, metavar="FILE", help="also write the result to FILE, as JSON")


def run(options: argparse.Namespace) -> int:
    from ..listen.program.files import checked_file, json_text, write
    from ..listen.program.process import standard_library_first
    from ..listen.program.signals import stoppable
    from ..parse_rule import items

    with stoppable(), current_folder():
        with standard_library_first():
            from ..comparison.tune import tune

            with suppress(ImportError):  # numpy imports it when a run is seeded
                import numpy.random  # noqa: F401
        import_modules("tune", options)
        if options.task is None:
            raise ValueError("tune: --task must be given, got none. Name your training as MODULE:FUNCTION.")
        target = None if options.json is None else checked_file("tune", "--json", options.json)
        case = own_case(options, "tune", None if options.rules is None else items(options.rules))
        tuning = tune(**case, budget=options.budget, steps=options.steps, on_trial=_print_progress)
        if target is not None:
            write("tune", "--json", target, json_text(tuning.to_json()))
        print(tuning)
        return 0


def _print_progress(run: Run, done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\rtune: {run.variant}, seed {run.seed}: {done} of {total} of this round\033[K", end="", file=sys.stderr)
