"""The command `pseudograd diagnose`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import must
from ._arguments import add_program
from ._command import Command


def _add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--steps", type=int, metavar="N", help="end the program after N backward passes")
    command.add_argument("--html", type=Path, metavar="FILE", help="write a page, too: one file, no network")
    command.add_argument("--json", type=Path, metavar="FILE", help="write all of it, too, as JSON")
    command.add_argument(
        "--whatif",
        metavar="CHANGE",
        action="append",
        default=[],
        help="what would each parameter get under 'torch>=2.14', or under FAMILY=RULE such as clamp=inward? may be repeated",
    )
    command.add_argument(
        "--fail-on",
        metavar="CODE>SHARE",
        help="such as 'cut>0.5', 'starved' or 'any': status 4 if it holds and the program ends well",
    )
    command.add_argument(
        "--ignore",
        metavar="PATTERN",
        action="append",
        default=[],
        help="what is deliberate: parameters such as 'teacher.*', lines such as 'losses.py:12'; may be repeated",
    )
    command.add_argument(
        "--sensitivity",
        metavar="N",
        type=int,
        nargs="?",
        const=1,
        help="how much of each gradient is convention at kinks and ties? asked in every backward, or in every N-th",
    )
    command.add_argument("--counts", action="store_true", help="shares of elements alone: cheaper, without sides")
    add_program(command)


def _diagnose(options: argparse.Namespace) -> int:
    from ..diagnosis import run

    if options.steps is not None and options.steps < 1:
        raise ValueError(must("diagnose", "--steps", "be at least 1", options.steps))
    fails = None if options.fail_on is None else run.condition(options.fail_on)
    return run.run(
        options.program,
        options.arguments,
        options.is_module,
        {
            "whatif": options.whatif,
            "detail": "counts" if options.counts else "full",
            "ignore": options.ignore,
            "sensitivity": options.sensitivity if options.sensitivity is not None else False,
        },
        steps=options.steps,
        html=options.html,
        json_file=options.json,
        fails=fails,
    )


COMMAND = Command(
    place=60,
    help="run a program, unedited, and say which line cuts its gradient",
    add_arguments=_add_arguments,
    run=_diagnose,
)
