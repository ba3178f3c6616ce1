"""`pseudograd diagnose`: a program that nobody edits, with a report of its gradients at the end."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .. import program as programs
from ..errors import must
from .context import Diagnosis
from .page import page

FAILED = 4  # the exit status where `--fail-on` holds
_ON = re.compile(r"(?P<code>cut|dead|edge|kink|starved|wind-up|guard|any)\s*(?:>\s*(?P<share>[0-9.eE+-]+))?")


def condition(text: str) -> Callable[[Diagnosis], list[str]]:
    """From 'cut>0.5', 'starved' or 'any': the places where it holds."""
    found = _ON.fullmatch(text.strip())
    try:
        least = float(found["share"] or 0) if found else 0.0
    except ValueError:
        found = None
    if found is None:
        remedy = "As in 'cut>0.5', 'starved' or 'any'"
        raise ValueError(must("diagnose", "--fail-on", "be a finding's code, with a share if wanted", text, remedy))
    code, least = found["code"], least

    def holds(diagnosis: Diagnosis) -> list[str]:
        if code == "cut":  # every place that cuts, not only those that are findings
            return [site.where for site in diagnosis.sites if site.family == "clamp" and site.cut_share > least]
        return [one.where for one in diagnosis.findings if code in (one.code, "any") and one.share > least]

    return holds


def run(
    program: str,
    arguments: Sequence[str],
    is_module: bool,
    diagnosis: Diagnosis,
    *,
    steps: int | None = None,
    html: Path | None = None,
    json_file: Path | None = None,
    fails: Callable[[Diagnosis], list[str]] | None = None,
) -> int:
    """Run it as `python program arguments` would, up to so many backward passes; then the report, on the standard error.

    The exit status is the program's; or, if that is 0 and `fails` holds somewhere, 4.
    """
    programs.check("diagnose", program, is_module)
    targets = [
        (name, programs.checked_file("diagnose", name, file), made)
        for name, file, made in (("--html", html, page), ("--json", json_file, _as_json))
        if file is not None
    ]
    with programs.as_main(program, arguments, is_module), diagnosis, _progress(diagnosis, steps):
        status = programs.outcome("diagnose", program, is_module)
    lines = str(diagnosis).splitlines()
    for name, target, made in targets:
        try:
            programs.write("diagnose", name, target, made(diagnosis))
        except ValueError as error:
            lines.append(str(error))
            status = status or 2
    where = fails(diagnosis) if fails is not None else []
    if where:
        lines.append(f"diagnose: --fail-on holds at {', '.join(where[:5])}")
        status = status or FAILED
    with contextlib.suppress(OSError, ValueError):  # nobody reads it, or the program closed it
        sys.stdout.flush()
        print("\n".join(lines), file=sys.stderr)
    return status


def _as_json(diagnosis: Diagnosis) -> str:
    return json.dumps(diagnosis.to_json(), indent=1, ensure_ascii=False) + "\n"


@contextlib.contextmanager
def _progress(diagnosis: Diagnosis, steps: int | None) -> Any:
    """Ends the program after so many backward passes, and says now and then how far it is."""
    last = time.monotonic()
    is_shown = sys.stderr.isatty()

    def after(backwards: int) -> None:
        nonlocal last
        if is_shown and time.monotonic() - last > 1:
            last = time.monotonic()
            print(f"\rdiagnose: {backwards:,} backward passes", end="", file=sys.stderr, flush=True)
        if steps is not None and backwards >= steps:
            raise programs.Enough

    diagnosis.after_backward(after)
    try:
        yield
    finally:
        if is_shown:
            print("\r", end="", file=sys.stderr)
