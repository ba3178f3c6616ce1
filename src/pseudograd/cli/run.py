"""The command `pseudograd run`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pseudograd_notices.options import add_program

from ._arguments import add_change, add_import, choose_pin, import_modules

PLACE = 50
HELP = "run a program, unedited, with another edge or rule in torch's own functions"
EXAMPLE = 'pseudograd run --pin "torch<=2.13" train.py --epochs 1'
STATUS = "that of the program; 3 with --require if nothing was rewritten"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add_change(command)
    add_import(command)
    add("--json", type=Path, metavar="FILE", help="also write the reports to FILE, as JSON")
    add(
        "--require",
        action="store_true",
        help="exit with 3 if the program succeeds and --pin or --override changed no call",
    )
    add_program(command)


def run(options: argparse.Namespace) -> int:
    from ..listen.program.signals import stoppable
    from ..rewrite import whole_program

    import_modules("run", options)
    with stoppable():
        return whole_program.run(
            options.program,
            options.arguments,
            options.is_module,
            {"pin": choose_pin("run", options), "overrides": options.override, "imports": options.imports},
            json_file=options.json,
            requires=options.require,
        )
