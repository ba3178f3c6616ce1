"""The command `pseudograd doctor`."""

from __future__ import annotations

import argparse
import json
import sys

from ._command import Command


def _add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="the findings as JSON")
    command.add_argument(
        "--expect", metavar="EDGE", help="closed or open: one line, and status 1 if number bounds have the other edge"
    )


def _doctor(options: argparse.Namespace) -> int:
    from ..doctor import edge_text, examine, text

    is_right, line = edge_text(options.expect) if options.expect is not None else (True, "")
    answers = [answer for extension in options.extensions if (answer := extension.answer(options)) is not None]
    if answers:
        print(*answers, sep="\n")
    elif options.json:
        print(json.dumps(examine(), indent=1))
    elif not line:
        print(text(examine()))
    if line:
        print(line, file=sys.stderr if options.json else sys.stdout)
    return 0 if is_right else 1


COMMAND = Command(
    place=80,
    help="what the installed torch does at a bound, and which kernels run",
    add_arguments=_add_arguments,
    run=_doctor,
)
