"""The command `pseudograd explain`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module

from ..code import Code, explain, find_code, list_codes, unknown_code
from ..command_line import code_modules

PLACE = 66
HELP = "explain a code that a command prints, and say what to do"
EXAMPLE = "pseudograd explain PG101"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "code", nargs="?", metavar="CODE", help="a code or its name, such as PG101 or born-on-bound (default: all)"
    )


def run(options: argparse.Namespace) -> int:
    codes: list[Code] = []
    ranges = []
    error: ImportError | None = None
    for module in code_modules():
        try:
            table: Sequence[Code] = import_module(module).CODES
        except ImportError as missing:
            error = missing
            continue
        code = None if options.code is None else find_code(options.code, table)
        if code is not None:
            print(explain(code), end="")
            return 0
        codes += table
        ranges.append(f"{table[0].number} to {table[-1].number}")
    if error is not None and options.code is not None:
        names = " or ".join(ranges)
        raise ValueError(f"explain: {options.code!r} is none of {names}, and every other code needs torch: {error}.")
    if options.code is not None:
        raise unknown_code("explain", "code", codes, options.code)
    print(list_codes(codes), end="")
    return 0
