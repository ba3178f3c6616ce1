"""A copy of the package and its tests, and tests run there in forked children of this process."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")
import hypothesis  # noqa: F401
import matplotlib.pyplot  # noqa: F401  (imported before the fork, so that no child pays for it)
import pytest
import reach
import torch
import torch._dynamo
from files import place_of
from mutants import Mutant, changed_source

for plugin in importlib.metadata.entry_points(group="pytest11"):
    if not plugin.value.startswith("pseudograd"):
        with contextlib.suppress(ImportError):
            plugin.load()
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ARGUMENTS = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=no", "--assert=plain"]
TIME_LIMIT = "time limit"
AT_A_TIME = 20  # files of tests in one recording: what is lost where it is broken off


class Workplace:
    """The project as it was at the start, so that editing goes on while this runs."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "project"
        self.source = self.root / "src"
        leave = shutil.ignore_patterns("__pycache__", ".git", ".venv", ".*_cache", ".hypothesis", "build", "*.egg-info")
        shutil.copytree(ROOT, self.root, ignore=leave)
        subprocess.run([sys.executable, "-m", "compileall", "-q", self.root], check=False, capture_output=True)

    def state_of_source(self) -> str:
        return _state(self.source, [file for file in self.source.rglob("*") if file.suffix in (".py", ".c", ".h")])

    def state_of_tests(self) -> str:
        files = [file for file in (self.root / "tests").rglob("*.py") if "mutation" not in file.parts]
        return _state(self.root, files)

    def files_of_tests(self) -> dict[str, str]:
        """And what names their contents."""
        files = sorted((self.root / "tests").rglob("test_*.py"))
        return {file.relative_to(self.root).as_posix(): _state(self.root, [file]) for file in files}

    def record(self, notes: Path, jobs: int) -> None:
        """Runs what is new in the suite once, a few files at a time, and notes which test enters which functions."""
        now = self.files_of_tests()
        notes.mkdir(exist_ok=True)
        new = reach.not_recorded(notes, now)
        for start in range(0, len(new), AT_A_TIME):
            files = new[start : start + AT_A_TIME]
            unfinished = notes.with_name(f"{notes.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            self._run(files, unfinished, jobs)
            (unfinished / reach.RECORDED).write_text(json.dumps({file: now[file] for file in files}))
            unfinished.rename(notes / f"{len(list(notes.glob('*'))):04d}")

    def _run(self, files: list[str], folder: Path, jobs: int) -> None:
        reach.follow(self.source)
        path = os.pathsep.join(map(str, (self.source, HERE)))
        parallel = ["-n", str(jobs), "--dist", "loadgroup"] if jobs > 1 else []
        command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "reach", "-p", "no:cacheprovider", *parallel]
        environment = {**os.environ, "PYTHONPATH": path, "REACH": str(folder)}
        done = subprocess.run([*command, *files], check=False, cwd=self.root, env=environment)
        (self.source / "sitecustomize.py").unlink()
        if done.returncode not in (0, 1, 5):  # all passed, some failed, there were none
            raise SystemExit(
                f"run.py: pytest must come to its end, got status {done.returncode} from {' '.join(files)}"
            )

    def with_change(self, mutant: Mutant, directory: Path) -> Path:
        """A folder with the changed package in it, and what stands beside it."""
        source = directory / "src"  # so named, because a recording knows the package by it
        shutil.copytree(self.source, source)
        changed = changed_source(mutant, place_of(mutant.file, self.source).read_text())
        place_of(mutant.file, source).write_text(changed)
        return source

    def first_failure(self, source: Path, tests: Sequence[reach.Noted], limit: float) -> str | None:
        """The test that fails first on the package under `source`, TIME_LIMIT if that takes too long, None if all pass."""
        with tempfile.NamedTemporaryFile("r") as answer:
            pid = os.fork()
            if pid == 0:
                os.setsid()  # what the tests start ends with them
                os._exit(_test_here(self.root, source, tests, Path(answer.name)))
            code = _exit_code(pid, limit)
            if code is None:
                return TIME_LIMIT
            return (answer.read() or f"pytest ended with {code}") if code else None


def _state(root: Path, files: list[Path]) -> str:
    """Names these files and their contents."""
    content = hashlib.sha256(torch.__version__.encode())
    for file in sorted(files):
        content.update(f"{file.relative_to(root)} {file.stat().st_size} ".encode() + file.read_bytes())
    return content.hexdigest()[:16]


def _exit_code(pid: int, limit: float) -> int | None:
    """Of the process, whose group is stopped when it has ended; None if it had not by the time."""
    end = time.monotonic() + limit
    done, status = 0, 0
    while not done and time.monotonic() < end:
        time.sleep(0.02)
        done, status = os.waitpid(pid, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if done:
        return os.waitstatus_to_exitcode(status)
    os.waitpid(pid, 0)
    return None


def _test_here(root: Path, source: Path, tests: Sequence[reach.Noted], answer: Path) -> int:
    """In the child: `source` comes first on the path, here and in the processes that tests start."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(devnull, stream)
    os.chdir(root)
    sys.path[:] = [str(source), *(p for p in sys.path if p not in (str(ROOT / "src"), str(HERE)))]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
    sys.argv = ["pytest"]
    sys.modules["__main__"] = types.ModuleType("__main__")  # a process that a test spawns would import ours
    os.environ["PYTHONPATH"] = str(source)
    torch.set_num_threads(1)
    files = list(dict.fromkeys(test.file for test in tests))
    try:
        code = int(pytest.main([*ARGUMENTS, f"--rootdir={root}", *files], plugins=[_Only(tests, answer)]))
    except BaseException as error:  # the package may do anything now
        answer.write_text(f"pytest ended with {type(error).__name__}")
        return 1
    if code == 0 and not str(sys.modules["pseudograd"].__file__).startswith(str(source)):
        answer.write_text("another pseudograd was tested")
        return 1
    return code


class _Only:
    """A plugin: runs these tests, file by file, and says which failed first."""

    def __init__(self, tests: Sequence[reach.Noted], answer: Path) -> None:
        self.places = {test.name: place for place, test in enumerate(tests)}
        self.answer = answer

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "xdist_group: of a plugin that is not loaded here")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        wanted = [item for item in items if item.nodeid in self.places]
        first: dict[Path, int] = {}
        for item in sorted(wanted, key=lambda item: self.places[item.nodeid]):
            first.setdefault(item.path, self.places[item.nodeid])
        items[:] = sorted(wanted, key=lambda item: first[item.path])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._say(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._say(report)

    def _say(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.failed and not self.answer.stat().st_size:
            self.answer.write_text(report.nodeid or "collection")
