"""The command `pseudograd upgrade`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from pseudograd_notices.options import add_format, add_program, check_format, print_answer

PLACE = 75
HELP = "will this training survive the new torch? Which line differs first?"
EXAMPLE = "pseudograd upgrade --to torch==2.15.0 train.py --epochs 1"
STATUS = "0 if the training survives, 1 if not"
CODES = "pseudograd_notices.answers"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add(
        "--from",
        dest="old",
        metavar="PY",
        help="Python interpreter with the torch that you use now (with --to torch==2.15.0, default: this one)",
    )
    add(
        "--to",
        dest="new",
        metavar="PY",
        help="Python interpreter with the torch to upgrade to; torch==2.15.0 makes one with the packages of --from",
    )
    add(
        "--routes",
        metavar="ONE,OTHER",
        help="compare two ways to run on one torch (of --from, default: this one): eager,inductor, eager,aot_eager or cpu,cuda",
    )
    add("--seed", type=int, default=0, metavar="N", help="seed of random, numpy and torch (default: 0)")
    add("--steps", type=int, metavar="N", help="end each run after N backward passes")
    add("--time-limit", type=float, metavar="SECONDS", help="stop each run after this time")
    add("--max-runs", type=int, metavar="N", help="run the program at most this often, 2 or more")
    add("-v", "--verbose", action="store_true", help="show the output of the program, and all packages that differ")
    add("--json", type=Path, metavar="FILE", help="also write the answer to FILE, as JSON")
    add(
        "--cut-out",
        type=Path,
        metavar="FILE",
        help="write a program of ten lines that shows the difference to FILE, if one exists",
    )
    add_format(command)
    add_program(command)


def run(options: argparse.Namespace) -> int:
    from pseudograd.listen.program.files import checked_file, json_text, write
    from pseudograd.listen.program.signals import stoppable
    from pseudograd_notices.answers import report_upgrade
    from pseudograd_notices.settings import read_settings

    from ..answer import Answer
    from ..environments import describe_packages
    from ..routes.question import compare_routes, parse_routes
    from ..runs import Limits, open_runner
    from ..suite import compare_suites
    from ..suite_answer import SuiteAnswer
    from ..upgrade import compare_torches

    _check_combination(options)
    check_format("upgrade", options.output_format)
    settings = read_settings("upgrade")
    routes = None if options.routes is None else parse_routes(options.routes)
    files: dict[str, Path] = {}
    for name in ("json", "cut_out", "output_file"):
        if (file := getattr(options, name)) is not None:
            files[name] = checked_file("upgrade", f"--{name.replace('_', '-')}", file)
    limits = Limits(options.time_limit, options.max_runs, options.verbose, options.steps)
    answer: Answer | SuiteAnswer
    with (
        stoppable(),
        open_runner(options.program, options.arguments, options.is_module, options.seed, limits) as runner,
    ):
        if routes is None and _is_suite(options):
            answer = compare_suites(runner, options.old, options.new)
            if settings.pin and not any(word.startswith("--pseudograd-pin") for word in options.arguments):
                note = f"the suite ran under the pin {settings.pin!r}, by {settings.argument('pin')}"
                answer = replace(answer, notes=(*answer.notes, f"{note}; --pseudograd-pin none asks without it"))
        elif routes is None:
            answer = compare_torches(runner, options.old, options.new)
        else:
            answer = compare_routes(runner, options.old or sys.executable, routes)
    if options.verbose and answer.packages:
        print(f"upgrade: {describe_packages(answer.packages, len(answer.packages))}", file=sys.stderr)
    if "cut_out" in files and answer.cut is not None and answer.cut.program:
        write("upgrade", "--cut-out", files["cut_out"], answer.cut.file(answer.torch))
    text = json_text(answer.to_json())
    if "json" in files:
        write("upgrade", "--json", files["json"], text)
    options.output_file = files.get("output_file")
    print_answer("upgrade", answer, report_upgrade(text, options.program), options)
    return 0 if answer.survives else 1


def _is_suite(options: argparse.Namespace) -> bool:
    return bool(options.is_module and options.program == "pytest")


def _check_combination(options: argparse.Namespace) -> None:
    if options.time_limit is not None and not options.time_limit > 0:
        raise ValueError(f"upgrade: --time-limit must be above 0, got {options.time_limit}.")
    if not 0 <= options.seed < 2**32:
        raise ValueError(f"upgrade: --seed must lie in 0 to 4294967295, got {options.seed}.")
    for name, value, least in (("max-runs", options.max_runs, 2), ("steps", options.steps, 1)):
        if value is not None and value < least:
            raise ValueError(f"upgrade: --{name} must be at least {least}, got {value}.")
    if options.steps is not None and _is_suite(options):
        raise ValueError("upgrade: --steps must not come with -m pytest, got both. --time-limit stops a suite.")
    if options.routes is not None:
        for name, value in (("to", options.new), ("cut-out", options.cut_out)):
            if value is not None:
                raise ValueError(f"upgrade: --routes must not come with --{name}, got both. It asks about one torch.")
        return
    from ..environments import is_requirement

    for name, value, other in (("from", options.old, options.new), ("to", options.new, options.old)):
        if value is None and not is_requirement(other):
            raise ValueError(f"upgrade: --{name} must be given, got none. Name an interpreter with its torch.")
