"""Every command of a page is one that its program takes; ours are run, in a folder that has the files they name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pseudograd.torch_table.eras import CLOSED_ERA, installed_era

from ..choices import slow_but
from ..commands import answer
from .folder import filled
from .shell import COMMANDS, Command, fault, inline, ours, parsed

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


# --- run --------------------------------------------------------------------------------------------------------------

PAGES = list(dict.fromkeys(command.page for command in OURS))
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
@pytest.mark.parametrize("page", slow_but(QUICK, PAGES, pytest.mark.program))
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
