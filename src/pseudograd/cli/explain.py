"""The command `pseudograd explain`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pseudograd_lint.code import Code
from pseudograd_lint.command import add_explain_arguments, explain

from ._command import Command


def _codes_of_diagnose() -> Sequence[Code]:
    from ..diagnosis.judge.findings import CODES

    return CODES


def _explain(options: argparse.Namespace) -> int:
    return explain(options, _codes_of_diagnose)


COMMAND = Command(
    place=66,
    help="what a code that lint or diagnose prints means, and what to do",
    add_arguments=add_explain_arguments,
    run=_explain,
)
