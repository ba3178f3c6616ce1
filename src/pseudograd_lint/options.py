"""Options that `lint` and `diagnose` share, and what they mean."""

from __future__ import annotations

import argparse
import fnmatch
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from . import baseline
from .code import Code
from .codes import LINT, selected
from .formats import FORMATS, Report
from .notice import Notice


def add_output(command: argparse.ArgumentParser, example: str = "PG101", patterns: str = "") -> None:
    """patterns: what else `--ignore` takes here."""
    command.add_argument(
        "--select",
        metavar="CODES",
        action="append",
        default=[],
        help=f"{example}, {example[:3]}, a name, default or all; with commas",
    )
    command.add_argument(
        "--ignore",
        metavar="WHAT",
        action="append",
        default=[],
        help=f"codes such as {example}, lines such as 'losses.py:12'{patterns}; with commas, and may be repeated",
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
    """Between commas; `layers.[0,1].*` is one."""
    return [word.strip() for text in texts for word in re.split(r",(?![^\[]*\])", text) if word.strip()]


def ignored(where: str, patterns: Sequence[str], codes: Sequence[Code]) -> tuple[set[str], list[str]]:
    """`--ignore` leaves out what it names: codes, and everything else is a pattern for lines (and, in a run, for parameters)."""
    some = words(patterns)
    names = {code.name for code in (*LINT, *codes) if "-" in code.name}
    asked = [word for word in some if _NUMBER.fullmatch(word) or word in names]
    return selected(where, "--ignore", asked, codes), [word for word in some if word not in asked]


_NUMBER = re.compile(
    r"PG\d\w*|PG"
)  # `PG2O4` is a misread one; a name without a hyphen, such as `cut`, may be a parameter's


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
