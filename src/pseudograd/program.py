"""A program that nobody edits, run as python would run it; and files of ours that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import tempfile
import traceback
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from .errors import must


def check(where: str, program: str, is_module: bool) -> None:
    if not is_module and not Path(program).is_file():
        raise ValueError(must(where, "the script", "be a file", program))


@contextlib.contextmanager
def as_main(program: str, arguments: Sequence[str], is_module: bool) -> Iterator[None]:
    """sys.argv and sys.path as the program expects them."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [program, *arguments]
    sys.path.insert(0, os.getcwd() if is_module else str(Path(program).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


class Enough(BaseException):
    """Raised inside a program to end it: enough was seen."""


def outcome(where: str, program: str, is_module: bool) -> int:
    """Run it; the exit status. An error of the program is printed as Python prints it, without our frames.

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
    except Enough:
        return 0
    except BaseException as error:
        own = error.__traceback__
        while own is not None and _is_ours(own.tb_frame.f_code.co_filename):
            own = own.tb_next
        if own is None and isinstance(error, (ImportError, OSError)):
            what = "the module" if is_module else "the script"
            raise ValueError(must(where, what, "be one that python can run", program, str(error))) from error
        traceback.print_exception(type(error), error, own)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _is_ours(file: str) -> bool:
    return file.startswith("<frozen") or os.path.basename(file) == "runpy.py" or file == __file__


# --- files ------------------------------------------------------------------------------------------------------------


def checked_file(where: str, argument: str, file: Path) -> Path:
    """The file's absolute path, for a program may change folders; an error if it could not be written in the end."""
    try:
        path = file.resolve()
        if path.exists() and not path.is_file():
            raise ValueError(must(where, argument, "be a file", str(file), "Choose another path"))
        if path.exists():
            path.open("ab").close()
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise _unwritable(where, argument, file, error) from error
    return path


def write(where: str, argument: str, path: Path, content: str | bytes) -> None:
    """All of it or nothing: an older file stays until the new one is whole."""
    staging = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        staging.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", errors="replace"))
        staging.replace(path)
    except OSError as error:
        raise _unwritable(where, argument, path, error) from error
    finally:
        staging.unlink(missing_ok=True)


def _unwritable(where: str, argument: str, file: Path, error: OSError) -> ValueError:
    remedy = f"{error.strerror}: choose another path"
    return ValueError(must(where, argument, "lie where files can be written", str(file), remedy))
