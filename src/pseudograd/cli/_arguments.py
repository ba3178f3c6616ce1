"""Arguments that several commands have; and the modules, functions and trainings of the user that these arguments name."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pseudograd_notices.command_line import literals
from pseudograd_notices.settings import read_settings


def name_rules() -> tuple[str, str]:
    """The default rule of clamp, and a rule with a parameter, for help texts. The file is not imported, because that would import torch."""
    names = literals(Path(__file__).parents[1] / "ops" / "bound_rules.py")
    return str(names["DEFAULT_RULE"]), f"{names['LEAKY_RULE']}(0.2)"


def add_import(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--import",
        dest="imports",
        metavar="MODULE",
        action="append",
        default=[],
        help="import this module first, because it registers your rules; may be repeated",
    )


def add_own_case(command: argparse.ArgumentParser) -> None:
    """The options of `compare` and `tune` about the user's own case: a training that `--task` names."""
    add = command.add_argument
    add(
        "--task",
        metavar="MODULE:FUNCTION",
        help="compare on your own training: a function run(clamp, seed) that returns a number, or numbers by name",
    )
    add(
        "--better",
        metavar="WAY",
        help="which numbers are better, lower or higher; or by name, 'loss=lower,accuracy=higher' (default: lower)",
    )
    add("--replace", metavar="A,B", help="call --task as run(seed), unedited, and override these families around it")
    add(
        "--variants",
        metavar="MODULE:NAME",
        help="give --task the functions or rules of this dictionary instead of clamps",
    )
    add("--baseline", metavar="NAME", help="compare all --variants with this one (default: the first)")
    add("--keep", metavar="FOLDER", help="keep the finished runs of --task in this folder, and continue from them")
    add("--jobs", type=int, default=1, metavar="N", help="number of processes (default: 1)")


def add_change(command: argparse.ArgumentParser, frameworks: str = ", jax or tensorflow") -> None:
    """The options `--pin` and `--override`. frameworks: what `--pin` takes or does not take besides eras and edges, for its help."""
    add = command.add_argument
    default, example = name_rules()
    edges = f"pin the gradient at bounds: closed, open, half, 'torch<=2.13', 'torch>=2.14'{frameworks}"
    add("--pin", metavar="EDGE", help=f"{edges} (default, without --override: that of pyproject.toml)")
    add(
        "--override",
        metavar="FAMILY=RULE",
        action="append",
        default=[],
        help=f"give a family of functions another rule: clamp={default}, 'clamp={example}'; may be repeated",
    )


def choose_pin(where: str, options: argparse.Namespace) -> str | None:
    """The value of `--pin`. Without `--pin` and `--override`, the pin of the project."""
    if options.pin is not None or options.override:
        return str(options.pin) if options.pin is not None else None
    settings = read_settings(where)
    if settings.pin:
        from ..rewrite.pin_edge import pin_edge

        settings.make_pin(where, pin_edge)  # raises an error if the setting is no edge
    return settings.pin or None


def import_modules(where: str, options: argparse.Namespace) -> None:
    """Import the modules that `--import` names."""
    for name in options.imports:
        import_named(where, "--import", name, name)


def import_named(where: str, argument: str, name: str, got: str) -> ModuleType:
    """Import a module of the user, from the current folder too. An error in the module becomes one line. got: what the user wrote."""
    from ..errors import must

    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        requirement = f"name a {'function' if ':' in got else 'module'} that can be imported"
        raise ValueError(must(where, argument, requirement, got, in_one_line(error))) from error
    finally:
        sys.path.remove(os.getcwd())


def in_one_line(error: Exception) -> str:
    """The text of an error, after its type if the error is not about importing."""
    text = " ".join(str(error).split()).rstrip(".")
    return text if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: {text}"


def function_named(where: str, argument: str, path: str) -> Any:
    """The object that "module:name" names. The name may have dots."""
    from ..errors import must

    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(must(where, argument, "be MODULE:FUNCTION", path))
    value: object = import_named(where, argument, module, path)
    try:
        for part in name.split("."):
            value = getattr(value, part)
    except AttributeError as error:
        raise ValueError(must(where, argument, "name a function that can be imported", path, str(error))) from error
    return value


@contextlib.contextmanager
def current_folder() -> Iterator[None]:
    """Inside, the current folder is on sys.path, so that modules of the user are found, in processes that start inside, too."""
    path = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = path


def own_case(options: argparse.Namespace, where: str, rules: Sequence[str] | None) -> dict[str, Any]:
    """The arguments of `pg.compare` and `pg.tune` for the user's own case, from the options of a command."""
    from ..parse_rule import items

    better = options.better or "lower"
    if "=" in better:
        pairs = [pair.partition("=") for pair in items(better)]
        better = {name.strip(): direction.strip() for name, _, direction in pairs}
    return {
        "run": function_named(where, "--task", options.task),
        "rules": rules,
        "better": better,
        "replace": None if options.replace is None else items(options.replace),
        "variants": None if options.variants is None else function_named(where, "--variants", options.variants),
        "baseline": options.baseline,
        "keep": options.keep,
        "jobs": options.jobs,
    }


def require_extras(where: str, *names: str) -> None:
    """Raise our error if one of these packages, which the extra `report` installs, is missing."""
    from ..errors import not_installed

    missing = [name for name in names if not importlib.util.find_spec(name)]
    if missing:
        raise not_installed(where, ", ".join(missing), "report")
