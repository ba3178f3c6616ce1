"""Which functions of the package each test enters, and how long it takes: a plugin of pytest that notes it, and the reader of its notes.

    python -m pytest -p reach        with REACH=FOLDER in the environment, and this file's folder on PYTHONPATH

Of each test one set of parameters runs; the others are taken to enter the same, and to take as long. Fast enough to be done again.
A function that a fixture enters is entered by every test with that fixture; one that is entered while a file of tests is collected,
by every test of the file. A process that a test forks notes what it enters itself; so does one that it starts, where its path holds the
`sitecustomize.py` that `follow` writes. What Dynamo only reads, instead of running it, is not seen.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path, PurePath
from types import FrameType
from typing import Any, NamedTuple

import pytest

Function = tuple[str, str]  # a file of the package, and the function's own name
OURS = f"{os.sep}src{os.sep}pseudograd"  # and what stands beside the package
RECORDED = "files.json"  # in the folder of a recording: the files of tests that it ran, and what names their contents
_entered: set[Function] = set()


_noting = 0  # counts what `_noted` begins and ends: a thread that outlives it is let alone


def _noter() -> Callable[[FrameType, str, Any], None]:
    mine = _noting

    def note(frame: FrameType, event: str, _: Any) -> None:
        if mine != _noting:
            sys.setprofile(None)
        elif event == "call":
            code = frame.f_code
            if OURS in code.co_filename:
                _entered.add((code.co_filename, code.co_name))

    return note


def name_of(path: str) -> str:
    """Of a file below a folder `src`, as files.py calls it."""
    return path.rpartition(f"{os.sep}src{os.sep}")[2].replace(os.sep, "/").removeprefix("pseudograd/")


@contextmanager
def _noted(found: set[Function]) -> Iterator[None]:
    """Adds to `found` what is entered within, in each thread that begins there; what stands around it goes on as before."""
    global _noting
    around, is_outermost = set(_entered), sys.getprofile() is None
    _entered.clear()
    if is_outermost:
        _noting += 1
        note = _noter()
        threading.setprofile(note)
        sys.setprofile(note)
    try:
        yield
    finally:
        if is_outermost:
            sys.setprofile(None)
            threading.setprofile(None)
            _noting += 1
        found |= {(name_of(file), name) for file, name in _entered}
        _entered.clear()
        _entered.update(around)


class Reach:
    """The plugin. One JSON line per test: its name, seconds, outcome, and the numbers of the functions, which have a line each."""

    def __init__(self, folder: Path) -> None:
        self.processes = folder / f"processes.{os.getpid()}"
        self.file = (folder / f"reach.{os.getpid()}.jsonl").open("a", buffering=1)
        self.numbers: dict[Function, int] = {}
        self.of_fixture: dict[int, set[Function]] = defaultdict(set)
        self.of_file: dict[str, set[Function]] = defaultdict(set)
        self.seconds, self.outcome = 0.0, "passed"

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        names = defaultdict(list)
        for item in items:
            names[_without_parameters(_name(item))].append(item)
        items[:] = [several[len(several) // 2] for several in names.values()]
        sets = {function: [_name(item) for item in several] for function, several in names.items()}
        print(json.dumps({"sets of parameters": sets}), file=self.file)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        with _noted(self.of_file[str(collector.path)]):
            yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        with _noted(self.of_fixture[id(fixturedef)]):
            yield

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.seconds, self.outcome = 0.0, "passed"
        os.environ["REACH_PROCESSES"] = str(self.processes)
        found: set[Function] = set()
        with _noted(found):
            yield
        found |= self._of_fixtures(item) | self.of_file[str(item.path)] | self._of_processes()
        self._write(item, found)

    def _of_fixtures(self, item: Any) -> set[Function]:
        definitions = [one for several in item._fixtureinfo.name2fixturedefs.values() for one in several]
        return set().union(*(self.of_fixture[id(definition)] for definition in definitions))

    def _of_processes(self) -> set[Function]:
        if not self.processes.exists():
            return set()
        lines = self.processes.read_text().splitlines()
        self.processes.unlink()
        return {(name_of(file), name) for file, _, name in (line.partition("\t") for line in lines)}

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds += report.duration
        if report.outcome != "passed":
            self.outcome = report.outcome

    def _write(self, item: pytest.Item, found: set[Function]) -> None:
        for function in found - self.numbers.keys():
            self.numbers[function] = len(self.numbers)
            print(json.dumps({"function": function}), file=self.file)
        enters = sorted(self.numbers[function] for function in found)
        seconds = round(self.seconds, 3)
        print(
            json.dumps({"test": _name(item), "seconds": seconds, "outcome": self.outcome, "enters": enters}),
            file=self.file,
        )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        os.register_at_fork(after_in_child=lambda: importlib.import_module("reach_of_process"))
        config.pluginmanager.register(Reach(Path(os.environ["REACH"])), "reach of the tests")


def follow(source: Path) -> None:
    """Python processes with `source` on their path note what they enter."""
    here = Path(__file__).resolve().parent
    text = f"import os, sys\nif 'REACH_PROCESSES' in os.environ:\n    sys.path.append({str(here)!r})\n"
    (source / "sitecustomize.py").write_text(text + "    import reach_of_process\n    sys.path.pop()\n")


def _name(item: pytest.Item) -> str:
    """A parallel run appends the group."""
    group = item.get_closest_marker("xdist_group")
    return item.nodeid.removesuffix(f"@{group.args[0]}") if group else item.nodeid


def _without_parameters(test: str) -> str:
    return test.split("[")[0]


class Noted(NamedTuple):
    """What is known of one test."""

    name: str
    seconds: float
    enters: frozenset[Function]

    @property
    def file(self) -> str:
        return self.name.split("::")[0]

    @property
    def function(self) -> str:
        """Its name without parameters."""
        return _without_parameters(self.name)

    @property
    def parameters(self) -> str:
        return self.name.partition("[")[2]


def read(notes: Path, now: Mapping[str, str]) -> list[Noted]:
    """What was recorded last of each file of tests that is now as it was then: `now` names contents by files."""
    tests = {}
    for record in _records(notes):
        recorded = _recorded(record)
        found = [test for test in _read(record) if now.get(test.file, "") == recorded.get(test.file)]
        for file in {test.file for test in found}:
            tests[file] = [test for test in found if test.file == file]
    return [test for several in tests.values() for test in several]


def not_recorded(notes: Path, now: Mapping[str, str]) -> list[str]:
    """The files of tests that are new, or changed since their last recording."""
    known = {pair for record in _records(notes) for pair in _recorded(record).items()}
    return [file for file, content in now.items() if (file, content) not in known]


def _records(notes: Path) -> list[Path]:
    return sorted(file.parent for file in notes.glob(f"*/{RECORDED}"))


def _recorded(record: Path) -> dict[str, str]:
    return json.loads((record / RECORDED).read_text())


def _read(record: Path) -> list[Noted]:
    """The tests that passed, and those that differ from them in parameters alone."""
    tests = []
    for file in sorted(record.glob("reach.*.jsonl")):
        functions: list[Function] = []
        names: dict[str, list[str]] = {}
        for line in map(json.loads, file.read_text().splitlines()):
            if "function" in line:
                functions.append(tuple(line["function"]))
            elif "sets of parameters" in line:
                names = line["sets of parameters"]
            elif line["outcome"] == "passed":
                enters = frozenset(functions[number] for number in line["enters"])
                ran = Noted(line["test"], line["seconds"], enters)
                others = [name for name in names.get(ran.function, ()) if name != ran.name]
                tests += [ran, *(ran._replace(name=name) for name in others)]
    return tests


def in_order(tests: list[Noted], function: Function, importing: Set[str] = frozenset()) -> list[Noted]:
    """Those that may notice a change of it, the likely and fast ones first. importing: the files of tests that import its file by name.

    First those that enter it, are named after it, its file or a public function there, or are in a file that imports it: of a test of
    every rule one set of parameters was recorded, and what runs when the package is imported is entered by no test. Then the others of
    their files, which may look at what these left in a cache. Where no test is seen to enter it, or it is the module itself, those count
    that enter any function of its file.
    """
    named = {test for test in tests if _is_named_after(test, function)}
    beside_it = {name for test in tests for file, name in test.enters if file == function[0] and name[0] not in "_<"}
    related = [test for test in tests if test.file in importing or _has_parameter(test, beside_it)]
    direct = [test for test in tests if function in test.enters]
    if not direct:
        direct = [test for test in tests if any(file == function[0] for file, _ in test.enters)]
    direct = list(dict.fromkeys([*direct, *named, *related]))
    files = {test.file for test in direct}
    entering = {test.name for test in direct}
    beside = [test for test in tests if test.file in files and test.name not in entering]
    closeness = {test: 0.1 if test in named else 0.3 if _is_in_the_folder_of(test, function) else 1.0 for test in tests}
    return [*_different_first(direct, closeness), *_different_first(beside, closeness)]


def _is_named_after(test: Noted, function: Function) -> bool:
    """`test_jumprelu.py` and `test_values[jumprelu-zero]` are about what is called so."""
    words = {
        word for word in (function[1].strip("_"), PurePath(function[0]).stem) if len(word) > 3 and word != "module"
    }
    return _has_parameter(test, words) or any(test.file.endswith(f"/test_{word}.py") for word in words)


def _has_parameter(test: Noted, words: Set[str]) -> bool:
    return any(word in test.parameters for word in words if len(word) > 3)


def imports(text: str, file: str) -> bool:
    """Does a file of tests with this text import this file of the package by its name?"""
    *folders, name = PurePath(file).with_suffix("").parts
    parent = ".".join(folders if file.startswith("pseudograd_") else ["pseudograd", *folders])
    found = rf"(?:from|import) {re.escape(parent)}\.{name}\b|from {re.escape(parent)} import [^\n]*\b{name}\b"
    return re.search(found, text) is not None


def _is_in_the_folder_of(test: Noted, function: Function) -> bool:
    folder, _, rest = function[0].partition("/")
    return bool(rest) and test.file.startswith(f"tests/{folder.removeprefix('pseudograd_')}/")


def _different_first(tests: list[Noted], closeness: Mapping[Noted, float]) -> list[Noted]:
    """A test that enters little is about what it enters. The second set of parameters of a test counts as twice as slow, and so on."""
    costs = {test: (0.1 + test.seconds) * len(test.enters) * closeness[test] for test in tests}
    seen: dict[str, int] = defaultdict(int)
    ranked = []
    for test in sorted(tests, key=lambda test: costs[test]):
        seen[test.function] += 1
        ranked.append((costs[test] * seen[test.function], len(ranked), test))
    return [test for _, _, test in sorted(ranked)]


def in_parts(tests: list[Noted], most_seconds: float, before: list[Noted]) -> Iterator[list[Noted]]:
    """First those that killed it before, then some of the likeliest three files, then all, as far as the seconds go."""
    if before:
        yield before
        tests = [test for test in tests if test not in before]
    files = list(dict.fromkeys(test.file for test in tests))[:3]
    first = _within([test for test in tests if test.file in files][:40], most_seconds / 10)
    if first:
        yield first
    rest = [test for test in tests if test not in first]
    if rest:
        yield _within(rest, most_seconds)


def _within(tests: list[Noted], seconds: float) -> list[Noted]:
    taken, sum_of_seconds = [], 0.0
    for test in tests:
        if taken and sum_of_seconds + test.seconds > seconds:
            continue
        taken.append(test)
        sum_of_seconds += test.seconds
    return taken
