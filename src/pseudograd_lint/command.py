"""The commands `pseudograd lint` and `pseudograd explain`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from .codes import LINT, Others, asked, explained, listed, selected
from .formats import Report
from .notice import Notice, Problem
from .options import add_output, checked_format, ignored, is_at, new_ones, rendered, words
from .sources import files, of_bytes, of_file

CLEAN, FOUND, WRONG = 0, 1, 2
_WORTH_A_PROCESS = 400  # files


def add_lint_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("paths", nargs="+", metavar="PATH", help="files, folders or - for the standard input")
    add_output(command)
    command.add_argument(
        "--exclude", metavar="PATTERN", action="append", default=[], help="folders and files not to read"
    )
    command.add_argument(
        "--stdin-filename", metavar="FILE", default="<stdin>", help="what the standard input is called"
    )
    command.add_argument("--jobs", type=int, metavar="N", default=0, help="processes (default: two for many files)")
    command.add_argument("--exit-zero", action="store_true", help="status 0 with findings, too")


def lint(options: argparse.Namespace) -> int:
    """0 clean, 1 findings, 2 for a wrong call or a file that cannot be read."""
    numbers = selected("lint", "--select", words(options.select) or ["default"], LINT)
    left_out, patterns = ignored("lint", options.ignore, LINT)
    checked_format("lint", options.output_format)
    _checked(options)
    found, problems, count = _of_all(options, sorted(numbers - left_out))
    found = [one for one in found if not any(is_at(one, pattern) for pattern in patterns)]
    told = new_ones("lint", found, options)
    report = Report("lint", _version(), told, problems, LINT, count, len(found) - len(told))
    print(rendered("lint", report, options), end="")
    return WRONG if problems else FOUND if told and not options.exit_zero else CLEAN


def _checked(options: argparse.Namespace) -> None:
    if options.jobs < 0:
        raise ValueError(
            f"lint: --jobs must be at least 1, or 0 for the default, got {options.jobs}. Name how many processes."
        )
    for path in options.paths:
        if path != "-" and os.path.islink(path) and not os.path.exists(path):
            to = os.readlink(path)
            raise ValueError(
                f"lint: PATH must exist, got {path!r}, a link to {to!r} that leads nowhere. Mend or remove the link."
            )
        if path != "-" and not os.path.exists(path):
            raise ValueError(f"lint: PATH must exist, got {path!r}. Name files, folders or - for the standard input.")


def _of_all(options: argparse.Namespace, numbers: Sequence[str]) -> tuple[list[Notice], list[Problem], int]:
    parts: list[tuple[list[Notice], list[Problem]]] = []
    named = list(dict.fromkeys(path for path in options.paths if path != "-"))
    if "-" in options.paths:
        parts.append(of_bytes(sys.stdin.buffer.read(), options.stdin_filename, numbers))
    some = list(files(named, words(options.exclude)))
    jobs = options.jobs or (2 if len(some) >= _WORTH_A_PROCESS and (os.cpu_count() or 1) > 1 else 1)
    if jobs > 1:
        with ProcessPoolExecutor(jobs) as pool:
            parts += pool.map(of_file, some, [numbers] * len(some), chunksize=32)
    else:
        parts += [of_file(file, numbers) for file in some]
    found = [one for notices, _ in parts for one in notices]
    problems = [one for _, wrong in parts for one in wrong]
    return found, problems, len(some) + ("-" in options.paths)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pseudograd")
    except PackageNotFoundError:  # run from its source
        return "0"


def add_explain_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "code", nargs="?", metavar="CODE", help="such as PG101 or born-on-bound; all of them if left out"
    )


def explain(options: argparse.Namespace, others: Others) -> int:
    print(listed((*LINT, *others())) if options.code is None else explained(asked(options.code, others)), end="")
    return 0
