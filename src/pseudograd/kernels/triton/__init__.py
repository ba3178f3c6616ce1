"""Kernels in Triton for tensors on CUDA: a call and its backward are one kernel each, and keep one or two bits per element.

They wait for nothing and look at no value, so a CUDA graph can record them; the first run of each compiles, and does not happen in a
recording. Should triton raise, the plain formulas take over for good. PSEUDOGRAD_TRITON=0 in the environment leaves the kernels out.

Tensors on CUDA keep a code or x, and which of the two may not change in a process: a checkpoint compares what its two passes kept. So
that is decided here, once, by what the process was started with, and a kernel that fails later changes only who computes.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import struct
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...arguments import flushes_subnormals, rounded_to
from ...geometry import Side
from ...rule import Call, Gradients, Wants
from .. import range_bits
from ..range_bits import CODE, Plan, plan_for, suits
from ..residuals import INPUTS, Inputs, Kept
from ..table import Kernel, account, register

_BLOCK = 1024  # elements of a program


def _missing() -> str:
    """What this process lacks; "" for nothing. Triton compiles a little C before its first kernel."""
    if os.environ.get("PSEUDOGRAD_TRITON", "") == "0":
        return "turned off by PSEUDOGRAD_TRITON=0"
    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    if not _is_installed():
        return "triton is not installed"
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        return "TRITON_INTERPRET is set: its interpreter is for tests"
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "triton needs a C compiler: install gcc or clang, or set CC"
    import sysconfig  # a millisecond, for the few that get here

    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "triton needs Python.h: install the headers of this Python"
    return ""


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("triton") is not None
    except ValueError:  # something stands in for it
        return False


_lacks = _missing()
_failure = ""
_ran: set[tuple[Any, ...]] = set()  # what is compiled and loaded


def status() -> dict[str, str]:
    if _lacks or _failure:
        return {"state": "not active", "why": _lacks or _failure}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about drivers
        if not torch.cuda.is_available():
            return {"state": "not active", "why": "no CUDA device"}
    from importlib.metadata import version  # on demand, as the import of triton itself

    return {"state": "active", "why": f"triton {version('triton')}"}


def _fail(error: Exception) -> None:
    global _failure
    _failure = f"turned off, triton raised {type(error).__name__}: {error}"
    warnings.warn(
        f"pseudograd: the Triton kernels are {_failure}. The gradients stay the same and cost more time. "
        "Start with PSEUDOGRAD_TRITON=0 to do without them.",
        RuntimeWarning,
        stacklevel=2,
    )


def _run(name: str, tensors: tuple[Tensor, ...], numbers: tuple[float, ...], constants: dict[str, Any]) -> bool:
    """Has the kernel of this name run? On the device of the tensors, element by element in the order of their memory."""
    if _failure:
        return False
    device, n = tensors[0].device, tensors[0].numel()
    # All that triton compiles anew for.
    aligned = [tensor.data_ptr() % 16 == 0 for tensor in tensors]
    key = name, device, tensors[0].dtype, n == 1, n % 16 == 0, n < 2**31, *aligned, *constants.values()
    if key not in _ran and _is_recording(device):
        return False
    try:
        from . import loops

        with torch.cuda.device_of(tensors[0]):
            grid = (-(-n // _BLOCK),)
            # Told not to fuse, or triton 3.9 warns that it does. Nothing here could be fused.
            how = {"block": _BLOCK, "num_warps": 4, "enable_fp_fusion": False}
            getattr(loops, name)[grid](*tensors, n, *map(_bits_of, numbers), **constants, **how)
    except Exception as error:
        _fail(error)
        return False
    _ran.add(key)
    return True


def _is_recording(device: torch.device) -> bool:
    """Does a CUDA graph record? To compile and load would spoil it."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _bits_of(number: float) -> int:
    return int(struct.unpack("q", struct.pack("d", number))[0])


def _bounds(low: float | None, high: float | None, dtype: torch.dtype) -> tuple[float, float]:
    """As numbers of this dtype, with their signs: what rounds remembers 0.0 and -0.0 as one."""
    return (
        -math.inf if low is None else math.copysign(rounded_to(low, dtype), low),
        math.inf if high is None else math.copysign(rounded_to(high, dtype), high),
    )


def of_shares(plan: Plan) -> tuple[tuple[float, ...], dict[str, Any]]:
    """The numbers, and the constants that each share is compiled for."""
    forms = [form_of(share) for share in plan.shares] + [0] * (3 - len(plan.shares))
    return plan.numbers, dict(zip(("form_of_first", "form_of_second", "form_of_both"), forms, strict=True))


def form_of(share: Side) -> int:
    """Its kind in the two lowest bits; then, for the factor of grad > 0 and for that of grad < 0, whether it is 0, and whether it is 1."""
    up, down = range_bits.numbers_of(share)
    return range_bits.kind_of(share) | (up == 0) << 2 | (up == 1) << 3 | (down == 0) << 4 | (down == 1) << 5


def _encode(call: Call, inputs: Inputs, wants: Wants) -> tuple[Tensor, Kept] | None:
    x, low, _ = inputs
    if isinstance(low, Tensor):
        return None
    order = range_bits.order_of(x) or 0
    y = range_bits.in_own_order(_fresh(range_bits.in_memory_order(x, order)), order)
    kept = _encode_into(y, call, inputs)
    return None if kept is None else (y, kept)


def _fresh(like: Tensor) -> Tensor:
    return torch.empty_like(like, memory_format=torch.contiguous_format)


def _encode_in_place(call: Call, inputs: Inputs, wants: Wants) -> Kept | None:
    return _encode_into(inputs[0], call, inputs)


def _encode_into(y: Tensor, call: Call, inputs: Inputs) -> Kept | None:
    x, low, high = inputs
    plan, order = plan_for(call, low, high, x.dtype, flushes_subnormals()), range_bits.order_of(x)
    assert plan is not None  # the residual has asked
    assert order is not None
    code = torch.empty(range_bits.size_of(x.numel(), plan), dtype=torch.uint8, device=x.device)
    bounds = _bounds(low, high, x.dtype)
    constants = {"first": plan.first, "second": plan.second, **_ties(*bounds, x.is_cuda)}
    return [code, order, plan] if _run("encode", (x, y, code), bounds, constants) else None


def _ties(low: float, high: float, is_cuda: bool) -> dict[str, bool]:
    """Which zero is y, where x and a bound are zeros of different sign? torch takes x on CPU; on CUDA -0.0 is less than 0.0."""
    return {
        "takes_min": is_cuda and math.copysign(1.0, low) > 0,
        "takes_max": is_cuda and math.copysign(1.0, high) < 0,
    }


def _pull_code(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients | None:
    code, order, plan = kept
    if not range_bits.are_bytes(code) or code.numel() != range_bits.size_of(grad.numel(), plan):
        return None
    there = range_bits.in_memory_order(grad, order).contiguous()
    out = _fresh(there)
    numbers, forms = of_shares(plan)
    planes = {"has_first": plan.first != 0, "has_second": plan.second != 0, "has_both": plan.first & plan.second != 0}
    if not _run("pull_code", (there, code, out), numbers, {**planes, **forms}):
        return None
    return range_bits.in_own_order(out, order), None, None


def _pull_inputs(grad: Tensor, kept: Kept, wants: Wants, call: Call) -> Gradients | None:
    x, low, high = kept
    if wants[1] or wants[2] or isinstance(low, Tensor) or isinstance(high, Tensor):
        return None
    if x.numel() < range_bits.least or grad.shape != x.shape or grad.dtype is not x.dtype:
        return None
    plan = plan_for(call, low, high, x.dtype, flushes_subnormals())
    if plan is None:
        return None
    order = range_bits.order_of(x) or 0
    x, grad = (range_bits.in_memory_order(value, order).contiguous() for value in (x, grad))
    out = _fresh(grad)
    numbers, forms = of_shares(plan)
    constants = {"first": plan.first, "second": plan.second, **forms}
    if not _run("pull_x", (grad, x, out), (*_bounds(low, high, x.dtype), *numbers), constants):
        return None
    return range_bits.in_own_order(out, order), None, None


def kernels_for(device: str) -> list[Kernel]:
    return [
        Kernel("triton", CODE, suits, _pull_code, _encode, _encode_in_place, device, priority=40),
        Kernel("triton", INPUTS, suits, _pull_inputs, device=device, priority=40),
    ]


account("triton", status)
if not _lacks:
    range_bits.serve("cuda")
    register(*kernels_for("cuda"))
