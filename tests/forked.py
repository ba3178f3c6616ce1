"""Programs that a command follows, each in a copy of the process of the tests, which has torch: its import takes most of their time.

For tests of what a command says of a program. How it follows one from its very start, and how a process can end, is held by tests/listen
and tests/diagnosis/test_processes.py, with processes that begin with nothing.
"""

import atexit
import contextlib
import importlib
import os
import runpy
import stat
import subprocess
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # whoever makes an optimiser imports it

from pseudograd.listen.program import follow as program
from pseudograd.listen.program import process
from pseudograd_upgrade.routes.question import CPU, ENVIRONMENTS

from .pages.folder import OTHER_NAME

begun = program._run_process  # in a process of its own
_compile = torch.compile  # Lightning, where a test imports it, puts another in its place
_PYTHON = program.command_of("", (), False)[:-1]
# What may be otherwise than here, where there is no device, and no program that prints a set.
_MAY_DIFFER = {"PYTHONPATH", "PYTHONHASHSEED", "NVIDIA_TF32_OVERRIDE", *ENVIRONMENTS[CPU]}


def run(
    command: Sequence[str], environment: dict[str, str], stdin: Any, is_quiet: bool, seconds: float | None = None
) -> tuple[int, bytes, bytes]:
    """As program._run_process. A program of another python, or with what python or torch reads at its start, is a process of its own."""
    others = {name for name, value in {*environment.items()} ^ {*os.environ.items()}} - _MAY_DIFFER
    can_copy = sys.platform.startswith("linux") and not torch.accelerator.is_available()
    if others or seconds or not can_copy or not _is_this_python(command):
        return begun(command, environment, stdin, is_quiet, seconds)
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        copy = os.fork()
        if copy == 0:
            outputs = (out.fileno(), errors.fileno()) if is_quiet else ()
            os._exit(_status(command[len(_PYTHON) :], environment, stdin, outputs))
        status = os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
        for file in (out, errors):
            file.seek(0)
        return status if status >= 0 else 128 - status, out.read(), errors.read()


def _is_this_python(command: Sequence[str]) -> bool:
    """Also by its other name, as on the pages."""
    with open(command[0], "rb") as file:
        is_other_name = file.read(len(OTHER_NAME)) == OTHER_NAME.encode()
    return [sys.executable if is_other_name else command[0], *command[1 : len(_PYTHON)]] == _PYTHON


def load_compilers() -> None:
    """Each copy that compiles would load them for two to four seconds. Nothing may be compiled here: threads do not live on in a copy."""
    for name in ("compile_fx", "codegen.cpp", "cpp_builder", "scheduler"):
        importlib.import_module(f"torch._inductor.{name}")


def _status(words: Sequence[str], environment: Mapping[str, str], stdin: Any, outputs: Sequence[int]) -> int:
    """Of the program, run here."""
    try:
        is_module = words[0] == "-m"
        name, *arguments = words[1:] if is_module else words
        sys.argv = [name, *arguments]
        sys.path.insert(0, os.getcwd() if is_module else str(Path(name).resolve().parent))
        _begin(environment, stdin, outputs)
        status = _ran(name, is_module)
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
        return status
    except BaseException:
        traceback.print_exc()
        return 70


def _begin(environment: Mapping[str, str], stdin: Any, outputs: Sequence[int]) -> None:
    """Nothing is left of the tests: their streams, what they do at the end, how they take warnings, what they changed."""
    os.environ.clear()
    os.environ.update(environment)
    nothing = os.open(os.devnull, os.O_RDWR)
    if stdin is not None:
        number = stdin if isinstance(stdin, int) else stdin.fileno()
        os.dup2(nothing if number == subprocess.DEVNULL else number, 0)
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
    _close_pipes()
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode, 1, closefd=False) for number, mode in enumerate("rww"))
    sys.excepthook = sys.__excepthook__
    torch.compile = _compile
    compilers = sys.modules.get("torch._inductor.async_compile")
    if compilers is not None:
        compilers.AsyncCompile.pool.cache_clear()  # its threads, where a test has compiled, do not live on in a copy
    atexit._clear()
    _warn_as_python_does()
    followed, *path = environment["PYTHONPATH"].split(os.pathsep)
    sys.path[1:1] = path
    process.begin(followed)


def _close_pipes() -> None:
    """Those that a program of its own would not have: whoever reads one to its end waits for all that could write."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # that of the listing is closed by now
            if number > 2 and stat.S_ISFIFO(os.fstat(number).st_mode) and not os.get_inheritable(number):
                os.close(number)


def _warn_as_python_does() -> None:
    def show(message: Any, category: Any, file: str, line: int, to: Any = None, text: str | None = None) -> None:
        sys.stderr.write(warnings.formatwarning(message, category, file, line, text))

    warnings.showwarning = show
    warnings.resetwarnings()
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)
    warnings.filterwarnings("default", category=DeprecationWarning, module="__main__")


def _ran(name: str, is_module: bool) -> int:
    try:
        if is_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            main.__file__ = os.path.abspath(name)
            exec(compile(Path(name).read_bytes(), main.__file__, "exec", dont_inherit=True), vars(main))
    except SystemExit as stop:
        if not isinstance(stop.code, str):
            return int(stop.code or 0)
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:
        error.__traceback__ = _program_traceback(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _program_traceback(at: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback without the frames that run it."""
    while at is not None and at.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        at = at.tb_next
    return at
