"""docs/command_line.md: every command with its help, an example, its options and its exit statuses, from the commands themselves."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pseudograd_notices.command_line import build_parser, command_files, literals

PAGE = Path(__file__).resolve().parent.parent / "docs" / "command_line.md"
_START = """# The command line

`pseudograd COMMAND --help` prints the help of a command. `python -m pseudograd` is the same. A wrong call ends with status 2 and one line
that says what is wrong. Ctrl-C ends with status 130, SIGTERM with 143, a closed pipe with 141.

"""


def text() -> str:
    files = command_files()
    constants = {name: literals(file) for name, file in files.items()}
    names = sorted(files, key=lambda name: (constants[name]["PLACE"], name))
    earlier: dict[str, str] = {}
    sections = ["\n".join(_section(name, constants[name], earlier)) for name in names]
    return _START + "\n\n".join(sections) + "\n"


def _section(name: str, constants: dict[str, object], earlier: dict[str, str]) -> Iterator[str]:
    """The lines about a command. earlier: by row of the table, the first command that has it. Later commands refer to that one."""
    sentence = str(constants["HELP"])
    sentence = sentence[0].upper() + sentence[1:] + ("" if sentence.endswith("?") else ".")
    yield from (f"## {name}", "", sentence, "", "```sh", str(constants["EXAMPLE"]), "```", "")
    yield from ("| argument | meaning |", "|---|---|")
    rows = {
        f"| `{_call(action)}` | {_escape((action.help or '') % {'default': action.default})} |": action
        for action in _command(name)._actions
        if not isinstance(action, argparse._HelpAction)
    }
    first = {row: earlier.setdefault(row, name) for row in rows}
    for command in dict.fromkeys((name, *first.values())):
        shared = [row for row in rows if first[row] == command]
        if command == name:
            yield from shared
        else:
            words = [f"`{(rows[row].option_strings or [rows[row].metavar or rows[row].dest])[-1]}`" for row in shared]
            yield f"| {', '.join(words)} | as for [`{command}`](#{command}) |"
    if "STATUS" in constants:
        yield from ("", f"Exit status: {constants['STATUS']}.")


def _command(name: str) -> argparse.ArgumentParser:
    (choices,) = (
        action.choices
        for action in build_parser([name])._actions
        if isinstance(action, argparse._SubParsersAction) and isinstance(action.choices, dict)
    )
    return choices[name]


def _call(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    return _escape(" ".join(filter(None, [", ".join(action.option_strings), value])))


def _escape(text: str) -> str:
    return text.replace("|", "\\|")
