"""`pseudograd run`: a program that nobody may edit, run inside a rewriting."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import runpy
import sys
import tempfile
import traceback
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from ..errors import must
from ..rule import OPS, RuleLike
from ..rule_text import parsed
from ..torch_forms import SWITCHES
from .context import Rewriting
from .pin import pin_edge
from .report import Report
from .switches import override

NOTHING_REWRITTEN = 3  # the exit status


def contexts(pin: str | None, overrides: Sequence[str]) -> list[Rewriting]:
    """The contexts of `--pin EDGE` and `--override FAMILY=RULE`; the pin is the inner one."""
    rules: dict[str, RuleLike] = {}
    for text in overrides:
        family, equals, rule = (part.strip() for part in text.partition("="))
        if not (family and equals and rule):
            raise ValueError(must("run", "--override", "be FAMILY=RULE, such as clamp=inward", text))
        rules[family] = _rule(family, rule)
    if pin is None and not rules:
        raise ValueError("run: one of --pin and --override must be given, got neither.")
    return [*([override(**rules)] if rules else []), *([pin_edge(pin)] if pin is not None else [])]


def _rule(family: str, text: str) -> RuleLike:
    if family not in SWITCHES:
        return text  # override has the error
    rule, edge = parsed(OPS[SWITCHES[family]], text, "run: --override")
    if edge is not None:
        remedy = "Each family has its own; --pin changes that of torch's clamps"
        raise ValueError(must("run", "--override", "name no edge", text, remedy))
    return rule


def run(
    program: str,
    arguments: Sequence[str],
    is_module: bool,
    entered: Sequence[Rewriting],
    *,
    json_file: Path | None = None,
    requires: bool = False,
) -> int:
    """Run the program as `python program arguments` would, then print the reports; also into `json_file`.

    The exit status is the program's; or, if that is 0 and `requires` is true, 3 where a context rewrote nothing. A pin to the era of
    the installed torch has nothing to rewrite and counts as done.
    """
    if not is_module and not Path(program).is_file():
        raise ValueError(must("run", "the script", "be a file", program))
    target = None if json_file is None else _checked_file(json_file)
    with _as_main(program, arguments, is_module), contextlib.ExitStack() as stack:
        for context in entered:
            stack.enter_context(context)
        status = _outcome(program, is_module)
    reports = [context.report() for context in entered]
    lines = [str(report) for report in reports]
    if target is not None:
        try:
            _write(target, reports)
        except ValueError as error:
            lines.append(str(error))
            status = status or 2
    idle = [report.label for report in reports if not (report.rewritten or report.is_torchs_own)]
    if requires and idle:
        lines.append(f"run: --require: nothing was rewritten by {' and '.join(idle)}")
        status = status or NOTHING_REWRITTEN
    with contextlib.suppress(OSError, ValueError):  # nobody reads it, or the program closed it
        sys.stdout.flush()
        for line in lines:
            print(f"pseudograd: {line}", file=sys.stderr)
    return status


def _checked_file(file: Path) -> Path:
    """The file's absolute path, for a program may change folders; an error if it could not be written in the end."""
    try:
        path = file.resolve()
        if path.exists() and not path.is_file():
            raise ValueError(must("run", "--json", "be a file", str(file), "Choose another path"))
        if path.exists():
            path.open("ab").close()
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise _unwritable(file, error) from error
    return path


def _write(path: Path, reports: Sequence[Report]) -> None:
    """All of it or nothing: an older file stays until the new one is whole."""
    found = {
        "kind": "pseudograd run",
        "torch": torch.__version__,
        "contexts": [
            {
                "label": report.label,
                "is_torchs_own": report.is_torchs_own,
                "rewritten": [dataclasses.asdict(site) for site in report.rewritten],
                "missed": [dataclasses.asdict(site) for site in report.missed],
            }
            for report in reports
        ],
    }
    staging = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        staging.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8", errors="replace")
        staging.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        staging.unlink(missing_ok=True)


def _unwritable(file: Path, error: OSError) -> ValueError:
    remedy = f"{error.strerror}: choose another path"
    return ValueError(must("run", "--json", "lie where files can be written", str(file), remedy))


@contextlib.contextmanager
def _as_main(program: str, arguments: Sequence[str], is_module: bool) -> Iterator[None]:
    argv, path = sys.argv, list(sys.path)
    sys.argv = [program, *arguments]
    sys.path.insert(0, os.getcwd() if is_module else str(Path(program).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def _outcome(program: str, is_module: bool) -> int:
    """The exit status. An error of the program is printed as Python prints it, without our frames.

    Raises ValueError for a program that could not be found or read.
    """
    try:
        if is_module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program, run_name="__main__")
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:
        own = error.__traceback__
        while own is not None and _is_ours(own.tb_frame.f_code.co_filename):
            own = own.tb_next
        if own is None and isinstance(error, (ImportError, OSError)):
            what = "the module" if is_module else "the script"
            raise ValueError(must("run", what, "be one that python can run", program, str(error))) from error
        traceback.print_exception(type(error), error, own)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _is_ours(file: str) -> bool:
    return file.startswith("<frozen") or os.path.basename(file) == "runpy.py" or file == __file__
