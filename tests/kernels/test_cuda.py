"""Kernels on CUDA without a device: their source as plain C++ gives what the loops of the CPU give, bit for bit; NVRTC compiles it; every
status of the driver is checked. A stand-in takes the place of torch's library for CUDA, of NVRTC and of the driver.
"""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pseudograd.kernels import native

from .ways import needs_native

SOURCES = native.LIBRARY.parent
STAND_IN = Path(__file__).with_name("native") / "cuda_stand_in.c"
COMPILER = shutil.which("g++")
pytestmark = [
    needs_native,
    pytest.mark.skipif(COMPILER is None, reason="needs g++"),
    pytest.mark.skipif(not (SOURCES / "kernels.cu").exists(), reason="a wheel has no sources"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="torch's own library for CUDA is loaded"),
]
MACROS = """T NAME LANE LOAD STORE KIND HAS_LOW HAS_HIGH HAS_TENSORS HAS_Y WALKS PLANES SCALES RULE FACTOR pseudograd"""


def compile_with(*arguments: object, jobs: Sequence[Sequence[object]] = ((),)) -> None:
    processes = [subprocess.Popen([str(part) for part in (COMPILER, f"-I{SOURCES}", *arguments, *job)]) for job in jobs]
    assert [process.wait() for process in processes] == [0] * len(processes)


def build_stand_in(folder: Path) -> None:
    name = "libtorch_cuda.so"
    how = ("-x", "c", "-std=gnu11", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{name}", STAND_IN, "-ldl")
    compile_with(*how, "-o", folder / name)
    (folder / "libcaffe2_nvrtc.so").symlink_to(name)


def build_kernels(folder: Path, *flags: str) -> int:
    """All sources in the folder as one library of plain C++, each with a name of its own; how many there are."""
    sources = sorted(folder.glob("k*.cu"))
    jobs = []
    for job in range(2):
        text = ["#define WORD uint32_t", "#define BLOCK 8", '#include "kernels.h"', '#include "number.h"']
        for source in sources[job::2]:
            undefined = "".join(f"\n#undef {name}" for name in MACROS.split())
            text.append(
                f"namespace n{source.stem} {{\n#define pseudograd {source.stem}\n{source.read_text()}\n}}{undefined}"
            )
        (folder / f"kernels{job}.cpp").write_text("\n".join(text))
        jobs.append((folder / f"kernels{job}.cpp", "-o", folder / f"kernels{job}.o"))
    how = ("-std=c++20", "-O1", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing", "-Wno-unknown-pragmas", *flags)
    compile_with("-c", *how, jobs=jobs)
    compile_with("-shared", *flags, *(folder / f"kernels{job}.o" for job in range(2)), "-o", folder / "kernels.so")
    return len(sources)


def run_tests(folder: Path, *arguments: str, sanitize: bool = False) -> str:
    environment = os.environ | {"PSEUDOGRAD_STAND_IN": str(folder)}
    if sanitize:  # Python does not load these; libasan looks into libstdc++ when it starts
        libraries = [f"-print-file-name={name}" for name in ("libasan.so", "libstdc++.so")]
        paths = [subprocess.check_output([str(COMPILER), option], text=True).strip() for option in libraries]
        environment |= {"LD_PRELOAD": ":".join(paths), "ASAN_OPTIONS": "detect_leaks=0"}
    plugins = ("-p", "tests.kernels.stand_in", "-p", "no:cacheprovider", "-p", "no:xdist")
    command = [sys.executable, "-m", "pytest", "-q", "-x", *plugins, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


SAMPLE = (
    "SSE2 and (test_between_numbers and float16 or test_steps_and_curves and float64 or test_elastic and float32 or test_on_a_grid)"
    " or (SSE2 and test_formulas_of and (float32 or bfloat16)) or test_layouts"
)

ALL = "SSE2 or layouts or interval"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.mark.parametrize(
    ("which", "flags"),
    [
        pytest.param(SAMPLE, (), marks=pytest.mark.program, id="sample"),
        pytest.param(ALL, (), marks=pytest.mark.slow, id="all"),
        pytest.param(ALL, SANITIZERS, marks=pytest.mark.slow, id="sanitizers"),
    ],
)
def test_the_tests_of_the_loops_on_cpu_give_the_same_bits_on_a_device(
    which: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    arguments = ["tests/kernels/test_native_values.py", "-k", which]
    build_stand_in(tmp_path)
    run_tests(tmp_path, *arguments)
    assert build_kernels(tmp_path, *flags) > 100
    assert " 0 differ" in run_tests(tmp_path, *arguments, sanitize=bool(flags))


def run_cases(folder: Path) -> dict[str, dict[str, Any]]:
    environment = os.environ | {"PSEUDOGRAD_STAND_IN": str(folder), "HOME": "/nonexistent"}
    command = [sys.executable, "-m", "tests.kernels.stand_in"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    return {result["case"]: result for result in results}


@pytest.mark.program
def test_whatever_fails_is_named_once_and_the_formula_computes_that_call(tmp_path: Path) -> None:
    build_stand_in(tmp_path)
    run_cases(tmp_path)
    assert build_kernels(tmp_path) > 5
    results = run_cases(tmp_path)
    expected = results.pop("the formulas")["digest"]
    assert {name for name, result in results.items() if result["digest"] != expected} == set()
    with_a_context = {name for name, result in results.items() if result["depth"]}
    assert with_a_context == {"cuCtxPopCurrent_v2"}
    works = {"nothing", "an architecture that is newer than NVRTC", "a recording"}
    for name, result in results.items():
        state, why, _ = result["status"]
        if name in works:
            assert (state, why) == ("active", "NVRTC 99.1"), result
            assert result["launches"] > 10
        else:
            assert state == "failed", result
            (warning,) = result["warnings"]
            assert why in warning, result
            assert not name.startswith("cu") or f"{name}: CUDA_ERROR_ILLEGAL_ADDRESS" in warning
    assert [results[name]["warnings"] for name in ("nothing", "an architecture that is newer than NVRTC")] == [[], []]
    assert "a CUDA graph is being recorded" in results["a recording"]["warnings"][0]
    assert "sm_60" in results["an architecture that is too old"]["status"][1]


def find_nvrtc() -> Path | None:
    """The oldest that is installed here, in this environment or beside another torch: the newest compiles nothing for sm_70."""
    folders = [Path(folder) for folder in sys.path] + sorted(
        Path.home().glob(".cache/pseudograd/torch-*/lib/python*/site-packages")
    )
    libraries = [library for folder in folders for library in folder.glob("nvidia/*/lib/libnvrtc.so.*")]
    return min(libraries, key=lambda library: int(library.suffix[1:]), default=None)


def compile_for(nvrtc: Any, source: bytes, architecture: int) -> tuple[int, str]:
    """The status, and what the compiler says; cuda.c hands it the same."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    integers = re.findall(r'"(typedef .*;)\\n"', (SOURCES / "cuda.c").read_text())
    headers = {name: (SOURCES / name).read_bytes() for name in ("rules.h", "number.h", "blocks.h", "kernels.h")}
    headers |= {"stdint.h": "\n".join(integers).encode(), "math.h": b"", "string.h": b""}
    texts = (ctypes.c_char_p * len(headers))(*headers.values())
    names = (ctypes.c_char_p * len(headers))(*[name.encode() for name in headers])
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", len(headers), texts, names)
    options = [
        f"--gpu-architecture=sm_{architecture}",
        "--std=c++20",
        "--fmad=false",
        "--device-as-default-execution-space",
    ]
    status = nvrtc.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * 4)(*[option.encode() for option in options])
    )
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return status, log.value.decode()


@pytest.mark.parametrize(
    ("which", "every"),
    [
        pytest.param(SAMPLE, 40, marks=pytest.mark.program),
        pytest.param(ALL, 1, marks=pytest.mark.slow),
    ],
)
def test_nvrtc_compiles_the_kernels_for_every_architecture(which: str, every: int, tmp_path: Path) -> None:
    library = find_nvrtc()
    if library is None:
        pytest.skip("no NVRTC is installed")
    build_stand_in(tmp_path)
    run_tests(tmp_path, "tests/kernels/test_native_values.py", "-k", which)
    nvrtc = ctypes.CDLL(str(library))
    oldest = 70 if int(library.suffix[1:]) < 13 else 75
    for number, source in enumerate(sorted(tmp_path.glob("k*.cu"))[::every]):
        architectures = (oldest, 80, 90) if every == 1 else ((oldest, 80, 90)[number % 3],)
        for architecture in architectures:
            status, said = compile_for(nvrtc, source.read_bytes(), architecture)
            faults = [line for line in said.splitlines() if "are deprecated" not in line]
            assert (status, faults) == (0, []), (source.read_text()[:600], architecture)


MEASURE = """
import torch
from tests.kernels import stand_in
torch.manual_seed(0)
measure, rows = stand_in.on_device("measure"), torch.zeros(5, 8, dtype=torch.float64)
grad, x = torch.randn(300, 100), torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
grad[::3], grad[1, 1] = 0, float("inf")
left, half = grad.clone(), torch.randn(5000).half()
left[:50] = 0
tensors = [grad, left, half, half.bfloat16(), half.float(), half, half, x, x.contiguous()]
missed = measure(tensors, [4, 1 << 4 | 8, 1, 2 << 4 | 2, 3 << 4 | 4], rows)
if stand_in.IS_BUILT:
    assert missed == 1 << 4, missed  # in another order of memory
    assert rows[0, :5].tolist() == [20000, 3300, 16700, 1, 5000], rows
    assert rows[1].tolist() == [5000, 0, 5000, 0, 0, *rows[1, 5:].tolist()], rows
    sizes = [half.double().abs().sum(), 0, (half.bfloat16().double().abs() + half.double().abs()).sum()]
    torch.testing.assert_close(rows[1, 5:], torch.tensor(sizes, dtype=torch.float64))
    torch.testing.assert_close(rows[2, :2], torch.tensor([half.double().square().sum(), 5000], dtype=torch.float64))
"""


@pytest.mark.program
def test_several_gradients_are_measured_in_one_launch(tmp_path: Path) -> None:
    build_stand_in(tmp_path)
    for is_built in (False, True):
        environment = os.environ | {"PSEUDOGRAD_STAND_IN": str(tmp_path)}
        subprocess.run([sys.executable, "-c", MEASURE], check=True, env=environment, cwd=SOURCES.parents[3])
        assert is_built or build_kernels(tmp_path) == 1
    library = find_nvrtc()
    if library is not None:
        source = (SOURCES / "measures.cu").read_bytes()
        assert compile_for(ctypes.CDLL(str(library)), source, 80) == (0, "")
