"""`lint` and `explain` alone, without torch and the rest of the library."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from . import command
from .codes import Others


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"pseudograd: {message}. See {self.prog} --help.", file=sys.stderr)
        raise SystemExit(2)


def alone(given: Sequence[str], others: Others = lambda: ()) -> int:
    """`lint` or `explain`, with what `pseudograd.cli` gives every command: one line for a wrong call, and quiet ends.

    others: the codes that `explain` knows beside those of `lint`.
    """
    name, *rest = given
    parser = _Parser(prog=f"pseudograd {name}")
    if name == "lint":
        command.add_lint_arguments(parser)
        run: Callable[[argparse.Namespace], int] = command.lint
    else:
        command.add_explain_arguments(parser)
        run = partial(command.explain, others=others)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = run(parser.parse_args(rest))
        sys.stdout.flush()
        return status
    except ValueError as error:
        print(f"pseudograd: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except KeyboardInterrupt:
        print("pseudograd: stopped by Ctrl-C", file=sys.stderr)
        return 130
