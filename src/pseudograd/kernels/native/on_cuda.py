"""Kernels on CUDA devices: the operators of the C library. NVRTC compiles them when a plan first meets a device.

This file is imported if torch has CUDA. If an operator starts no kernel, it returns a tensor without elements, and the formula computes the
call. If a kernel fails, all of these kernels are off from then on, with one warning.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import bits
from ..table import Kernel, account, register, remove
from . import Operators, constants, kernels_of, operators, status

DEVICE = "cuda"
NAME = "cuda"
_lock = threading.Lock()
_warned: list[str] = []  # the warnings that were given


class NoKernelError(NotImplementedError):
    """No kernel was started. Callers of operators catch NotImplementedError, as torch raises it for tensors that no operator takes."""


class _Checked(Operators):
    """The operators, which raise `NoKernelError` where no kernel was started."""

    def __getattr__(self, name: str) -> Any:
        operator = getattr(operators, name)

        def check(x: Tensor, *others: object) -> Any:
            results = operator(x, *others)
            # Without a kernel the order, the last of several results, is below 0, and a single result is empty.
            is_missing = results[-1] < 0 if isinstance(results, tuple) else not results.numel() and x.numel()
            if is_missing:
                raise decline()
            return results

        setattr(self, name, check)
        return check


def decline() -> NoKernelError:
    """The error for a call that no kernel computes. Warns once of each reason. After a failure, all kernels are off."""
    state, reason, note = read_status()
    message = f"a CUDA kernel failed, so pseudograd's plain formulas compute on CUDA from here on: {reason}"
    if state != "failed":
        message = f"pseudograd's plain formula computes this call: {note}" if note else ""
    with _lock:
        is_new = bool(message) and message not in _warned
        if is_new:
            _warned.append(message)
        if state == "failed" and is_new:
            bits.devices.discard(DEVICE)
            remove(*_kernels)
    if is_new:
        warnings.warn(message, stacklevel=2)
    return NoKernelError(reason or note)


def read_status() -> Sequence[str]:
    """What cuda.c says: "waiting", "active" or "failed"; why; and why it declined the last call that it declined without a failure."""
    text = bytes(operators.cuda_status().tolist()).decode()
    return text.split("|") if text else ("failed", "torch's library for CUDA is not loaded", "")


def _examine() -> dict[str, str]:
    """Run a kernel on each device: only that shows whether kernels run there."""
    if status()["state"] != "active":
        return status()
    if not torch.cuda.is_available():
        return {"state": "not active", "why": "torch sees no CUDA device"}
    names: list[str] = []
    for index in range(torch.cuda.device_count()):
        x = torch.zeros(1, device=f"{DEVICE}:{index}")
        if operators.steps(x, constants(0.0)).numel():
            major, minor = torch.cuda.get_device_capability(index)
            names.append(f"{torch.cuda.get_device_name(index)} (sm_{major}{minor})")
    state, reason, _ = read_status()
    if state == "failed":
        return {"state": "not active", "why": reason}
    return {"state": "active", "why": f"{reason} for {', '.join(names)}"}


_kernels: list[Kernel] = []
if operators is not None and read_status()[0] != "failed":
    _kernels += kernels_of(_Checked(), NAME, DEVICE)
    bits.devices.add(DEVICE)
    register(*_kernels)
account(NAME, _examine)
