"""The command `pseudograd lint`; the script `pseudograd` starts it without torch, see `pseudograd_command`."""

from __future__ import annotations

from pseudograd_lint.command import add_lint_arguments, lint

from ._command import Command

COMMAND = Command(
    place=65,
    help="find risky clamps and their relatives in source, without running it",
    add_arguments=add_lint_arguments,
    run=lint,
)
