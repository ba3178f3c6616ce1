"""`pseudograd run`: a program that nobody may edit, run inside a rewriting."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..errors import must
from .context import Rewriting
from .pin import pin_edge
from .switches import override


def contexts(pin: str | None, overrides: Sequence[str]) -> list[Rewriting]:
    """The contexts of `--pin EDGE` and `--override FAMILY=RULE`; the pin is the inner one."""
    rules: dict[str, str] = {}
    for text in overrides:
        family, equals, rule = text.partition("=")
        if not (family and equals and rule):
            raise ValueError(must("run", "--override", "be FAMILY=RULE, such as clamp=inward", text))
        rules[family] = rule
    if pin is None and not rules:
        raise ValueError("run: one of --pin and --override must be given, got neither.")
    return [*([override(**rules)] if rules else []), *([pin_edge(pin)] if pin is not None else [])]


def run(program: str, arguments: Sequence[str], is_module: bool, entered: Sequence[Rewriting]) -> int:
    """Run the program as `python program arguments` would, then print the reports. The exit status is the program's."""
    if not is_module and not Path(program).is_file():
        raise ValueError(must("run", "the script", "be a file", program))
    with _as_main(program, arguments, is_module), contextlib.ExitStack() as stack:
        for context in entered:
            stack.enter_context(context)
        try:
            status = _outcome(program, is_module)
        finally:
            sys.stdout.flush()
            for context in entered:
                print(f"pseudograd: {context.report()}", file=sys.stderr)
    return status


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
    """The exit status. An error of the program is printed as Python prints it, without our frames."""
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
    except Exception as error:
        own = error.__traceback__
        while own is not None and _is_ours(own.tb_frame.f_code.co_filename):
            own = own.tb_next
        traceback.print_exception(type(error), error, own or error.__traceback__)
        return 1
    return 0


def _is_ours(file: str) -> bool:
    return file.startswith("<frozen") or os.path.basename(file) == "runpy.py" or file == __file__
