"""The command `pseudograd rules`."""

from __future__ import annotations

import argparse

from ..errors import unknown_name
from ..look.rule_table import rules_text
from ..rule import OPS
from ._arguments import add_import, imported
from ._command import Command


def _add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("op", nargs="?", metavar="OP", help="one op only, such as clamp or relu")
    add_import(command)


def _rules(options: argparse.Namespace) -> int:
    for name in options.imports:
        imported("rules", "--import", name, name)
    if options.op is not None and options.op not in OPS:
        raise unknown_name("rules", "op", tuple(OPS), options.op)
    print(rules_text([OPS[options.op]] if options.op else list(OPS.values())))
    return 0


COMMAND = Command(
    place=10,
    help="list the backward rules: formula, what is saved, linear or not, source",
    add_arguments=_add_arguments,
    run=_rules,
)
