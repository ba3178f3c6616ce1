"""Command lines of the benchmarks: what is wrong with one is said in one line, with exit status 2."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}. See {self.prog} --help.", file=sys.stderr)
        raise SystemExit(2)


def at_least(least: float, kind: type[int] | type[float] = int) -> object:
    """A type for argparse."""

    def number(text: str) -> float:
        try:
            value = kind(float(text))
        except (ValueError, OverflowError):
            value = kind(least) - 1
        if not value >= least:
            raise argparse.ArgumentTypeError(f"must be a number of at least {least:g}, got {text!r}")
        return value

    return number


def sizes(text: str) -> tuple[int, ...]:
    """10,1e5: whole numbers of elements."""
    try:
        found = tuple(int(float(part)) for part in text.split(","))
    except (ValueError, OverflowError):
        found = ()
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"must be numbers of elements such as 10,1e5, got {text!r}")
    return found


def new_file(text: str) -> Path:
    """In a folder that is there: it is better to know that before minutes of measuring."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file in an existing folder, got {text!r}")
    return path
