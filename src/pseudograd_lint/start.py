"""Where the command `pseudograd` begins: `lint` and `explain` need no torch, and start without it. Everything else is `pseudograd.cli`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"pseudograd: {message}. See {self.prog} --help.", file=sys.stderr)
        raise SystemExit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] not in (["lint"], ["explain"]):
        from pseudograd.cli import main as all_commands

        return all_commands(arguments)
    return alone(given)


def alone(given: Sequence[str]) -> int:
    """`lint` or `explain`, with what `pseudograd.cli` gives every command: one line for a wrong call, and quiet ends."""
    from . import command

    name, *rest = given
    parser = _Parser(prog=f"pseudograd {name}")
    add, run = {
        "lint": (command.add_lint_arguments, command.lint),
        "explain": (command.add_explain_arguments, command.explain),
    }[name]
    add(parser)
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


if __name__ == "__main__":
    sys.exit(main())
