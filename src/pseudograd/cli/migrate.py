"""The command `pseudograd migrate`."""

from __future__ import annotations

import argparse
from pathlib import Path

PLACE = 75
HELP = "replace the gradient classes of an old script by an import of pseudograd"
EXAMPLE = "pseudograd migrate --apply script.py"


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("paths", metavar="PATH", nargs="+", type=Path, help="a script or a notebook")
    add("--apply", action="store_true", help="write the changes to the files")


def run(options: argparse.Namespace) -> int:
    from pseudograd_notices.source import edit_file

    from ..migrate import make_migration

    migrations = [make_migration(path) for path in options.paths]  # every error comes before anything is written
    changed = [migration for migration in migrations if migration.after != migration.before]
    for migration in migrations:
        print(migration, end="")
        if options.apply and migration in changed:
            edit_file("migrate", str(migration.file), lambda _: migration.after)  # noqa: B023 (called at once)
            print(f"{migration.file}: written")
    if changed and not options.apply:
        print(f"\n--apply writes {'it' if len(changed) == 1 else f'these {len(changed)} files'}.")
    if changed:
        print(
            f"The script {'now' if options.apply else 'then'} imports pseudograd: install it wherever the script runs."
        )
    return 0
