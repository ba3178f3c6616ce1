"""The command `pseudograd lint`."""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor

from pseudograd_notices.formats import Report
from pseudograd_notices.notice import Notice, Problem
from pseudograd_notices.options import Chosen, add_output, apply_baseline, check_format, choose, render
from pseudograd_notices.workers import end_with_parent

from ..rules import CODES as TABLE
from ..sources import check_bytes, check_file, files

PLACE = 65
HELP = "find risky clamps and their relatives in source, without running it"
EXAMPLE = "pseudograd lint --exclude build src"
STATUS = "0 without findings or with --exit-zero, 1 with findings, 2 if a file cannot be read"
CODES = "pseudograd_lint.rules"
_FILES_FOR_TWO_PROCESSES = 400


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("paths", nargs="+", metavar="PATH", help="files, folders or - for the standard input")
    add_output(command)
    add("--exclude", metavar="PATTERN", action="append", default=[], help="folders and files to skip; repeatable")
    add("--stdin-filename", metavar="FILE", default="<stdin>", help="name of the standard input in findings")
    add("--jobs", type=int, metavar="N", default=0, help="number of processes (default: two for many files)")
    add("--statistics", action="store_true", help="print how often each code was found, below the text")
    add("--fix", action="store_true", help="mend PG104 at a where if no value changes; needs --select PG104")
    add("--exit-zero", action="store_true", help="exit with 0 even if there are findings")


def run(options: argparse.Namespace) -> int:
    chosen = choose("lint", TABLE, options)
    if check_format("lint", options.output_format) != "text" and options.statistics:
        raise ValueError(f"lint: --statistics must go with text, got {options.output_format!r}. Leave one of them out.")
    if options.fix:
        from ..fix import FIXED, fix_files

        if FIXED not in chosen.numbers or "-" in options.paths:
            got = "the standard input" if FIXED in chosen.numbers else "other codes"
            raise ValueError(
                f"lint: --fix must go with files and --select {FIXED}, got {got}. No other code has an exact mend."
            )
    _check_paths(options)
    notices, problems, count = _check_all(options, chosen)
    if options.fix:
        print(f"lint: files mended: {fix_files(notices)}", file=sys.stderr)
        notices, problems, count = _check_all(options, chosen)
    new = apply_baseline("lint", notices, options, chosen)
    report = Report("lint", new, problems, TABLE, count, len(notices) - len(new), options.statistics)
    print(render("lint", report, options), end="")
    return 2 if problems else int(bool(new) and not options.exit_zero)


def _check_paths(options: argparse.Namespace) -> None:
    for path in options.paths:
        if path != "-" and not os.path.exists(path):
            remedy = ". Name files, folders or - for the standard input."
            if os.path.islink(path):
                remedy = f", a link to {os.readlink(path)!r} that leads nowhere. Mend or remove the link."
            raise ValueError(f"lint: PATH must exist, got {path!r}{remedy}")


def _check_all(options: argparse.Namespace, chosen: Chosen) -> tuple[list[Notice], list[Problem], int]:
    """The notices, the problems, and how many files were read."""
    paths = list(files(list(dict.fromkeys(options.paths)), chosen.exclude))
    paths = [path for path in paths if not chosen.excludes(options.stdin_filename if path == "-" else path)]
    numbers = sorted(chosen.numbers)
    results: list[tuple[list[Notice], list[Problem]]] = []
    if "-" in paths:
        results.append(check_bytes(sys.stdin.buffer.read(), options.stdin_filename, numbers))
        paths.remove("-")
    has_many = len(paths) >= _FILES_FOR_TWO_PROCESSES and (os.cpu_count() or 1) > 1
    jobs = options.jobs or (2 if has_many else 1)
    if jobs > 1:
        with ProcessPoolExecutor(jobs, initializer=end_with_parent) as pool:
            results += pool.map(check_file, paths, [numbers] * len(paths), chunksize=32)
    else:
        results += [check_file(path, numbers) for path in paths]
    notices = [notice for part, _ in results for notice in part if not chosen.leaves_out(notice)]
    return notices, [problem for _, part in results for problem in part], len(results)
