"""Are the tests good? Change the package in hundreds of small ways; the tests must fail for each.

    python tests/mutation/run.py                                             all: hours
    python tests/mutation/run.py --files optim.py ops/codebook.py --sample 30  thirty of these, the same thirty for one --seed
    python tests/mutation/run.py --sample 200 --minutes 60                   what can be tried in an hour

Every mutant is a copy of the package in a temporary directory, tested in a forked child of this process, which has imported torch
and pytest but not pseudograd. Each file has tests of its own, in chosen.py; they run until one fails. Exit status 1 if fewer than 95 %
are killed, not counting those that explained.py shows to change no value.
"""

from __future__ import annotations

import argparse
import difflib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")
import matplotlib.pyplot  # noqa: F401  (imported before the fork, so that no child pays for it)
import pytest
import torch
import torch._dynamo

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from chosen import TESTS, every_file, prefix_of, why_not  # noqa: E402
from explained import EXPLAINED  # noqa: E402
from mutants import Mutant, changed_source, mutants_of  # noqa: E402

ARGUMENTS = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=no", "--assert=plain"]
THRESHOLD = 0.95


def tests_of(file: str) -> list[list[str]]:
    prefix = prefix_of(file)
    assert prefix is not None, f"chosen.py names no tests for {file}, see tests/mutation/test_chosen.py"
    return TESTS[prefix]


class Workplace:
    """The package and the tests as they were at the start, so that editing goes on while this runs."""

    def __init__(self, directory: Path) -> None:
        self.root = directory
        self.source = directory / "src"
        self.package = self.source / "pseudograd"
        self.failing = directory / "failing"
        leave = shutil.ignore_patterns("__pycache__", ".*")
        shutil.copytree(ROOT / "src" / "pseudograd", self.package, ignore=leave)
        for folder in ("tests", "docs", "scripts", "examples", "benchmarks"):  # some tests read pages, and run scripts
            shutil.copytree(ROOT / folder, directory / folder, ignore=leave)
        for file in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / file, directory)

    def mutants(self, only: list[str], texts: list[str]) -> list[Mutant]:
        """Of the files whose names begin with one of `only`; all if there is none."""
        files = [file for file in every_file(self.package) if why_not(file) is None]
        for name in only:
            if not any(file.startswith(name) for file in files):
                raise SystemExit(_fits_nothing(name, files))
        chosen = [file for file in files if not only or file.startswith(tuple(only))]
        found = [mutant for file in chosen for mutant in mutants_of(file, (self.package / file).read_text())]
        return [mutant for mutant in found if any(text in str(mutant) for text in texts)]


def _fits_nothing(name: str, files: list[str]) -> str:
    got = f"--files must be the beginnings of files of src/pseudograd, got {name!r}."
    reason = why_not(name)
    if reason is not None:
        return f"{got} No mutants are made of it: {reason}."
    close = [file for file in files if name.strip("./") and name.strip("./").split("/")[-1] in file]
    close = close or difflib.get_close_matches(name, files, n=1)
    return f"{got} Did you mean {close[0]}?" if close else f"{got} It fits nothing: write optim.py, or ops/."


class Known:
    """A plugin: leaves out the tests that fail on the package as it is, after it has noted them in a first run."""

    def __init__(self, file: Path, note: bool) -> None:
        self.file, self.note = file, note
        self.failing = set(file.read_text().splitlines()) if file.exists() else set()

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "xdist_group: of a plugin that is not loaded here")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid not in self.failing]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.note:
            with self.file.open("a") as file:
                print(report.nodeid, file=file)


def passes(place: Workplace, source: Path, limit: float, groups: list[list[str]], note: bool = False) -> bool:
    """Do all tests pass on the package under `source`? Runs them in a forked child; too slow counts as failing."""
    pid = os.fork()
    if pid == 0:
        os._exit(_test_here(place, source, groups, note))
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _test_here(place: Workplace, source: Path, groups: list[list[str]], note: bool) -> int:
    """In the child: `source` comes first on the path, here and in the processes that tests start."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (1,) if note else (1, 2):
        os.dup2(devnull, stream)
    os.chdir(place.root)
    sys.path[:] = [str(source), *(p for p in sys.path if p not in (str(ROOT / "src"), str(HERE)))]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
    sys.argv = ["pytest"]
    os.environ["PYTHONPATH"] = str(source)
    torch.set_num_threads(1)
    arguments = [argument for argument in ARGUMENTS if not (note and argument == "-x")]
    worst = 0
    for tests in groups:
        start = time.monotonic()
        try:
            code = int(
                pytest.main([*arguments, f"--rootdir={place.root}", *tests], plugins=[Known(place.failing, note)])
            )
        except BaseException:
            if note:
                raise
            return 1
        if note:
            print(f"{time.monotonic() - start:6.1f} s  {' '.join(tests)}", file=sys.stderr)
        if not note and (code != 0 or not _came_from(source)):
            return 1
        worst = max(worst, code)
    return worst


def _came_from(source: Path) -> bool:
    return str(sys.modules["pseudograd"].__file__).startswith(str(source))


def as_it_is(place: Workplace, group: list[str]) -> float:
    """How long its tests take on the package as it is; an error if then no mutant could survive them."""
    start = time.monotonic()
    if not passes(place, place.source, 3600, [group], note=True) and not passes(place, place.source, 3600, [group]):
        raise SystemExit(f"chosen.py must name tests that pass on the package as it is, got {' '.join(group)}.")
    return time.monotonic() - start


def is_killed(place: Workplace, mutant: Mutant, limit: float) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "pseudograd"
        shutil.copytree(place.package, copy)
        (copy / mutant.file).write_text(changed_source(mutant, (place.package / mutant.file).read_text()))
        return not passes(place, Path(directory), limit, tests_of(mutant.file))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds for one mutant, beside thrice what its tests take"
    )
    parser.add_argument("--files", nargs="*", default=[], help="as in ops/bounds.py, or rewrite/; default: all")
    parser.add_argument("--only", nargs="*", default=[""], help="only mutants whose text holds one of these")
    parser.add_argument("--sample", type=int, metavar="N", help="only N of them, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample; default: 0")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no mutant after so many")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    parser.add_argument(
        "--explained", action="store_true", help="also run those in explained.py, else survivors untried"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Workplace(Path(directory))
        mutants = place.mutants(arguments.files, arguments.only)
        if arguments.sample is not None and arguments.sample < len(mutants):
            mutants = random.Random(arguments.seed).sample(mutants, arguments.sample)
        if arguments.list:
            print(*mutants, sep="\n")
            return 0
        groups = list(dict.fromkeys(tuple(group) for mutant in mutants for group in tests_of(mutant.file)))
        with ThreadPoolExecutor(arguments.jobs) as pool:  # group by group, on every core
            seconds = dict(zip(groups, pool.map(lambda group: as_it_is(place, list(group)), groups), strict=True))
            if place.failing.exists():
                failing = sorted(set(place.failing.read_text().splitlines()))
                print(f"{len(failing)} tests fail on the package as it is and are left out, first {failing[0]}")
            limits = {
                mutant: arguments.limit + 3 * sum(seconds[tuple(group)] for group in tests_of(mutant.file))
                for mutant in mutants
            }
            end = time.monotonic() + 60 * arguments.minutes
            judged = pool.map(lambda mutant: _judged(place, mutant, limits[mutant], end, arguments.explained), mutants)
            verdicts = dict(zip(mutants, judged, strict=True))
    return report({mutant: killed for mutant, killed in verdicts.items() if killed is not None}, len(mutants))


def _judged(place: Workplace, mutant: Mutant, limit: float, end: float, tries_explained: bool) -> bool | None:
    """Is it killed? None if the time is over."""
    if time.monotonic() > end:
        return None
    killed = (tries_explained or mutant.key not in EXPLAINED) and is_killed(place, mutant, limit)
    print("." if killed else f"\nsurvived: {mutant}\n", end="", flush=True)
    return killed


def report(killed: dict[Mutant, bool], asked: int) -> int:
    survivors = [mutant for mutant, dead in killed.items() if not dead]
    explained = [mutant for mutant in survivors if mutant.key in EXPLAINED]
    print(f"\n\n{len(explained)} survivors are explained:")
    for mutant in explained:
        print(f"  {mutant}\n      {EXPLAINED[mutant.key]}")
    unexplained = [mutant for mutant in survivors if mutant.key not in EXPLAINED]
    print(f"{len(unexplained)} survivors are not:")
    for mutant in unexplained:
        print(f"  {mutant}")
    if len(killed) < asked:
        print(f"{asked - len(killed)} of {asked} were not tried: the time was over")
    change_a_value = len(killed) - len(explained)
    rate = sum(killed.values()) / max(1, change_a_value)
    print(f"{sum(killed.values())} of {change_a_value} mutants that change a value killed: {rate:.1%}")
    print(f"at least {THRESHOLD:.0%} must be")
    return 0 if rate >= THRESHOLD else 1


if __name__ == "__main__":
    sys.exit(main())
