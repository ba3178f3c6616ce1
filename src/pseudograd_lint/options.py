"""Options that `lint` and `diagnose` share, and what they mean."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from . import baseline
from .code import Code
from .codes import selected
from .formats import FORMATS, Report
from .notice import Notice


def add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--select", metavar="CODES", action="append", default=[], help="PG101, PG1, a name, default or all; with commas"
    )
    command.add_argument(
        "--baseline", type=Path, metavar="FILE", help="findings that stand there are known, and only new ones count"
    )
    command.add_argument(
        "--write-baseline", type=Path, metavar="FILE", help="write what is found there, as known from now on"
    )
    command.add_argument(
        "--output-format", metavar="FORMAT", default="text", help=f"{', '.join(FORMATS)} (default: text)"
    )
    command.add_argument("--output-file", type=Path, metavar="FILE", help="write it there and not to the terminal")


def checked_format(where: str, name: str) -> str:
    if name not in FORMATS:
        raise ValueError(f"{where}: --output-format must be one of {', '.join(FORMATS)}, got {name!r}.")
    return name


def words(texts: Iterable[str]) -> list[str]:
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def ignored(where: str, patterns: Sequence[str], codes: Sequence[Code]) -> tuple[set[str], list[str]]:
    """`--ignore` leaves out what it names: codes by number, everything else is a pattern for lines (and, in a run, for parameters)."""
    some = words(patterns)
    numbers = [word for word in some if word[:2] == "PG" and (word[2:].isdigit() or not word[2:])]
    return selected(where, "--ignore", numbers, codes), [word for word in some if word not in numbers]


def is_at(one: Notice, pattern: str) -> bool:
    """`losses.py:12`, `losses.py:*` or `models/*.py`: by the end of the path."""
    file, colon, line = pattern.rpartition(":")
    if not colon or not (line.isdigit() or line == "*"):
        file, line = pattern, "*"
    if line not in ("*", str(one.line)):
        return False
    path = PurePath(one.path).as_posix()
    return any(fnmatch.fnmatchcase(path, each) for each in (file, f"*/{file}"))


def write(where: str, argument: str, file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"{where}: {argument} must lie where files can be written, got {str(file)!r}. {error.strerror}: choose another folder."
        ) from error


def new_ones(where: str, found: Sequence[Notice], options: argparse.Namespace) -> list[Notice]:
    """Without what `--baseline` knows; writes `--write-baseline`."""
    known = baseline.read(where, options.baseline) if options.baseline is not None else None
    if options.write_baseline is not None:
        write(where, "--write-baseline", options.write_baseline, baseline.text(found))
        return []
    return list(found) if known is None else baseline.new(found, known)


def rendered(where: str, report: Report, options: argparse.Namespace) -> str:
    """What is to be printed: nothing where it went to a file."""
    text = FORMATS[checked_format(where, options.output_format)](report)
    if options.output_file is None:
        return text
    write(where, "--output-file", options.output_file, text)
    return ""
