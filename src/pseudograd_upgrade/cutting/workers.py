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
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from .call import Call
from .trees import UnwritableError

_SECONDS = 60.0  # for all that is tried
_WORKER = Path(__file__).with_name("worker.py")


class LateError(Exception):
    """Nothing more is tried: what was found so far holds."""


@dataclass(frozen=True)
class Outcome:
    """error: what the call raised. tensors: what it returned, and the gradients of its tensors."""

    error: str | None
    tensors: Mapping[str, Tensor]
    is_random: bool = False
    is_tensor: bool = True


@dataclass(frozen=True)
class Apart:
    """far: relative to the largest number there; infinite where shapes, dtypes or what is finite differ. at: the entry that differs
    most.
    """

    name: str
    far: float
    at: tuple[int, ...] = ()


@dataclass(frozen=True)
class Found:
    """A call that differs. worst: where most."""

    call: Call
    outcomes: tuple[Outcome, Outcome]
    worst: Apart

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor that differs there."""
        one = self.outcomes[0].tensors.get(self.worst.name)
        return () if one is None or not self.worst.at else tuple(one.shape)


class Workers:
    """A context. Interpreters of the older and the newer torch."""

    def __init__(self, pythons: Sequence[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pseudograd-cut-")
        self._processes = [
            subprocess.Popen(
                [python, str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                cwd=self._folder.name,
            )
            for python in pythons
        ]
        self._is_late = False
        self._timer = threading.Timer(_SECONDS, self._stop)
        self._timer.daemon = True
        self.asked = 0

    def __enter__(self) -> Workers:
        self._timer.start()
        for process in self._processes:
            self._line(process)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
        """Of the older torch and of the newer one."""
        self.asked += 1
        tensors = Path(self._folder.name) / "tensors"
        torch.save(dict(call.tensors), tensors)
        files = [Path(self._folder.name) / str(at) for at in range(len(self._processes))]
        asked = {"tensors": str(tensors), "requires": sorted(call.requires), "lines": call.lines()}
        for process, file in zip(self._processes, files, strict=True):
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps({**asked, "outcome": str(file)}) + "\n")
                process.stdin.flush()
            except OSError as error:
                raise self._gone() from error
        return [self._read(process, file) for process, file in zip(self._processes, files, strict=True)]

    def _read(self, process: subprocess.Popen[str], file: Path) -> Outcome:
        said: dict[str, Any] = json.loads(self._line(process))
        if said["error"] is not None:
            return Outcome(said["error"], {})
        tensors = torch.load(file, weights_only=True)
        return Outcome(None, tensors, said["is_random"], said["is_tensor"])

    def _line(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise self._gone()
        return line

    def _gone(self) -> Exception:
        return LateError() if self._is_late else UnwritableError("the call alone ends its process")


def apart(old: Outcome, new: Outcome) -> list[Apart]:
    """By tensor, those that differ at all."""
    found = []
    for name in dict.fromkeys([*old.tensors, *new.tensors]):
        one, other = old.tensors.get(name), new.tensors.get(name)
        if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
            found.append(Apart(name, math.inf))
            continue
        far, at = _far(one, other)
        if far:
            found.append(Apart(name, far, at))
    return found


def _far(one: Tensor, other: Tensor) -> tuple[float, tuple[int, ...]]:
    if one.numel() == 0:
        return 0.0, ()
    kind = torch.complex128 if one.is_complex() else torch.float64
    one, other = one.to(kind), other.to(kind)
    differs = ~((one == other) | (one.isnan() & other.isnan()))
    if not differs.any():
        return 0.0, ()
    gaps = torch.where(differs, (one - other).abs(), 0.0).nan_to_num(math.inf, math.inf)
    place = int(gaps.argmax())
    at = tuple(int(index) for index in torch.unravel_index(torch.tensor(place), one.shape))
    largest = max(float(both.abs().nan_to_num(0.0, 0.0, 0.0).max()) for both in (one, other))
    far = float(gaps.max())
    return (far / largest if math.isfinite(far) and largest else far), at
