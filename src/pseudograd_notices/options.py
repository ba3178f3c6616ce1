"""Options that several commands share, and what the options of `lint` and `diagnose` choose."""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import NamedTuple

from .code import Code, drop_codes_of_others, select_codes
from .formats import FORMATS, Report
from .notice import Key, Notice, baseline_text, new_notices, read_baseline
from .settings import Settings, is_file, read_settings


def add_program(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("-m", dest="is_module", action="store_true", help="the program is a module, as in python -m")
    add("program", metavar="SCRIPT", help="the script or, with -m, the module")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="the arguments of the program")


def add_output(command: argparse.ArgumentParser, example: str = "PG101", patterns: str = "") -> None:
    """The options of `lint` and `diagnose` about their output.

    example: a code for the help.
    patterns: the things that `--ignore` takes besides codes and lines, for its help.
    """
    add_list = partial(command.add_argument, action="append", default=[])
    add_file = partial(command.add_argument, type=Path, metavar="FILE")
    codes = f"report these codes only: {example}, {example[:3]}, a name, default or all; separated by commas"
    ignored = f"leave out codes such as {example}, lines such as 'losses.py:12'{patterns}; separated by commas; may be repeated"
    add_list("--select", metavar="CODES", help=codes)
    add_list("--ignore", metavar="WHAT", help=ignored)
    add_file("--baseline", help="report only findings that this file does not have")
    add_file("--write-baseline", help="write the findings to FILE, for --baseline in later runs")
    add_format(command)


def add_format(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    formats = f"one of {', '.join(FORMATS)} (default: text)"
    add("--output-format", metavar="FORMAT", default="text", help=formats)
    add("--output-file", type=Path, metavar="FILE", help="write to FILE and not to the terminal")


def check_format(where: str, name: str) -> str:
    if name not in FORMATS:
        raise ValueError(f"{where}: --output-format must be one of {', '.join(FORMATS)}, got {name!r}.")
    return name


def split_words(texts: Iterable[str]) -> list[str]:
    """The words between commas. `layers.[0,1].*` is one word."""
    return [word.strip() for text in texts for word in re.split(r",(?![^\[]*\])", text) if word.strip()]


# The words that `--ignore` takes as codes. A word without a hyphen, such as `cut`, may name a parameter. `PG2O4` is a misread number.
_CODE = re.compile(r"PG\d\w*|PG|[a-z]+(-[a-z]+)+")


def split_ignore(
    where: str, texts: Sequence[str], codes: Sequence[Code], argument: str = "--ignore"
) -> tuple[set[str], list[str]]:
    """The numbers of the codes in `--ignore`, and its other words: patterns for lines and, in `diagnose`, for parameters."""
    words = split_words(texts)
    names = [word for word in words if _CODE.fullmatch(word)]
    return select_codes(where, argument, names, codes), [word for word in words if word not in names]


def is_at(notice: Notice, pattern: str) -> bool:
    """Does `losses.py:12`, `losses.py:*` or `models/*.py` name the location? Paths match by their end."""
    file, colon, line = pattern.rpartition(":")
    if not colon or not (line.isdigit() or line == "*"):
        file, line = pattern, "*"
    if line not in ("*", str(notice.line)):
        return False
    path = PurePath(notice.path).as_posix()
    return any(fnmatch.fnmatchcase(path, ending) for ending in (file, f"*/{file}"))


class Chosen(NamedTuple):
    """The choice of the command line and of the settings of the project."""

    own: frozenset[str] = frozenset()  # all codes of the command
    numbers: frozenset[str] = frozenset()  # the codes to report
    patterns: tuple[str, ...] = ()  # the lines to leave out; in `diagnose` parameters, too
    files: tuple[tuple[str, frozenset[str]], ...] = ()  # pairs of a pattern for files, and the codes to leave out there
    exclude: tuple[str, ...] = ()  # the files and folders to leave out, unless the command line names them
    settings: Settings = Settings()

    def excludes(self, path: str) -> bool:
        """Do the settings leave out this file, even if the command line names it?"""
        return self.exclude == self.settings.exclude and self.settings.excludes(path)

    def leaves_out(self, notice: Notice) -> bool:
        spellings = notice, notice.rebase(self.settings.root)
        return any(is_at(spelling, pattern) for spelling in spellings for pattern in self.patterns) or any(
            notice.code in numbers and is_file(notice.path, pattern) for pattern, numbers in self.files
        )

    @property
    def ignore(self) -> list[str]:
        """Everything that is left out, for the argument `ignore` of a diagnosis."""
        files = [f"{number} in {pattern}" for pattern, ignored in self.files for number in sorted(ignored)]
        return [*self.patterns, *sorted(self.own - self.numbers), *files]


NO_CHOICE = Chosen()


def choose(
    where: str,
    codes: Sequence[Code],
    options: argparse.Namespace,
    default: str = "default",
    settings: Settings | None = None,
) -> Chosen:
    """The choice of `--select`, `--ignore` and `--exclude`. The settings replace an option that is not given.

    default: the selection if neither the option nor the settings select a code of this command.
    """
    settings = read_settings(where) if settings is None else settings
    if options.select:
        numbers = select_codes(where, "--select", split_words(options.select), codes)
    else:
        words = drop_codes_of_others(settings.select, codes) or [default]
        numbers = select_codes(where, settings.argument("select"), words, codes)
    if options.ignore:
        ignored, patterns = split_ignore(where, options.ignore, codes)
    else:
        words = drop_codes_of_others(settings.ignore, codes)
        ignored, patterns = split_ignore(where, words, codes, settings.argument("ignore"))
    files = []
    for pattern, texts in settings.per_file_ignores:
        words = drop_codes_of_others(texts, codes)
        inside = frozenset(select_codes(where, settings.argument("per-file-ignores"), words, codes))
        files += [(path, inside) for path in settings.file_patterns(pattern)]
    own = frozenset(code.number for code in codes)
    exclude = tuple(split_words(vars(options).get("exclude", ()))) or settings.exclude
    return Chosen(own, frozenset(numbers - ignored), tuple(patterns), tuple(files), exclude, settings)


def known_notices(where: str, options: argparse.Namespace, settings: Settings) -> Counter[Key] | None:
    """The notices of `--baseline`; or of the baseline in the settings, if neither this option nor `--write-baseline` is given."""
    if options.baseline is not None:
        return read_baseline(where, "--baseline", options.baseline)
    if options.write_baseline is not None or settings.baseline_file is None:
        return None
    return read_baseline(where, settings.argument("baseline"), settings.baseline_file)


def apply_baseline(where: str, notices: Sequence[Notice], options: argparse.Namespace, chosen: Chosen) -> list[Notice]:
    """The notices that no baseline knows. With `--write-baseline`, write the file; then all notices are known."""
    root = chosen.settings.root
    known = known_notices(where, options, chosen.settings)
    if options.write_baseline is not None:
        text = baseline_text(notices, chosen.own, options.write_baseline, root)
        _write(where, "--write-baseline", options.write_baseline, text)
        return []
    return list(notices) if known is None else new_notices(notices, known, root)


def print_answer(where: str, answer: object, report: Report, options: argparse.Namespace) -> None:
    """Print the answer as text. With another format, print the report to stdout and the text to stderr; with `--output-file`, write the
    report and print the text to stdout.
    """
    if options.output_format == "text":
        if options.output_file is None:
            print(answer)
        else:
            _write(where, "--output-file", options.output_file, f"{answer}\n")
        return
    rendered = render(where, report, options)
    print(rendered, end="")
    print(answer, file=sys.stderr if rendered else sys.stdout)


def render(where: str, report: Report, options: argparse.Namespace) -> str:
    """The report as text to print; "" if it was written to `--output-file`."""
    text = FORMATS[check_format(where, options.output_format)](report)
    if options.output_file is None:
        return text
    _write(where, "--output-file", options.output_file, text)
    return ""


def _write(where: str, argument: str, file: Path, text: str) -> None:
    """Write the whole file, or leave an older file unchanged."""
    is_device = file.exists() and not file.is_file()  # such as /dev/stdout
    target = file.resolve()
    staged = file if is_device else target.with_name(f".{target.name}-{os.getpid()}")
    try:
        staged.write_text(text, encoding="utf-8")
        if not is_device:
            staged.replace(target)
    except OSError as error:
        if not is_device:
            staged.unlink(missing_ok=True)
        raise ValueError(
            f"{where}: {argument} must lie where files can be written, got {str(file)!r}. {error.strerror}: choose another folder."
        ) from error
