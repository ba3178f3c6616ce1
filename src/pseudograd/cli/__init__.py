"""The command line: one file for each command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from ..listen.program import output
from ..listen.program.signals import Stopped
from ._command import commands

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 for success, 2 for a call that cannot be answered, with one line on stderr.

    Also 141 where the reader of a pipe left, 130 or 143 after Ctrl-C or SIGTERM, and what `run` and `doctor --expect` say.
    """
    try:
        options = _parsed(sys.argv[1:] if arguments is None else arguments)
        with output.plain():
            return _answer(options)
    except BrokenPipeError:
        output.abandon(sys.stdout)
        return 128 + 13
    except OSError as error:  # a full disk behind the standard output
        output.abandon(sys.stdout)
        print(f"pseudograd: {error}", file=sys.stderr)
        return 2


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    try:
        return _parser(arguments).parse_args(arguments)
    finally:
        sys.stdout.flush()  # --help and --version end here


def _answer(options: argparse.Namespace) -> int:
    try:
        return options.run(options) or 0
    except (ValueError, TypeError, ImportError) as error:
        print(f"pseudograd: {error}", file=sys.stderr)
        return 2
    except Stopped as stop:
        print(f"pseudograd: {stop}; nothing is left half-written", file=sys.stderr)
        return stop.status
    except KeyboardInterrupt:
        print("pseudograd: stopped by Ctrl-C", file=sys.stderr)
        return 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"pseudograd: {message}. See {self.prog} --help.", file=sys.stderr)
        raise SystemExit(2)


class _Version(argparse.Action):
    """Looked up when asked for: the version stands in the metadata of the installed package."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from .. import __version__

        print(f"pseudograd {__version__}")
        parser.exit()


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Of every command the line in --help; of the one that `arguments` ask for what it takes, too."""
    parser = _Parser(prog="pseudograd", description="Choose the gradient of a clamp, and see what the choice does.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.set_defaults(run=lambda options: print(parser.format_help(), end=""))
    added = parser.add_subparsers(title="commands", metavar="COMMAND")
    asked = next((word for word in arguments if not word.startswith("-")), None)
    for name, command in commands().items():
        of_command = added.add_parser(name, help=command.help)
        of_command.set_defaults(run=command.run, extensions=command.extensions)
        if name == asked:
            for part in (command, *command.extensions):
                part.add_arguments(of_command)
    return parser
