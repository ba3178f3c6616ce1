"""The command `pseudograd migrate`."""

from __future__ import annotations

import argparse
from pathlib import Path

PLACE = 75
HELP = "replace the classes that an old script defines by the import of ours"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("paths", metavar="PATH", nargs="+", type=Path, help="a script or a notebook")
    command.add_argument("--apply", action="store_true", help="write what is shown")


def run(options: argparse.Namespace) -> int:
    from ..listen.program.files import write
    from ..migrate import migrated

    found = [migrated(path) for path in options.paths]  # the errors of all, before anything is written
    for one in found:
        print(one, end="")
        if options.apply and one.after != one.before:
            path = one.file.resolve()  # not the link to it
            mode = path.stat().st_mode
            write("migrate", "PATH", path, one.after)
            path.chmod(mode)
            print(f"{one.file}: written")
    pending = [one for one in found if one.after != one.before and not options.apply]
    if pending:
        print(f"\n--apply writes {'it' if len(pending) == 1 else f'these {len(pending)} files'}.")
    if any(one.after != one.before for one in found):
        print("Where it runs: pip install pseudograd")
    return 0
