"""Do the tests notice a fault? This script breaks the package in small ways, one at a time; a test must fail for each.

    python tests/mutation/run.py --sample 300                      300 changes over all files of src, the same for one --seed
    python tests/mutation/run.py --files pseudograd/optim.py --tests tests/test_optim.py     one file, by one file of tests

First the suite runs once under coverage, which records the tests that run each line. Then each mutant runs in a forked child of this
process, which has imported torch and pytest but not pseudograd: the tests of the changed line, the fast ones first, until one fails. A
test that fails without the change as well does not count. Exit status 1 if fewer than 95 % of the mutants are killed, without those
that explained.json shows to change no value.

mutmut and cosmic-ray do not fit: the first changes functions alone, but the rows of this library are data of modules; the second starts
one command for each mutant, and the whole suite takes minutes.
"""

import argparse
import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
os.environ.setdefault("MPLBACKEND", "Agg")

import coverage  # noqa: E402
import hypothesis  # noqa: E402, F401
import matplotlib.pyplot  # noqa: E402, F401
import pytest  # noqa: E402
import torch  # noqa: E402
import torch._dynamo  # noqa: E402  (all of these before the fork, so that no child imports them again)
from mutants import EXPLAINED, Mutant, changed_source, draw, mutants_of  # noqa: E402

THRESHOLD = 0.95
ARGUMENTS = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=no", "--assert=plain"]
_SETTINGS = "[run]\nsource = {source}\ndynamic_context = test_function\nparallel = true\npatch = subprocess, fork\ndata_file = {data}\n"
# A worker of pytest-xdist is killed ten seconds after its last test: too soon for the data of half of the suite on a busy machine.
_SAVING = """\
import coverage

def pytest_sessionfinish():
    recording = coverage.Coverage.current()
    if recording is not None:
        recording.stop()
        recording.save()
"""
_FEW = 4
_IMPORTED = ""  # the context of lines that run while a module is imported


class Suite:
    """The tests of a copy of the project: which of them run a line, and how long each takes."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        self.source = self.root / "src"
        leave = shutil.ignore_patterns("__pycache__", ".git", ".venv", ".*_cache", ".hypothesis", "build", "*.egg-info")
        shutil.copytree(ROOT, self.root, ignore=leave)
        self.seconds: dict[str, float] = defaultdict(float)
        self.passes: dict[str, bool] = {}

    def record(self, jobs: int, tests: Sequence[str]) -> None:
        settings, data, times = (self.root / name for name in ("coveragerc", "coverage-data", "times.xml"))
        settings.write_text(_SETTINGS.format(source=self.source, data=data))
        (self.root / "save_coverage.py").write_text(_SAVING)
        path = f"{self.source}{os.pathsep}{self.root}"
        environment = {**os.environ, "PYTHONPATH": path, "COVERAGE_RCFILE": str(settings)}
        parallel = ["-n", str(jobs), "--dist", "loadgroup", "-p", "save_coverage"] if jobs > 1 else []
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q", "--tb=no"]
        subprocess.run(
            [*command, *parallel, f"--junitxml={times}", *tests], cwd=self.root, env=environment, check=False
        )
        recording = coverage.Coverage(config_file=str(settings))
        recording.combine([str(self.root)])
        self.data = recording.get_data()
        for case in ElementTree.parse(times).iter("testcase"):
            function = case.get("name", "").partition("[")[0].partition("@")[0]  # behind @ stands a group of xdist
            name = f"{case.get('classname')}.{function}"
            self.seconds[name] += float(case.get("time") or 0)
        # Many tests are lost where one of them ends the tracing of its process.
        lost = self.seconds.keys() - self.data.measured_contexts()
        print(f"{len(lost)} of {len(self.seconds)} tests run no line of the package here", file=sys.stderr)

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Test functions that run the changed lines, the fast ones first; those of a whole file where few do, or its import."""
        contexts = self.data.contexts_by_lineno(str(self.source / mutant.file))
        lines = range(mutant.line, mutant.last_line + 1)
        own = {name for line in lines for name in contexts.get(line, ())}
        tests = own & self.seconds.keys()  # hypothesis has a test_function, too
        if len(tests) < _FEW or _IMPORTED in own:  # a cached function runs in one test of a process alone
            tests |= self._tests_of_files([str(self.source / mutant.file)]) | self._importers(mutant.file)
        if len(tests) < 2:  # a file of data alone, which the files beside it read
            folder = str((self.source / mutant.file).parent)
            tests |= self._tests_of_files(
                [file for file in self.data.measured_files() if str(Path(file).parent) == folder]
            )
        return sorted(
            tests,
            key=lambda name: (name not in own, self._distance(name, mutant.file), self.seconds.get(name, 1.0)),
        )

    def _importers(self, file: str) -> set[str]:
        """The tests of each file that names the module: they may read its data alone."""
        parts = Path(file).with_suffix("").parts
        words = [re.compile(rf"\b{word}\b") for word in (parts[0], parts[-1])]
        texts = {file: file.read_text() for file in (self.root / "tests").rglob("test_*.py")}
        files = [file for file, text in texts.items() if all(word.search(text) for word in words)]
        modules = [".".join(file.relative_to(self.root).with_suffix("").parts) for file in files]
        return {test for test in self.seconds if test.startswith(tuple(f"{module}." for module in modules))}

    def _tests_of_files(self, files: Sequence[str]) -> set[str]:
        lines = [names for file in files for names in self.data.contexts_by_lineno(file).values()]
        return set(itertools.chain.from_iterable(lines)) & self.seconds.keys()

    @staticmethod
    def _distance(test: str, file: str) -> bool:
        """Tests of the folder or the file that changed come first."""
        parts = Path(file).with_suffix("").parts[1:]
        return not any(part in test for part in parts if len(part) > 3)

    def killer(self, mutant: Mutant) -> str | None:
        """The first test that fails for the mutant and passes without it."""
        with _temporary_folder() as folder:
            source = Path(shutil.copytree(self.source, folder / "src"))
            (source / mutant.file).write_text(changed_source(mutant, (self.source / mutant.file).read_text()))
            tests = self.tests_of(mutant)
            while tests:
                failed = self.first_failure(source, tests)
                if failed is None or not self._is_a_test(failed) or self._passes(failed):
                    return failed
                tests = [test for test in tests if test != failed]
        return None

    @staticmethod
    def _is_a_test(failed: str) -> bool:
        return ".test_" in failed

    def _passes(self, test: str) -> bool:
        """On the package as it is."""
        if test not in self.passes:
            self.passes[test] = self.first_failure(self.source, [test]) is None
        return self.passes[test]

    def first_failure(self, source: Path, tests: Sequence[str]) -> str | None:
        """The test function that fails first on the package under `source`, None if all pass."""
        limit = 60 + 5 * sum(self.seconds.get(test, 1.0) for test in tests)
        with _temporary_folder() as folder:
            answer = folder / "answer"
            answer.touch()
            child = os.fork()
            if child == 0:
                os.setsid()  # what the tests start ends with them
                os._exit(_run_tests(self.root, source, tests, answer))
            status = _status_of(child, limit)
            return (answer.read_text() or f"pytest ended with {status}") if status else None


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder that no forked process removes: tempfile.TemporaryDirectory would, at the end of any process that tests fork."""
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    owner = os.getpid()
    try:
        yield folder
    finally:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)


def _status_of(child: int, limit: float) -> object:
    """The exit status of a child whose process group is stopped at its end, or after `limit` seconds."""
    end = time.monotonic() + limit
    done, status = 0, 0
    while not done and time.monotonic() < end:
        time.sleep(0.02)
        done, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if done:
        return os.waitstatus_to_exitcode(status)
    os.waitpid(child, 0)
    return "the time limit"


def _run_tests(root: Path, source: Path, tests: Sequence[str], answer: Path) -> int:
    """In the child: `source` is first on the path, here and in the processes that tests start."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(devnull, stream)
    os.chdir(root)
    sys.path[:] = [str(source), *(path for path in sys.path if path not in (str(ROOT / "src"), str(HERE)))]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
    sys.argv, sys.modules["__main__"] = ["pytest"], types.ModuleType("__main__")  # a spawned process would import ours
    os.environ["PYTHONPATH"] = str(source)
    torch.set_num_threads(1)
    names = {_node_of(root, test): test for test in tests}
    try:
        return int(pytest.main([*ARGUMENTS, f"--rootdir={root}", *names], plugins=[_FirstFailure(names, answer)]))
    except BaseException as error:  # a broken package may do anything
        answer.write_text(f"pytest ended with {type(error).__name__}")
        return 1


def _node_of(root: Path, test: str) -> str:
    """tests.ops.test_abs.test_values -> tests/ops/test_abs.py::test_values"""
    parts = test.split(".")
    length = next(n for n in range(len(parts), 0, -1) if root.joinpath(*parts[:n]).with_suffix(".py").is_file())
    return "::".join(["/".join(parts[:length]) + ".py", *parts[length:]])


class _FirstFailure:
    """A pytest plugin that writes the name of the test function that fails first."""

    def __init__(self, names: Mapping[str, str], answer: Path) -> None:
        self.names, self.answer = names, answer

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "xdist_group: of a plugin that is not loaded here")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.failed and not self.answer.stat().st_size:
            self.answer.write_text(self.names.get(report.nodeid.partition("[")[0], "collection"))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--files", nargs="*", default=[], help="beginnings of paths below src (default: all)")
    parser.add_argument("--tests", nargs="*", default=[], help="files of tests (default: all)")
    parser.add_argument("--sample", type=int, metavar="N", help="N of the mutants, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    return parser.parse_args()


def all_mutants(source: Path, beginnings: Sequence[str]) -> list[Mutant]:
    files = sorted(file.relative_to(source).as_posix() for file in source.rglob("*.py"))
    files = [file for file in files if not beginnings or file.startswith(tuple(beginnings))]
    if not files:
        raise SystemExit(f"run.py: --files must be beginnings of paths below src, got {beginnings}.")
    return [mutant for file in files for mutant in mutants_of(file, (source / file).read_text())]


def main() -> int:
    options = parse_arguments()
    mutants = all_mutants(ROOT / "src", options.files)
    if options.sample is not None:
        mutants = draw(mutants, options.sample, options.seed)
    if options.list:
        print(*mutants, sep="\n")
        return 0
    explained = [mutant for mutant in mutants if mutant.key in EXPLAINED]
    with _temporary_folder() as folder, ThreadPoolExecutor(options.jobs) as pool:
        suite = Suite(folder)
        suite.record(options.jobs, options.tests)
        judged = [mutant for mutant in mutants if mutant not in explained]
        survivors = []
        for mutant, killer in zip(judged, pool.map(suite.killer, judged), strict=True):
            print("." if killer else f"\nsurvived: {mutant}\n", end="", flush=True)
            if not killer:
                survivors.append(mutant)
    print(f"\n{len(explained)} change no value:", *(f"{m}\n      {EXPLAINED[m.key]}" for m in explained), sep="\n  ")
    print(f"{len(survivors)} survive:", *survivors, sep="\n  ")
    rate = 1 - len(survivors) / max(1, len(judged))
    print(
        f"{len(judged) - len(survivors)} of {len(judged)} mutants killed: {rate:.1%}; at least {THRESHOLD:.0%} must be"
    )
    return 0 if rate >= THRESHOLD else 1


if __name__ == "__main__":
    sys.exit(main())
