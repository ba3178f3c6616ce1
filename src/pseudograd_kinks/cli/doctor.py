"""`pseudograd doctor --against`: the installed torch compared with another version or framework, at every point of the kink table."""

from __future__ import annotations

import argparse
import json

from pseudograd.cli._command import Extension


def _add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--against",
        metavar="NAME",
        help="what differs from jax, tensorflow or a version such as torch==2.9, at every point of the kink table",
    )
    command.add_argument("--all", action="store_true", help="with --against: a line for every point")


def _answer(options: argparse.Namespace) -> str | None:
    from .. import against

    if options.against is None:
        if options.all:
            raise ValueError("doctor: --all must stand with --against, got it alone. Add --against jax.")
        return None
    differences = against.compare(options.against)
    return json.dumps(differences, indent=1) if options.json else against.text(differences, options.all)


EXTENSION = Extension(add_arguments=_add_arguments, answer=_answer)
