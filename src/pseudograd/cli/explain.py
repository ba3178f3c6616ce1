"""The command `pseudograd explain`."""

from __future__ import annotations

from pseudograd_lint.command import add_explain_arguments, explain

from ._command import Command

COMMAND = Command(
    place=66,
    help="what a code that lint or diagnose prints means, and what to do",
    add_arguments=add_explain_arguments,
    run=explain,
)
