"""What a command is, and where commands are found: in this folder and in the folder `cli` of each neighbour `pseudograd_*`."""

from __future__ import annotations

import argparse
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path


@dataclass(frozen=True)
class Command:
    """A row of `pseudograd --help`. `place` orders the rows. `add_arguments` is called only for the command that is asked for, so
    what it needs is imported in it; `run` gets what was parsed, and returns the exit status.
    """

    place: int
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    extensions: tuple[Extension, ...] = ()


@dataclass(frozen=True)
class Extension:
    """What a neighbour adds to a command of the same name: more arguments, and a text that the command prints in place of its own.

    answer(options) returns that text; None where the arguments of the extension are not given.
    """

    add_arguments: Callable[[argparse.ArgumentParser], None]
    answer: Callable[[argparse.Namespace], str | None]


def commands() -> dict[str, Command]:
    """Every command by its name, in the order of `place`. A file whose name begins with an underscore is no command; a
    neighbour's file may have an EXTENSION of the command of that name.
    """
    table: dict[str, Command] = {}
    for package in (__package__, *_neighbours()):
        for module in pkgutil.iter_modules(import_module(package).__path__):
            if module.name.startswith("_"):
                continue
            file = import_module(f"{package}.{module.name}")
            if hasattr(file, "COMMAND"):
                table[module.name] = file.COMMAND
            else:
                extended = table[module.name]
                table[module.name] = replace(extended, extensions=(*extended.extensions, file.EXTENSION))
    return dict(sorted(table.items(), key=lambda item: (item[1].place, item[0])))


def _neighbours() -> list[str]:
    """The packages of commands that stand beside `pseudograd`: pseudograd_upgrade.cli and its like."""
    beside = pkgutil.iter_modules([str(Path(__file__).parents[2])], "")
    packages = [module.name for module in beside if module.ispkg and module.name.startswith("pseudograd_")]
    return [f"{package}.cli" for package in packages if find_spec(f"{package}.cli") is not None]
