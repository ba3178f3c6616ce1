"""Every command of a page is one that its program takes; ours are run, in a folder that has the files they name."""

import argparse
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from pseudograd.rule import OPS
from pseudograd.torch_table.eras import CLOSED_ERA, installed_era
from pseudograd_notices.command_line import build_parser

from ..choices import slow_but
from ..commands import answer
from .blocks import PAGES, ROOT, prose_of
from .checked import SHELL
from .folder import filled


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

OURS = [command for command in COMMANDS if ours(command.words) is not None]
OTHERS = [command for command in COMMANDS if ours(command.words) is None]


def test_the_command_line_takes_every_command_of_ours() -> None:
    for command in OURS:
        assert callable(parsed(ours(command.words) or []).run), command.where


def test_commands_of_other_programs_name_what_exists() -> None:
    assert [(command.where, fault(command.words)) for command in OTHERS if fault(command.words)] == []


def not_taken(command: Command, capsys: pytest.CaptureFixture[str]) -> str:
    """Why not. `pseudograd run --pin` in running text names an option and is no call: there every option stands in the help."""
    _, name, *rest = command.words
    is_call = any(not word.startswith(("-", "[")) for word in rest)
    status: object = 0
    try:
        parsed([name, *rest] if is_call else [name, "--help"])
    except SystemExit as stop:
        status = stop.code
    said = capsys.readouterr()
    if status:
        return said.err
    return "" if is_call else "".join(f"no option {word}" for word in rest if word.strip("[]") not in said.out)


def test_commands_in_running_text_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    commands = list(inline())
    assert len(commands) > 30
    wrong = [f"{command.where}: {command}: {why}" for command in commands if (why := not_taken(command, capsys))]
    assert wrong == []


PAGES_OF_OURS = list(dict.fromkeys(command.page for command in OURS))
QUICK = ("docs/lint.md", "docs/start/rules.md")  # in this process, and nothing is trained
# What is not run, and why: a part of the command.
NOT_RUN = {
    "nproc-per-node 8": "eight processes; tests/distributed runs two, both ways",
    "--to torch==": "makes an environment; tests/upgrade/test_environments.py makes one from a folder of packages",
    "--routes cpu,cuda": "needs a device; tests/upgrade/test_devices.py runs it where there is one",
    "--backend inductor": "compiles every point of the table for minutes; tests/kinks compiles some",
}
# A status that is an answer: lint found something; the program that is diagnosed ends so, or --fail-on holds; bisect has nothing to choose;
# the program does not train under this torch, whichever of its interpreters runs it.
STATUSES = {
    "lint": {0, 1},
    "diagnose": {0, 1, 4},
    "bisect": {0, 1},
    "upgrade": {0} if installed_era() == CLOSED_ERA else {0, 2},
}


@pytest.mark.usefixtures("table_as_it_was", "in_copies")
@pytest.mark.parametrize("page", slow_but(QUICK, PAGES_OF_OURS, pytest.mark.program))
def test_the_commands_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One after the other in one folder: some read what those before them wrote."""
    monkeypatch.chdir(filled(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "new" / "bin"), os.environ["PATH"]]))
    before = set(sys.modules)
    for command in (command for command in OURS if command.page == page):
        if any(part in str(command) for part in NOT_RUN):
            continue
        arguments = ours(command.words) or []
        if "--routes" in arguments:
            from .. import forked

            forked.load_compilers()
        status, out, err = answer(capfd, *arguments)
        assert status in STATUSES.get(arguments[0], {0}), f"{command.where}: {command}\n{out}{err}"
        assert "Traceback" not in err, command.where
        assert out + err != "" or "--output-file" in arguments, command.where
    for name in set(sys.modules) & {"mine", "package", "package.module", "my_rules"} - before:
        del sys.modules[name]
