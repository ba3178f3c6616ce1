"""The command `pseudograd rules`."""

from __future__ import annotations

import argparse

from ._arguments import add_import, import_modules

PLACE = 10
HELP = "list the backward rules: formula, what is saved, linear or not, source"
EXAMPLE = "pseudograd rules clamp"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("op", nargs="?", metavar="OP", help="show this op only, such as clamp or relu")
    add_import(command)


def run(options: argparse.Namespace) -> int:
    from ..errors import unknown_name
    from ..look.rule_table import rules_text
    from ..rule import OPS

    import_modules("rules", options)
    if options.op is not None and options.op not in OPS:
        raise unknown_name("rules", "op", tuple(OPS), options.op)
    print(rules_text([OPS[options.op]] if options.op else list(OPS.values())))
    return 0
