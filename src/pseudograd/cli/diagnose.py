"""The command `pseudograd diagnose`."""

from __future__ import annotations

import argparse
from pathlib import Path

from pseudograd_notices.options import add_output, add_program, check_format, known_notices

from ._arguments import name_rules

PLACE = 60
HELP = "run a program, unedited, and say which line cuts its gradient"
EXAMPLE = "pseudograd diagnose --steps 20 --html page.html train.py --epochs 1"
STATUS = "that of the program; 4 if --fail-on holds, or if there is a finding that the --baseline does not have"
CODES = "pseudograd.diagnosis.judge.findings"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--steps", type=int, metavar="N", help="end the program after N backward passes")
    add("--html", type=Path, metavar="FILE", help="also write a page to FILE, which needs no network")
    add("--json", type=Path, metavar="FILE", help="also write the result to FILE, as JSON")
    add(
        "--whatif",
        metavar="CHANGE",
        action="append",
        default=[],
        help="also say which gradient each parameter would get under 'torch>=2.14', or under FAMILY=RULE such as "
        f"clamp={name_rules()[0]}; may be repeated",
    )
    add(
        "--fail-on",
        metavar="CODE>SHARE",
        help="exit with 4 if the program succeeds and there is such a finding: 'cut>0.5' (more than half is cut), 'starved', 'any'",
    )
    add_output(command, "PG204", ", parameters such as 'teacher.*'")
    add("--sensitivity", action="store_true", help="say how much of each gradient is convention at kinks and ties")
    add("--sensitivity-every", type=int, metavar="N", help="as --sensitivity, but only in every N-th backward pass")
    add(
        "--side-by-side",
        action="store_true",
        help="find out whether a convention decides the training: run the program up to five more times, once as it is, and once for each "
        "line that meets a kink, with the other convention there",
    )
    add("--counts", action="store_true", help="count elements only: cheaper, but not by the sign of the gradient")
    add_program(command)


def run(options: argparse.Namespace) -> int:
    from ..diagnosis import run as program_run
    from ..diagnosis.tell.notices import Output
    from ..errors import must
    from ..listen.program.signals import stoppable

    if options.steps is not None and options.steps < 1:
        raise ValueError(must("diagnose", "--steps", "be at least 1", options.steps))
    chosen = program_run.choose_codes(options)
    output = Output(
        options.program,
        check_format("diagnose", options.output_format),
        options.output_file,
        known_notices("diagnose", options, chosen.settings),
        options.write_baseline,
        chosen,
    )
    fail_on = options.fail_on or ("any" if options.baseline is not None else None)
    fails = None if fail_on is None else program_run.parse_condition(fail_on, output.is_known)
    sensitivity = options.sensitivity_every
    if sensitivity is None:
        sensitivity = options.side_by_side or options.sensitivity
    with stoppable():
        return program_run.run(
            options.program,
            options.arguments,
            options.is_module,
            {
                "whatif": options.whatif,
                "detail": "counts" if options.counts else "full",
                "ignore": chosen.ignore,
                "sensitivity": sensitivity,
            },
            steps=options.steps,
            html=options.html,
            json_file=options.json,
            fails=None if options.write_baseline is not None else fails,
            output=output,
            side_by_side=options.side_by_side,
        )
