"""The command `pseudograd kinks`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pseudograd.cli._arguments import current_folder, function_named

if TYPE_CHECKING:
    from ..table import Point, Table

PLACE = 75
HELP = "which gradient torch, JAX and TensorFlow give at every kink, and what is new in the installed torch"
EXAMPLE = "pseudograd kinks clamp abs@0"
STATUS = "1 if --check finds something new, else 0"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("ops", nargs="*", metavar="OP", help="show these ops or points only, such as clamp or abs@0")
    add("--family", action="append", default=[], metavar="NAME", help="show this family only, such as norms")
    add("--changed", action="store_true", help="show only where torch versions differ, and why")
    measures = "measure the installed torch; exit with 1 if it differs from the table"
    add("--check", action="store_true", help=measures)
    add("--device", metavar="DEVICE", help="with --check: measure on this device (default: cpu)")
    backend = "with --check: measure code compiled by this backend of torch.compile, or by MODULE:FUNCTION"
    add("--backend", metavar="NAME", help=backend)
    add("--json", metavar="FILE", help="with --check: write the measurement to FILE")


def run(options: argparse.Namespace) -> int:
    import torch

    from ..table import load
    from ..text import changed_points, choose_points, table_text

    table = load()
    points = choose_points(table, options.ops, options.family)
    if options.check:
        return _check(options, table, points)
    for name in ("device", "backend", "json"):
        if getattr(options, name) is not None:
            raise ValueError(f"kinks: --{name} must stand with --check, got it alone. Add --check.")
    if options.changed:
        points = [point for point in points if point in changed_points(table)]
    print(table_text(table, points, torch.__version__))
    if options.changed:
        sentences = dict.fromkeys(f"{since}: {why}" for point in points for since, why in point.changes.items())
        print("", *sentences, sep="\n")
    return 0


def _check(options: argparse.Namespace, table: Table, points: list[Point]) -> int:
    from pseudograd.listen.program.files import checked_file, write
    from pseudograd.listen.program.signals import stoppable

    from ..check import check

    file = None if options.json is None else checked_file("kinks", "--json", Path(options.json))
    backend = options.backend
    with stoppable(), current_folder():
        if backend is not None and ":" in backend:
            backend = function_named("kinks", "--backend", backend)
        checked = check(table, points, device=options.device or "cpu", backend=backend)
    if file is not None:
        write("kinks", "--json", file, json.dumps(checked.as_json(), indent=1) + "\n")
    print(checked)
    return 1 if checked.new else 0
