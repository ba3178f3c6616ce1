"""What a command is. Each file of this folder whose name has no underscore in front is one, and is called as its file."""

from __future__ import annotations

import argparse
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class Command:
    """A row of `pseudograd --help`. `place` orders the rows. `add_arguments` is called only for the command that is asked for, so
    what it needs is imported in it; `run` gets what was parsed, and returns the exit status.
    """

    place: int
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def commands() -> dict[str, Command]:
    """Every command by its name, in the order of `place`."""
    package = import_module(__package__)
    names = [module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")]
    found: dict[str, Command] = {name: import_module(f".{name}", __package__).COMMAND for name in names}
    return dict(sorted(found.items(), key=lambda item: item[1].place))
