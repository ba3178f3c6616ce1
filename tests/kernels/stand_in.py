"""For processes of their own, with a stand-in of CUDA, whose operators get tensors on CPU.

As a plugin of pytest: each call of an operator in C runs there, too, and both must agree. As a program: calls whose kernels do not start.
PSEUDOGRAD_STAND_IN is the folder of the stand-in; in it kernels.so, where the kernels were compiled, or else the sources are written there
and nothing is compared. test_cuda.py builds all of it.
"""

import ctypes
import hashlib
import json
import os
import re
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(os.environ["PSEUDOGRAD_STAND_IN"])
driver = ctypes.CDLL(str(FOLDER / "libtorch_cuda.so"), mode=ctypes.RTLD_GLOBAL)  # before the library in C looks for it
driver.stand_in_log.restype = ctypes.c_char_p
IS_BUILT = (FOLDER / "kernels.so").exists()
driver.stand_in_open(str(FOLDER).encode(), int(IS_BUILT))

from pseudograd.kernels import native  # noqa: E402
from pseudograd.kernels.bits import bytes_of_a_plane  # noqa: E402

SOURCE = native.LIBRARY.with_name("operators.c").read_text()
NAMES = re.findall(r'^    {"(\w+)",[^{}]*, \w+_on_device},', SOURCE, re.MULTILINE)
UNSURE = 1 << 60
counts = {"compared": 0, "different": 0}


def on_device(name: str) -> Callable[..., Any]:
    """The operator that is registered for CUDA, for tensors on CPU."""
    return partial(
        getattr(torch.ops.pseudograd_native, name).default.redispatch,
        torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA),
    )


def _are_same(ours: object, theirs: object, elements: int) -> bool:
    """Bit for bit, NaN where NaN. Of planes the bits behind the last element have no meaning."""
    if not isinstance(ours, Tensor) or not isinstance(theirs, Tensor):
        return ours == theirs
    if ours.dtype is torch.uint8:
        size = max(bytes_of_a_plane(elements), 1)
        planes = [np.unpackbits(code.numpy().reshape(-1, size), axis=1, bitorder="little") for code in (ours, theirs)]
        return np.array_equal(planes[0][:, :elements], planes[1][:, :elements])
    if ours.shape != theirs.shape or ours.stride() != theirs.stride():
        return False
    known = ~theirs.isnan()
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[ours.itemsize]
    return torch.equal(ours.isnan(), ~known) and torch.equal(ours.view(integers)[known], theirs.view(integers)[known])


def _compare(name: str, own: Callable[..., Any], x: Tensor, *others: Any) -> Any:
    copy = x.as_strided(x.shape, x.stride()).clone(memory_format=torch.preserve_format) if name == "encode_" else x
    expected, result = own(x, *others), on_device(name)(copy, *others)
    if not IS_BUILT:
        return expected
    each = list(zip(*((value if type(value) is tuple else (value,)) for value in (result, expected)), strict=True))
    if name == "encode_":
        each.append((copy, x))
    if name == "encode_between" and expected[-1] & UNSURE:  # of y torch's own loop decides on CPU
        each = [each[1], (result[-1], expected[-1] ^ UNSURE)]
    if name == "clamp_between" and not expected.numel():  # a device serves more of them
        each = []
    counts["compared"] += 1
    if not all(_are_same(*pair, x.numel()) for pair in each):
        counts["different"] += 1
        raise AssertionError(f"{name} differs on the device: {each}, {(x, *others)}")
    return expected


def pytest_configure() -> None:
    for name in NAMES:
        own = getattr(native.operators, name)
        setattr(native.operators, name, partial(_compare, name, own))


def pytest_unconfigure() -> None:
    print(f"\n{counts['compared']} calls compared, {counts['different']} differ, {driver.stand_in_launches()} launches")


# --- calls whose kernels do not start -----------------------------------------------------------------------------------


def serve_tensors_on_cpu() -> None:
    """By the kernels for CUDA, in place of those for the CPU."""
    torch.version.cuda = "99.1"
    from pseudograd import kernels
    from pseudograd.kernels.native import on_cuda

    for name in NAMES:
        setattr(on_cuda.operators, name, on_device(name))
    kernels.remove(*on_cuda._kernels, *[kernel for kernel in kernels.table._kernels if kernel.name == "native"])
    on_cuda._kernels[:] = native.kernels_of(on_cuda._Checked(), on_cuda.NAME, "cpu")
    kernels.register(*on_cuda._kernels)
    on_cuda.DEVICE = "cpu"


def _digest_calls(before_backward: Callable[[], object] = lambda: None) -> str:
    """Of values and gradients: of a call, of the same prepared, with tensors, in place, of few bits, and with few elements."""
    import pseudograd as pg

    x, grad = torch.linspace(-2, 2, 5000), torch.linspace(1, -1, 5000)
    calls: list[Callable[[Tensor], Tensor]] = [
        *[lambda x: pg.clamp(x, -1.0, 1.0, rule="leaky")] * 2,
        lambda x: pg.clamp(x, torch.full((5000,), -1.0), torch.full((5000,), 1.0)),
        lambda x: pg.clamp_(x * 1, -1.0, 1.0),
        lambda x: pg.gelu(x, rule="fewbit"),
        *[lambda x: pg.fake_quantize(x, 0.013)] * 2,
        lambda x: pg.fake_quantize(x, torch.full((5000,), 0.013)),
        lambda x: pg.policy.loss(x, torch.linspace(1, -1, 5000)),
        lambda x: pg.clamp(x, -1.0, 1.0, rule="inverting"),
        lambda x: pg.abs(x),
        lambda x: pg.clamp(x[:100], -1.0, 1.0, rule="elastic"),
    ]
    digest = hashlib.sha256()
    for call in calls:
        leaf = x.clone().requires_grad_()
        y = call(leaf)
        before_backward()
        (grad_x,) = torch.autograd.grad(y, leaf, grad[: len(y)])
        digest.update((y.detach() + 0.0).numpy().tobytes() + (grad_x + 0.0).numpy().tobytes())  # zeros of one sign
    return digest.hexdigest()


CASES: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "an architecture that is newer than NVRTC": lambda: driver.stand_in_architecture(120),
    "an architecture that is too old": lambda: driver.stand_in_architecture(60),
    "a recording": lambda: driver.stand_in_capture(1),
    "in backward alone": lambda: None,
}
STAND_IN = Path(__file__).with_name("native") / "cuda_stand_in.c"
STATUSES = re.findall(r"^    FAILS\((\w+)\)", STAND_IN.read_text(), re.MULTILINE)
CASES |= {name: lambda name=name: driver.stand_in_fail(name.encode(), 700) for name in STATUSES}
CASES["no NVRTC"] = lambda: (FOLDER / "libcaffe2_nvrtc.so").unlink()  # the last one: the link stays away


def _run_case(name: str) -> dict[str, object]:
    from pseudograd import kernels

    if name == "the formulas":
        with kernels.switch_off("native", "portable"):
            return {"digest": _digest_calls()}
    serve_tensors_on_cpu()
    from pseudograd.kernels.native import on_cuda

    CASES[name]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fails_late = name == "in backward alone"
        digest = _digest_calls((lambda: driver.stand_in_fail(b"cuLaunchKernel", 700)) if fails_late else lambda: None)
        driver.stand_in_capture(0)
        _digest_calls()
    return {
        "digest": digest,
        "warnings": [str(warning.message) for warning in caught],
        "status": on_cuda.read_status(),
        "launches": driver.stand_in_launches(),
        "depth": driver.stand_in_depth(),
    }


def main() -> None:
    """Prints what each case gave, in a process of its own."""
    import pseudograd  # noqa: F401  once, before the processes part

    for name in ["the formulas", *CASES] if IS_BUILT else ["nothing"]:
        sys.stdout.flush()
        if not os.fork():
            print(json.dumps({"case": name, **_run_case(name)}), flush=True)
            os._exit(0)
        os.wait()


if __name__ == "__main__":
    main()
