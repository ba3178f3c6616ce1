"""The kernels in C give what lanes of one number give, and touch no byte that is not theirs: sanitizers and valgrind hear nothing."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

import pseudograd

SOURCES = Path(pseudograd.__file__).parent / "kernels" / "native"
PROGRAMS = Path(__file__).parent / "native"
COMPILER = shutil.which("gcc") or shutil.which("clang")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None or platform.system() != "Linux", reason="needs gcc or clang on Linux"),
    pytest.mark.skipif(not (SOURCES / "operators.c").exists(), reason="a wheel has no sources"),
]


def built(folder: Path, *flags: str, name: str = "run_operators", parts: str = "*.c") -> Path:
    program = folder / name
    sources = [str(PROGRAMS / f"{name}.c"), *map(str, sorted(SOURCES.glob(parts)))]
    # -O3 as in setup.py.
    warnings = ["-std=c11", "-O3", "-g", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [str(COMPILER), *warnings, *flags, f"-I{SOURCES}", *sources, "-o", str(program), "-ldl", "-lpthread", "-lm"],
        check=True,
    )
    return program


def test_every_level_gives_what_lanes_of_one_number_give(tmp_path: Path) -> None:
    program = built(tmp_path, name="compare_loops", parts="[ab]*.c")
    done = subprocess.run([str(program), "1000"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")


def test_sanitizers(tmp_path: Path) -> None:
    program = built(tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    done = subprocess.run([str(program), "2", "5"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_valgrind(tmp_path: Path) -> None:
    """It knows no AVX-512."""
    command = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full", str(built(tmp_path)), "1", "11"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")
