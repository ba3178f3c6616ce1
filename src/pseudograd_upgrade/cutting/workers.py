"""Both interpreters, each with a worker that waits, and how far apart two outcomes of one call are."""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .call import Call
from .text import UnwritableError

_SECONDS = 60.0  # for all that is tried
_WORKER = Path(__file__).with_name("worker.py")


class LateError(Exception):
    """The minute is over: the smallest call so far is the answer."""


@dataclass(frozen=True)
class Outcome:
    """error: what the call raised. tensors: what it returned (y0, y1, ...), and the gradients (grad of x) of its tensors."""

    error: str | None
    tensors: Mapping[str, Tensor]
    is_random: bool = False
    is_tensor: bool = True


@dataclass(frozen=True)
class Gap:
    """How far two outcomes are apart in the tensor of this name. distance: relative to the largest number there; infinite where shapes,
    dtypes or what is finite differ. index: of the entry that differs most.
    """

    name: str
    distance: float
    index: tuple[int, ...] = ()


class Workers:
    """A context: a worker in the interpreter of the older torch and one in that of the newer torch."""

    def __init__(self, pythons: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pseudograd-cut-")
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._processes = [
            subprocess.Popen([python, str(_WORKER)], text=True, cwd=self._folder.name, **pipes) for python in pythons
        ]
        self._is_late = False
        self._timer = threading.Timer(_SECONDS, self._stop)
        self._timer.daemon = True

    def __enter__(self) -> Workers:
        self._timer.start()
        for process in self._processes:
            self._receive_line(process)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        for process in self._processes:
            process.kill()
            process.communicate()
        self._folder.cleanup()

    def _stop(self) -> None:
        self._is_late = True
        for process in self._processes:
            process.kill()

    def outcomes(self, call: Call) -> list[Outcome]:
        """What the call gives under the older torch and under the newer one."""
        tensors = Path(self._folder.name) / "tensors"
        torch.save(dict(call.tensors), tensors)
        job = {"tensors": str(tensors), "requires": sorted(call.requires), "lines": call.lines()}
        files = [Path(self._folder.name) / str(at) for at in range(len(self._processes))]
        for process, file in zip(self._processes, files, strict=True):
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps({**job, "outcome": str(file)}) + "\n")
                process.stdin.flush()
            except OSError as error:
                raise self._end_error() from error
        return [self._receive(process, file) for process, file in zip(self._processes, files, strict=True)]

    def _receive(self, process: subprocess.Popen[str], file: Path) -> Outcome:
        answer: dict[str, Any] = json.loads(self._receive_line(process))
        if answer["error"] is not None:
            return Outcome(answer["error"], {})
        return Outcome(None, torch.load(file, weights_only=True), answer["is_random"], answer["is_tensor"])

    def _receive_line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise self._end_error()
        return line

    def _end_error(self) -> Exception:
        return LateError() if self._is_late else UnwritableError("the call alone ends its process")


def gaps(old: Outcome, new: Outcome) -> list[Gap]:
    """The tensors that differ at all."""
    differing = []
    for name in dict.fromkeys([*old.tensors, *new.tensors]):
        a, b = old.tensors.get(name), new.tensors.get(name)
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            differing.append(Gap(name, math.inf))
        elif a.numel() and (gap := _gap(name, a, b)) is not None:
            differing.append(gap)
    return differing


def _gap(name: str, a: Tensor, b: Tensor) -> Gap | None:
    kind = torch.complex128 if a.is_complex() else torch.float64
    a, b = a.to(kind), b.to(kind)
    differs = ~((a == b) | (a.isnan() & b.isnan()))
    if not differs.any():
        return None
    distances = torch.where(differs, (a - b).abs(), 0.0).nan_to_num(math.inf, math.inf)
    index = torch.unravel_index(distances.argmax(), a.shape)
    largest = max(float(tensor.abs().nan_to_num(0.0, 0.0, 0.0).max()) for tensor in (a, b))
    distance = float(distances.max())
    relative = distance / largest if math.isfinite(distance) and largest else distance
    return Gap(name, relative, tuple(map(int, index)))
