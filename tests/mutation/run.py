"""Are the tests good? Change the package in hundreds of small ways; the tests must fail for each.

    python tests/mutation/run.py [--jobs 2] [--files ops/bounds.py …] [--limit 60] [--list]

Every mutant is a copy of the package in a temporary directory, tested in a forked child of this process, which has imported torch and
pytest but not pseudograd. Exit status 1 if fewer than 95 % are killed. A survivor that no test can kill belongs into explained.py.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")
import hypothesis  # noqa: F401  (imported before the fork, so that no child pays for it)
import matplotlib.pyplot  # noqa: F401
import pytest
import torch
import torch._dynamo

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = ROOT / "src" / "pseudograd"
sys.path.insert(0, str(HERE))

from explained import EXPLAINED  # noqa: E402
from mutants import Mutant, mutants_of  # noqa: E402

# The fast tests first: most mutants die in the first second.
TESTS = [
    ["tests/ops", "tests/contract/test_bounds.py", "tests/engine", "--deselect", "tests/ops/test_flush_denormal.py"],
    ["tests/contract/test_values.py", "-k", "(clamp- or replace_grad-) and not ascent and not (leaky- or elastic-)"],
    ["tests/contract/test_compile.py", "tests/contract/test_samples.py", "tests/analysis", "tests/test_api.py"],
    ["tests/contract/test_transforms.py", "-k", "(clamp- or replace_grad-) and not ascent"],
    ["tests/contract/test_derivatives.py", "-k", "clamp- and not ascent"],
    ["tests/contract/test_values.py", "-k", "((clamp- and ascent) or lower_bound- or relu6-) and not (bfloat16 or float64)"],
    ["tests/ops/test_flush_denormal.py"],
]
ARGUMENTS = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=no", f"--rootdir={ROOT}"]
THRESHOLD = 0.95


def targets(only: list[str]) -> list[Path]:
    """The files that decide gradients: ops, engine, kernels, checks."""
    files = [*sorted((PACKAGE / "ops").glob("*.py")), *sorted((PACKAGE / "kernels").glob("*.py"))]
    files += [PACKAGE / "engine.py", PACKAGE / "checks.py"]
    names = [path.relative_to(PACKAGE).as_posix() for path in files]
    return [path for path, name in zip(files, names, strict=True) if not only or name in only]


class Known:
    """A plugin: leaves out the tests that fail on the package as it is, after it has noted them in a first run."""

    def __init__(self, failing: Path) -> None:
        self.file = failing
        self.failing = set(failing.read_text().splitlines()) if failing.exists() else set()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self.failing]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and str(self.file) == os.environ.get("NOTE_FAILING"):
            with self.file.open("a") as file:
                print(report.nodeid, file=file)


def passes(copy: Path, limit: float, known: Path, note: bool = False) -> bool:
    """Do all tests pass on the package under `copy`? Runs them in a forked child; too slow counts as failing."""
    pid = os.fork()
    if pid == 0:
        if note:
            os.environ["NOTE_FAILING"] = str(known)
        os._exit(_test_here(copy, known, note))
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _test_here(copy: Path, known: Path, note: bool) -> int:
    """In the child: the copy comes first on the path, here and in the processes that tests start."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    if not note:
        os.dup2(devnull, 2)
    os.chdir(ROOT)
    sys.path[:] = [str(copy), *(p for p in sys.path if p not in (str(ROOT / "src"), str(HERE)))]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
    sys.argv = ["pytest"]
    os.environ["PYTHONPATH"] = str(copy)
    torch.set_num_threads(1)
    arguments = [argument for argument in ARGUMENTS if not (note and argument == "-x")]
    worst = 0
    for tests in TESTS:
        start = time.monotonic()
        try:
            code = int(pytest.main([*arguments, *tests], plugins=[Known(known)]))
        except BaseException:
            if note:
                raise
            return 1
        if note:
            print(f"{time.monotonic() - start:6.1f} s  {' '.join(tests)}", file=sys.__stderr__)
        assert sys.modules["pseudograd"].__file__.startswith(str(copy))
        worst = max(worst, code)
        if code != 0 and not note:
            return 1
    return worst


def is_killed(mutant: Mutant, limit: float, known: Path) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "pseudograd"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / mutant.file).write_text(mutant.source)
        return not passes(Path(directory), limit, known)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for one mutant")
    parser.add_argument("--files", nargs="*", default=[], help="as in ops/bounds.py; default: all")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    parser.add_argument("--only", default="", help="only mutants whose text holds this")
    arguments = parser.parse_args()
    mutants = [
        mutant
        for path in targets(arguments.files)
        for mutant in mutants_of(path.relative_to(PACKAGE).as_posix(), path.read_text())
        if arguments.only in str(mutant)
    ]
    if arguments.list:
        print(*mutants, sep="\n")
        return 0
    with tempfile.TemporaryDirectory() as directory:
        known = Path(directory) / "failing"
        if not passes(ROOT / "src", 10 * arguments.limit, known, note=True):
            count = len(known.read_text().splitlines()) if known.exists() else "all"
            print(f"{count} tests fail on the package as it is; they are left out.")
        with ThreadPoolExecutor(arguments.jobs) as pool:
            killed = list(pool.map(lambda mutant: _judged(mutant, arguments.limit, known), mutants))
    return report(mutants, killed)


def _judged(mutant: Mutant, limit: float, known: Path) -> bool:
    killed = is_killed(mutant, limit, known)
    print("." if killed else f"\nsurvived: {mutant}\n", end="", flush=True)
    return killed


def report(mutants: list[Mutant], killed: list[bool]) -> int:
    survivors = [mutant for mutant, dead in zip(mutants, killed, strict=True) if not dead]
    explained = [mutant for mutant in survivors if mutant.key in EXPLAINED]
    print(f"\n\n{len(explained)} survivors are explained:")
    for mutant in explained:
        print(f"  {mutant}\n      {EXPLAINED[mutant.key]}")
    unexplained = [mutant for mutant in survivors if mutant.key not in EXPLAINED]
    print(f"{len(unexplained)} survivors are not:")
    for mutant in unexplained:
        print(f"  {mutant}")
    rate = sum(killed) / max(1, len(killed))
    print(f"{sum(killed)} of {len(killed)} mutants killed: {rate:.1%} (at least {THRESHOLD:.0%} must be, the explained not counted as killed)")
    return 0 if rate >= THRESHOLD else 1


if __name__ == "__main__":
    sys.exit(main())
