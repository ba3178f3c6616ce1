"""The commands that pages show: what they are, and whether the program that they call takes them."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pseudograd.rule import OPS
from pseudograd_notices.command_line import build_parser

from .blocks import PAGES, ROOT, prose_of
from .checked import SHELL


class Command(NamedTuple):
    """One line of a block, without its comment."""

    where: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.words)

    @property
    def page(self) -> str:
        return self.where.partition(":")[0]


def _lines() -> Iterator[Command]:
    for block in SHELL:
        for number, line in enumerate(block.text.splitlines(), block.line + 1):
            words = shlex.split(line, comments=True)
            if words:
                yield Command(f"{block.page}:{number}", tuple(words))


COMMANDS = list(_lines())
# `...` in running text. A bare command (`pseudograd diagnose`) names it; what has a placeholder of the help's kind is left to the help.
_INLINE = re.compile(r"`(?:python -m )?pseudograd ([a-z][^`]*)`")


def inline() -> Iterator[Command]:
    for page in PAGES:
        text = prose_of(page)
        for match in _INLINE.finditer(text):
            where = f"{page}:{text.count(chr(10), 0, match.start()) + 1}"
            yield Command(where, ("pseudograd", *shlex.split(match[1])))


def ours(words: Sequence[str]) -> list[str] | None:
    """The arguments of our own program, where the words call it."""
    for start in (["pseudograd"], ["python", "-m", "pseudograd"]):
        if list(words[: len(start)]) == start:
            return list(words[len(start) :])
    if words[0] == "torchrun" and "pseudograd" in words:
        return list(words[words.index("pseudograd") + 1 :])
    return None


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """As the command line parses them; exits with status 2 where it would."""
    return build_parser(arguments).parse_args(arguments)


def fault(words: Sequence[str]) -> str:
    """Of a command of another program: what it names that is not there. Empty for none."""
    program, *rest = words
    program = program.removeprefix(".venv/bin/")
    if program == "python" and rest[:2] == ["-m", "pytest"]:
        program, rest = "pytest", rest[2:]
    if program not in _FAULTS:
        return f"no test knows the program {program}"
    return _FAULTS[program](rest)


def _make_fault(rest: list[str]) -> str:
    goals = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    return "" if rest and set(rest) <= set(goals) else f"no goal of the Makefile: {rest}"


def _pip_fault(rest: list[str]) -> str:
    is_known = rest == ["install", "."] or rest[-1].startswith("dist/pseudograd-")  # which scripts/release.sh builds
    return "" if is_known else f"neither the checkout nor its wheel: {rest}"


def _pytest_fault(rest: list[str]) -> str:
    tests = " ".join(path.stem for path in (ROOT / "tests").rglob("test_*.py"))
    for option, value in zip(rest, [*rest[1:], ""], strict=True):
        if option == "-k" and value not in OPS and f"test_{value}" not in tests:
            return f"no test has the name {value}"
        if option.startswith("-") and option not in ("-k", "-q", "--slow", "--pseudograd-pin"):
            return f"no option of pytest's here: {option}"
        if option.endswith(".py") and not (ROOT / option).is_file():
            return f"no such file: {option}"
    return ""


def _python_fault(rest: list[str]) -> str:
    file, *options = rest
    if not (ROOT / file).is_file():
        return f"no such file: {file}"
    text = (ROOT / file).read_text(encoding="utf-8")
    return "".join(f"{file} takes no {option}" for option in options if f'"{option}"' not in text)


_FAULTS = {"make": _make_fault, "pip": _pip_fault, "pytest": _pytest_fault, "python": _python_fault}
