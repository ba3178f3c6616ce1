"""The command `pseudograd doctor`; it stands here because `--against` reads the kink table."""

from __future__ import annotations

import argparse
import json
import sys

PLACE = 80
HELP = "what the installed torch does at a bound, and which kernels run"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="the findings as JSON")
    command.add_argument(
        "--expect", metavar="EDGE", help="closed or open: one line, and status 1 if number bounds have the other edge"
    )


<<<<<<<< HEAD:src/pseudograd/cli/doctor.py
def _doctor(options: argparse.Namespace) -> int:
    from ..doctor import edge_text, examine, text
========
def run(options: argparse.Namespace) -> int:
    from pseudograd.doctor import edge_text, examine, text

    from .. import against
>>>>>>>> 8a3ece2 (notices: move what lint and diagnose share into pseudograd_notices):src/pseudograd_kinks/cli/doctor.py

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
