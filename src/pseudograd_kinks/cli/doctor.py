"""The command `pseudograd doctor`. It is in this package because `--against` reads the kink table."""

from __future__ import annotations

import argparse
import json
import sys

PLACE = 80
HELP = "what the installed torch does at a bound, and which kernels run"
EXAMPLE = "pseudograd doctor --against jax"
STATUS = "1 if --expect names another edge, else 0"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--json", action="store_true", help="print the result as JSON")
    expected = "closed or open: print one line, and exit with 1 if number bounds have the other edge"
    add("--expect", metavar="EDGE", help=expected)
    others = "say where the installed torch differs from jax, tensorflow or a version such as torch==2.9"
    add("--against", metavar="NAME", help=others)
    add("--all", action="store_true", help="with --against: print a line for every point")


def run(options: argparse.Namespace) -> int:
    from pseudograd.doctor import edge_text, examine, text

    from .. import against

    is_right, line = edge_text(options.expect) if options.expect is not None else (True, "")
    if options.all and options.against is None:
        raise ValueError("doctor: --all must stand with --against, got it alone. Add --against jax.")
    if options.against is not None:
        differences = against.compare(options.against)
        print(json.dumps(differences, indent=1) if options.json else against.text(differences, options.all))
    elif options.json:
        print(json.dumps(examine(), indent=1))
    elif not line:
        print(text(examine()))
    if line:
        print(line, file=sys.stderr if options.json else sys.stdout)
    return 0 if is_right else 1
