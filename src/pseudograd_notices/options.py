"""Options that several commands share, and the meaning of those of `lint` and `diagnose`."""

from __future__ import annotations

import argparse
import fnmatch
import re
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path, PurePath

from .code import Code, select_codes
from .formats import FORMATS, Report
from .notice import Notice, baseline_text, new_notices, read_baseline


def add_program(command: argparse.ArgumentParser) -> None:
    command.add_argument("-m", dest="is_module", action="store_true", help="the program is a module, as in python -m")
    command.add_argument("program", metavar="SCRIPT", help="the script or, with -m, the module")
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the arguments of the program")


def add_output(command: argparse.ArgumentParser, example: str = "PG101", patterns: str = "") -> None:
    """patterns: what else `--ignore` takes here."""
    add_list = partial(command.add_argument, action="append", default=[])
    add_file = partial(command.add_argument, type=Path, metavar="FILE")
    codes = f"report these codes only: {example}, {example[:3]}, a name, default or all; separated by commas"
    ignored = f"leave out codes such as {example}, lines such as 'losses.py:12'{patterns}; separated by commas; may be repeated"
    add_list("--select", metavar="CODES", help=codes)
    add_list("--ignore", metavar="WHAT", help=ignored)
    add_file("--baseline", help="report only findings that this file does not have")
    add_file("--write-baseline", help="write the findings to FILE, for --baseline in later runs")
    formats = f"one of {', '.join(FORMATS)} (default: text)"
    command.add_argument("--output-format", metavar="FORMAT", default="text", help=formats)
    add_file("--output-file", help="write to FILE and not to the terminal")


def check_format(where: str, name: str) -> str:
    if name not in FORMATS:
        raise ValueError(f"{where}: --output-format must be one of {', '.join(FORMATS)}, got {name!r}.")
    return name


def split_words(texts: Iterable[str]) -> list[str]:
    """The words between commas; `layers.[0,1].*` is one word."""
    return [word.strip() for text in texts for word in re.split(r",(?![^\[]*\])", text) if word.strip()]


# A name without a hyphen, such as `cut`, may be a parameter's; `PG2O4` is a misread number.
_CODE = re.compile(r"PG\d\w*|PG|[a-z]+(-[a-z]+)+")


def split_ignore(where: str, texts: Sequence[str], codes: Sequence[Code]) -> tuple[set[str], list[str]]:
    """Of `--ignore` the numbers of the codes, and all other words: patterns for lines and, in a run, for parameters."""
    words = split_words(texts)
    names = [word for word in words if _CODE.fullmatch(word)]
    return select_codes(where, "--ignore", names, codes), [word for word in words if word not in names]


def is_at(notice: Notice, pattern: str) -> bool:
    """Does `losses.py:12`, `losses.py:*` or `models/*.py` name the location? Paths match by their end."""
    file, colon, line = pattern.rpartition(":")
    if not colon or not (line.isdigit() or line == "*"):
        file, line = pattern, "*"
    if line not in ("*", str(notice.line)):
        return False
    path = PurePath(notice.path).as_posix()
    return any(fnmatch.fnmatchcase(path, ending) for ending in (file, f"*/{file}"))


def apply_baseline(where: str, notices: Sequence[Notice], options: argparse.Namespace) -> list[Notice]:
    """The notices that `--baseline` does not know. Writes `--write-baseline`, and then all are known."""
    known = None if options.baseline is None else read_baseline(where, options.baseline)
    if options.write_baseline is not None:
        _write(where, "--write-baseline", options.write_baseline, baseline_text(notices))
        return []
    return list(notices) if known is None else new_notices(notices, known)


def render(where: str, report: Report, options: argparse.Namespace) -> str:
    """The text to print: nothing where `--output-file` got it."""
    text = FORMATS[check_format(where, options.output_format)](report)
    if options.output_file is None:
        return text
    _write(where, "--output-file", options.output_file, text)
    return ""


def _write(where: str, argument: str, file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"{where}: {argument} must lie where files can be written, got {str(file)!r}. {error.strerror}: choose another folder."
        ) from error
