"""Kernels on devices of CUDA: the operators of the C library, which NVRTC compiles when a plan first meets a device.

Imported where torch has CUDA. An operator gives no elements where no kernel was started; then the formula computes that same call. If
anything fails, all of these kernels are off from there on, with one warning.
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
_reasons: list[str] = []  # why the kernels are off; notes that were given once


class NoKernelError(NotImplementedError):
    """No kernel was started. The callers of operators know this type: torch raises it for tensors that no operator takes."""


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
    """With a warning, once for each reason; after a failure all kernels are off."""
    state, reason, note = read_status()
    message = f"a CUDA kernel failed, so pseudograd's plain formulas compute on CUDA from here on: {reason}"
    if state != "failed":
        message = f"pseudograd's plain formula computes this call: {note}" if note else ""
    with _lock:
        is_new = bool(message) and message not in _reasons
        if is_new:
            _reasons.append(message)
        if state == "failed" and is_new:
            bits.devices.discard(DEVICE)
            remove(*_kernels)
    if is_new:
        warnings.warn(message, stacklevel=2)
    return NoKernelError(reason or note)


def read_status() -> Sequence[str]:
    """Of cuda.c: "waiting", "active" or "failed"; why; and why the last call was declined that was declined alone."""
    text = bytes(operators.cuda_status().tolist()).decode()
    return text.split("|") if text else ("failed", "torch's library for CUDA is not loaded", "")


def _examine() -> dict[str, str]:
    """Runs a kernel on each device, because only that shows whether it runs."""
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
