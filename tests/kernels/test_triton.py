"""The kernels in Triton: in its interpreter, compiled for processors that are not here, and on one that is."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import itertools
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd import doctor, kernels
from pseudograd.kernels import range_bits, table, triton
from pseudograd.rule import OPS, make_call

from .test_native import gradient, numbers, same, same_bits
from .ways import WITH_A_CODE

ROOT = Path(__file__).resolve().parents[2]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def run(*arguments: str, **environment: str) -> str:
    """What Python prints with these arguments, in a process of its own at the root of the project."""
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "TRITON", "PSEUDOGRAD_TRITON"))
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**inherited, **environment},
    )
    assert done.returncode == 0, done.stdout[-20000:] + done.stderr[-5000:]
    return done.stdout


@needs_triton
def test_in_the_interpreter(tmp_path: Path) -> None:
    file = "tests/kernels/in_triton_interpreter.py"
    text = run(
        "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", file, TRITON_INTERPRET="1", TRITON_CACHE_DIR=str(tmp_path)
    )
    assert " passed" in text
    assert "skipped" not in text


@needs_triton
def test_compiled_for_processors_that_are_not_here(tmp_path: Path) -> None:
    """No warning either: it would be the user's."""
    assert "compiled" in run("-W", "error", "-m", "tests.kernels.compile_triton", TRITON_CACHE_DIR=str(tmp_path))


@pytest.mark.program
def test_importing_pseudograd_imports_no_triton() -> None:
    program = (
        "import sys, torch; before = 'triton' in sys.modules; import pseudograd as pg\n"
        "pg.clamp(torch.zeros(5000, requires_grad=True), -1, 1).sum().backward(); pg.doctor.examine()\n"
        "print(before, 'triton' in sys.modules)"
    )
    before, after = run("-c", program.replace("pg.doctor", "__import__('pseudograd.doctor').doctor")).split()
    assert before == after


# --- why they run, or do not --------------------------------------------------------------------------------------------


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A process that lacks nothing."""
    for name in ("PSEUDOGRAD_TRITON", "TRITON_INTERPRET", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setattr(triton, "_is_installed", lambda: True)
    monkeypatch.setattr(triton.shutil, "which", lambda name: name if name == "clang" else None)
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert triton._missing() == ""
    return monkeypatch


def test_what_a_process_may_lack(fit: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def why(*change: Any) -> str:
        with fit.context() as patch:
            (patch.setattr if len(change) == 3 else patch.setenv)(*change)
            return triton._missing()

    assert why("PSEUDOGRAD_TRITON", "0") == "turned off by PSEUDOGRAD_TRITON=0"
    assert why("PSEUDOGRAD_TRITON", "1") == ""
    assert why("TRITON_INTERPRET", "1") == "TRITON_INTERPRET is set: its interpreter is for tests"
    assert why(torch.version, "cuda", None) == "this torch is built without CUDA"
    assert why(triton, "_is_installed", lambda: False) == "triton is not installed"
    assert (
        why(triton.shutil, "which", lambda name: None) == "triton needs a C compiler: install gcc or clang, or set CC"
    )
    (tmp_path / "Python.h").unlink()
    assert triton._missing() == "triton needs Python.h: install the headers of this Python"


def test_what_stands_in_for_triton_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", type(sys)("triton"))  # a module without a spec
    assert not triton._is_installed()


def line_of_doctor() -> str:
    (line,) = [line for line in doctor.text(doctor.examine()).splitlines() if line.startswith("  triton ")]
    return " ".join(line.split())


def test_the_line_of_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "_lacks", "")
    monkeypatch.setattr(triton, "_failure", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert line_of_doctor() == "triton not active no CUDA device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.9.0")
    with contextlib.ExitStack() as stack:
        if not any(kernel.name == "triton" for kernel in table._kernels):  # this process lacks something
            assert line_of_doctor() == "triton active triton 3.9.0"
            added = triton.kernels_for("cuda")
            kernels.register(*added)
            stack.callback(kernels.remove, *added)
        served = ", ".join(f"clamp/{name}" for name in WITH_A_CODE)
        assert line_of_doctor() == f"triton active triton 3.9.0, for {served} on CUDA"
    monkeypatch.setattr(triton, "_failure", "turned off, triton raised RuntimeError: no")
    assert line_of_doctor() == "triton not active turned off, triton raised RuntimeError: no"
    monkeypatch.setattr(triton, "_lacks", "triton is not installed")
    assert line_of_doctor() == "triton not active triton is not installed"


def test_the_process_decides_what_is_kept_on_cuda() -> None:
    """Also without a device, and whatever fails later."""
    assert ("cuda" in range_bits.devices) is (triton._missing() == "")
    inward = kernels.that_serve(make_call(OPS["clamp"], "inward", "closed"))
    served = [kernel for kernel in inward if kernel.name == "triton"]
    assert [kernel.device for kernel in served] == ["cuda"] * len(served)
    assert len(served) == (0 if triton._missing() else 2)
    if served:
        order = [kernel.name for kernel in inward]
        assert order.index("triton") < order.index("portable")


# --- on a device ------------------------------------------------------------------------------------------------------


needs_kernels = pytest.mark.skipif(
    triton.status()["state"] != "active", reason=f"Triton kernels: {triton.status()['why']}"
)


def many(dtype: torch.dtype, count: int = 8192 + 1) -> tuple[Tensor, Tensor]:
    x, grad = numbers(dtype, count)
    return x.cuda(), grad.cuda()


@needs_kernels
@pytest.mark.parametrize("dtype", range_bits.DTYPES, ids=str)
@pytest.mark.parametrize("edge", OPS["clamp"].edges)
@pytest.mark.parametrize("rule", WITH_A_CODE)
def test_values_on_cuda(rule: str, edge: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x, grad = many(dtype)
    for (low, high), maximize, is_code in itertools.product(
        [(-1.0, 1.0), (0.0, None), (None, -0.0), (0.5, 0.5), (-0.0, 0.1)], (False, True), (True, False)
    ):
        monkeypatch.setattr(range_bits, "_is_kept_anyway", lambda x, keeps=not is_code: keeps)

        def f(x: Tensor, low: Any = low, high: Any = high, maximize: bool = maximize) -> Tensor:
            return pg.clamp(x, low, high, rule=rule, edge=edge, maximize=maximize)

        found_y, found = gradient(f, x, grad)
        assert triton._failure == ""
        with kernels.off("triton", "portable"):
            y, expected = gradient(f, x, grad)
        assert same_bits(y, torch.clamp(x, low, high))
        assert same_bits(found_y, y)
        assert same(found, expected)
        assert same_bits(pg.clamp_(x.clone().requires_grad_() * 1, low, high, rule=rule, edge=edge).detach(), y)


@needs_kernels
def test_the_kernels_run_on_cuda() -> None:
    x, grad = many(torch.float32)
    triton._ran.clear()
    gradient(lambda x: pg.clamp(x, -1, 1), x, grad)
    assert {key[0] for key in triton._ran} == {"encode", "pull_code"}
    gradient(lambda x: pg.clamp(torch.sigmoid(x), -1, 1), x, grad)
    assert {key[0] for key in triton._ran} == {"encode", "pull_code", "pull_x"}


@needs_kernels
@pytest.mark.parametrize("warm", [True, False], ids=["compiled before", "never run"])
def test_cuda_graph(warm: bool) -> None:
    """A recording replays on other values. What has not run before is recorded as the plain formulas."""
    x, grad = many(torch.float32)
    fixed, fixed_grad = x.clone().requires_grad_(), grad.clone()
    if warm:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.autograd.grad(pg.clamp(fixed, -1, 1), fixed, fixed_grad)
        torch.cuda.current_stream().wait_stream(stream)
    else:
        triton._ran.clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = pg.clamp(fixed, -1, 1)
        (found,) = torch.autograd.grad(y, fixed, fixed_grad)
    assert bool(triton._ran) is warm
    for _ in range(3):
        x, grad = x.roll(7), grad.roll(-5)
        with torch.no_grad():
            fixed.copy_(x)
        fixed_grad.copy_(grad)
        graph.replay()
        with kernels.off("triton", "portable"):
            expected_y, expected = gradient(lambda x: pg.clamp(x, -1, 1), x, grad)
        assert same_bits(y.detach(), expected_y)
        assert same(found, expected)


@needs_kernels
def test_memory_saved_on_cuda() -> None:
    """Two bits per element in place of x, which may go."""
    n = 1 << 22
    x = torch.randn(n, device="cuda", requires_grad=True)
    pg.clamp(x * 1, -1, 1).sum().backward()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = pg.clamp(x * 1, -1, 1)
    kept = torch.cuda.memory_allocated() - before - y.nbytes
    assert n // 4 <= kept <= n // 4 + 4096


@needs_kernels
def test_more_elements_than_32_bits_count() -> None:
    n = 2**31 + 65
    if torch.cuda.mem_get_info()[0] < 8 * n:
        pytest.skip("needs 17 GB of memory on the device")
    x = torch.zeros(n, dtype=torch.float16, device="cuda")
    x[-65:] = torch.linspace(-2, 2, 65)
    x.requires_grad_()
    y = pg.clamp(x, -1, 1)
    (found,) = torch.autograd.grad(y, x, torch.ones((), dtype=torch.float16, device="cuda").expand(n))
    tail = x.detach()[-65:]
    assert torch.equal(y.detach()[-65:], tail.clamp(-1, 1))
    expected = torch.where(tail < -1, 0.0, 1.0)  # a positive grad leads down: above the range back into it
    assert torch.equal(found[-65:], expected.half())
    assert bool((found[:-65] == 1).all())


@needs_kernels
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_on_another_device_than_the_current_one() -> None:
    x, grad = (value.to("cuda:1") for value in many(torch.float32))
    found_y, found = gradient(lambda x: pg.clamp(x, -1, 1), x, grad)
    with kernels.off("triton", "portable"):
        y, expected = gradient(lambda x: pg.clamp(x, -1, 1), x, grad)
    assert same_bits(found_y, y)
    assert same(found, expected)
