"""The command line. Each public file of the folder `cli` of a package `pseudograd*` is the command of its name; no list names them.

A command's file has these names: `PLACE`, a number that orders the lines of `pseudograd --help`; `HELP`, its line there; `EXAMPLE`, a call;
`STATUS`, the meaning of its exit statuses; `add_arguments(parser)`; and `run(options)`, which returns the exit status. The file is imported
only when the command is called. For help texts, the `__init__` of its package does not run, because it may import torch.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import NoReturn

from . import output, own_version

_STOPPED = "pseudograd: stopped by Ctrl-C"


def command_files() -> dict[str, Path]:
    """The file of every command, by the command's name."""
    return {file.stem: file for file in Path(__file__).parents[1].glob("pseudograd*/cli/[!_]*.py")}


def literals(file: Path) -> dict[str, object]:
    """The literals at the top of a file, read without importing it."""
    values: dict[str, object] = {}
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign):
            with suppress(ValueError):  # the value is no literal
                value = ast.literal_eval(statement.value)
                values |= {target.id: value for target in statement.targets if isinstance(target, ast.Name)}
    return values


def code_modules() -> list[str]:
    """The modules that the commands name as `CODES`. Those that need torch come last."""
    constants = map(literals, command_files().values())
    modules = {str(values["CODES"]) for values in constants if "CODES" in values}
    return sorted(modules, key=lambda module: (module.startswith("pseudograd."), module))


@contextmanager
def _uninitialised_packages() -> Iterator[None]:
    """Import the files of commands without the `__init__` of their packages, which import torch. Afterwards these imports are undone."""
    before = set(sys.modules)
    packages = {file.parts[-3] for file in command_files().values()} - before
    for name in packages:
        if (spec := find_spec(name)) is not None:
            sys.modules[name] = module_from_spec(spec)
    try:
        yield
    finally:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in packages:
                del sys.modules[name]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit status, or 2 with one line on stderr for a wrong call.

    The status is 141 if the reader of a pipe left, 130 after Ctrl-C, and 143 after SIGTERM.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if signal.getsignal(signal.SIGINT) is _end_import:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with output.plain():
            return _run(words, is_process=arguments is None)
    except BrokenPipeError:
        output.abandon(sys.stdout)
        return 128 + 13  # SIGPIPE, which Windows does not define
    except OSError as error:  # a full disk behind the standard output
        output.abandon(sys.stdout)
        print(f"pseudograd: {error}", file=sys.stderr)
        return 2


def _runs_as_module() -> bool:
    """Is `python -m pseudograd` importing the library, which comes before its command?"""
    return sys.argv[:1] == ["-m"] and any(word.removeprefix("-m") == "pseudograd" for word in sys.orig_argv[1:])


def run_without_torch(error: ModuleNotFoundError) -> None:
    """If the import of `python -m pseudograd` failed because torch is missing, run the command: some commands need no torch."""
    if error.name == "torch" and _runs_as_module():
        sys.argv[0] = "pseudograd"
        sys.exit(main())


def handle_ctrl_c_in_import() -> None:
    """While `python -m pseudograd` imports the library, Ctrl-C ends it as it ends a command."""
    if _runs_as_module() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_import)


def _end_import(number: int, frame: object) -> None:
    print(_STOPPED, file=sys.stderr, flush=True)
    os._exit(128 + number)


def _run(words: Sequence[str], is_process: bool) -> int:
    """Run the command, and return its exit status. is_process: does this process end with the command?"""
    try:
        with _uninitialised_packages() if words[1:] in (["-h"], ["--help"]) else nullcontext():
            options = build_parser(words).parse_args(words)
        return options.run(options) or 0
    except (ValueError, TypeError, ImportError) as error:
        needs_torch = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        text = f"{words[0]}: {sys.executable} must have torch, got none. Install it" if needs_torch else error
        print(f"pseudograd: {text}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:  # with a text and a status if the command has cleaned up
        for number in (signal.SIGINT, signal.SIGTERM) if is_process else ():
            signal.signal(number, signal.SIG_IGN)  # a second signal would show a traceback while Python ends
        if known := getattr(stop, "known", ""):
            try:
                print(known, flush=True)
            except BrokenPipeError:  # the status still tells of the signal
                output.abandon(sys.stdout)
        print(f"pseudograd: {stop}; nothing is left half-written" if stop.args else _STOPPED, file=sys.stderr)
        return getattr(stop, "status", 130)
    finally:
        sys.stdout.flush()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        message = message.replace(
            "SCRIPT, ...", "SCRIPT"
        )  # "..." are the arguments of the program, which may be left out
        print(f"pseudograd: {message}. See {self.prog} --help.", file=sys.stderr)
        raise SystemExit(2)


class _Formatter(argparse.HelpFormatter):
    """Wraps each line of a text by itself and keeps its indent."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(
            textwrap.fill(line, width, subsequent_indent=" " * (len(line) - len(line.lstrip())))
            for line in text.splitlines()
        )


class _Version(argparse.Action):
    """Prints the version, which is looked up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"pseudograd {own_version()}")
        parser.exit()


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser for these words. If they begin with a command, it has all arguments of this command, else the list of commands."""
    parser = _Parser(prog="pseudograd", description="Choose the gradient of a clamp, and see what the choice does.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.add_argument("--completion", metavar="SHELL", help="print what a shell completes by: bash, zsh or fish")
    parser.set_defaults(
        run=lambda options: print(
            _completion(options.completion) if options.completion else parser.format_help(), end=""
        )
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    files = command_files()
    name = words[0] if words else "--help"
    if name in files:
        _add_command(subparsers, name, files[name])
        return parser
    constants = {command_name: literals(file) for command_name, file in files.items()}
    for command_name in sorted(constants, key=lambda command_name: (constants[command_name]["PLACE"], command_name)):
        subparsers.add_parser(command_name, help=str(constants[command_name]["HELP"]))
    if not name.startswith("-"):
        close = difflib.get_close_matches(name, files, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        parser.error(f"COMMAND must be one of {', '.join(subparsers.choices)}, got {name!r}{hint}")
    return parser


def _add_command(subparsers: argparse._SubParsersAction[_Parser], name: str, file: Path) -> argparse.ArgumentParser:
    """A command with all its arguments."""
    module = import_module(f"{file.parts[-3]}.cli.{name}")
    command = subparsers.add_parser(
        name,
        help=module.HELP,
        description=f"{name}: {module.HELP}",
        epilog=f"example:\n  {module.EXAMPLE}\n\nexit status:\n  {getattr(module, 'STATUS', '0')}; 2 for a wrong call",
        formatter_class=_Formatter,
    )
    command.set_defaults(run=module.run)
    module.add_arguments(command)
    return command


def _completion(shell: str) -> str:
    """The script by which a shell completes every command and its options."""
    try:
        import shtab
    except ImportError as error:
        packages = 'shtab must be installed, got none. Run pip install "pseudograd[completion]".'
        raise ImportError(f"--completion: {packages}") from error
    if shell not in shtab.SUPPORTED_SHELLS:
        raise ValueError(f"--completion must be one of {', '.join(shtab.SUPPORTED_SHELLS)}, got {shell!r}")
    parser = _Parser(prog="pseudograd")
    commands = parser.add_subparsers()
    with _uninitialised_packages():
        for name, file in command_files().items():
            for action in _add_command(commands, name, file)._actions:
                if action.type is Path or action.metavar in ("SCRIPT", "PATH", "PY"):
                    action.complete = shtab.FILE  # type: ignore[attr-defined]
    return shtab.complete(parser, shell=shell)
