"""The command line as a test calls it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pseudograd.cli import main
from pseudograd.diagnosis.run import programs

_run = programs.run
_RUNS: dict[tuple[str, ...], tuple[programs.Run, bytes, bytes]] = {}


def answer(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The exit status, and what stood on both streams."""
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    shown = capfd.readouterr()
    return code, shown.out, shown.err


def run_once(command: Sequence[str], job: Mapping[str, Any], **how: Any) -> programs.Run:
    """As program.run, which starts a process: asked the same of the same files again, it says and prints what it did before."""
    files = [f"{file.name}: {file.read_text(encoding='utf-8')}" for file in sorted(Path().glob("*.py"))]
    key = (*command, json.dumps([job, how], sort_keys=True, default=str), *files)
    if key not in _RUNS:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with _sent(1, out.fileno()), _sent(2, err.fileno()):
                done = _run(command, job, **how)
            _RUNS[key] = (done, *(_whole(file) for file in (out, err)))
    done, *printed = _RUNS[key]
    for stream, text in zip((1, 2), printed, strict=True):
        os.write(stream, text)
    return done


@contextmanager
def _sent(stream: int, to: int) -> Iterator[None]:
    kept = os.dup(stream)
    os.dup2(to, stream)
    try:
        yield
    finally:
        os.dup2(kept, stream)
        os.close(kept)


def _whole(file: Any) -> bytes:
    file.seek(0)
    text: bytes = file.read()
    return text
