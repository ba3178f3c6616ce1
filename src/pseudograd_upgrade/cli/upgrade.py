"""The command `pseudograd upgrade`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pseudograd.cli._arguments import add_program

if TYPE_CHECKING:
    from ..answer import Answer

PLACE = 75
HELP = "will this training survive the new torch? Which line differs first?"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--from", dest="old", metavar="PY", help="the interpreter with the torch of today")
    command.add_argument("--to", dest="new", metavar="PY", help="the interpreter with the torch to upgrade to")
    command.add_argument(
        "--against", type=Path, metavar="FILE", help="compare with digests kept there, not with --from"
    )
    command.add_argument(
        "--routes",
        metavar="ONE,OTHER",
        help="two ways through one torch, that of --from or of this command: eager,inductor, eager,aot_eager or cpu,cuda",
    )
    command.add_argument(
        "--keep", type=Path, metavar="FILE", help="write the digests of --from there; --to may be left out"
    )
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of random, numpy and torch (default: 0)")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the answer there, too, as JSON")
    command.add_argument(
        "--cut-out",
        type=Path,
        metavar="FILE",
        help="write the program of ten lines that shows it there, where there is one",
    )
    add_program(command)


def run(options: argparse.Namespace) -> int:
    from pseudograd.listen.program.files import checked_file, write

    from ..upgrade import upgrade

    if options.routes is not None:
        return _routes(options)
    if (options.old is None) == (options.against is None):
        raise ValueError("upgrade: one of --from and --against must be given, got both or neither.")
    if options.keep is not None and options.old is None:
        raise ValueError("upgrade: --keep must come with --from, got --against. The file is there already.")
    if options.new is None and (options.keep is None):
        raise ValueError(
            "upgrade: --to must be given, got none. With --from and --keep alone digests are kept for later."
        )
    json_file = None if options.json is None else checked_file("upgrade", "--json", options.json)
    cut_out = None if options.cut_out is None else checked_file("upgrade", "--cut-out", options.cut_out)
    keep = None if options.keep is None else checked_file("upgrade", "--keep", options.keep)
    answer = upgrade(
        options.program,
        options.arguments,
        old=options.old,
        new=options.new,
        against=options.against,
        keep=keep,
        is_module=options.is_module,
        seed=options.seed,
        on_run=_print_run,
    )
    if answer is None:
        print(f"upgrade: digests kept in {options.keep}")
        return 0
    if cut_out is not None and answer.cut is not None and answer.cut.program:
        write("upgrade", "--cut-out", cut_out, answer.cut.file(answer.torch))
    return _report(answer, json_file)


def _routes(options: argparse.Namespace) -> int:
    from pseudograd.listen.program.files import checked_file

    from ..routes.interpreters import parse_routes
    from ..routes.question import compare_routes

    others = {"--to": options.new, "--against": options.against, "--keep": options.keep, "--cut-out": options.cut_out}
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"upgrade: --routes must not come with {name}, got both. It asks about one torch.")
    routes = parse_routes(options.routes)
    json_file = None if options.json is None else checked_file("upgrade", "--json", options.json)
    answer = compare_routes(
        options.program,
        options.arguments,
        python=options.old or sys.executable,
        routes=routes,
        is_module=options.is_module,
        seed=options.seed,
        on_run=_print_run,
    )
    return _report(answer, json_file)


def _report(answer: Answer, json_file: Path | None) -> int:
    from pseudograd.listen.program.files import json_text, write

    if json_file is not None:
        write("upgrade", "--json", json_file, json_text(answer.to_json()))
    print(answer)
    return 0 if answer.survives else 1


def _print_run(run: int, text: str) -> None:
    print(f"upgrade: run {run}: {text}", file=sys.stderr, flush=True)
