"""A plugin of pytest in each run of a suite: it notes which test and shared fixture runs, and how each test ends. It imports no torch."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from .recording import FAILED, NOT_COLLECTED, PASSED, SKIPPED, XFAILED, XPASSED, SuiteTest

TESTS = "PSEUDOGRAD_UPGRADE_TESTS"  # in the environment: a file with the names of the tests to run, as JSON
RUNS_TESTS = "PSEUDOGRAD_UPGRADE_RUNS_TESTS"  # in the environment: the id of the process that runs the test


class Watch:
    """The tests of this process. open: the test that runs now, then the shared fixtures that run inside it. on_begin, on_end: called with
    the name of each test and fixture, once torch is imported. shared: for each test, the fixtures that it shares with others.
    """

    def __init__(self) -> None:
        self.endings: dict[str, SuiteTest] = {}
        self.shared: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.on_begin: Callable[[str], None] | None = None
        self.on_end: Callable[[str], None] | None = None
        # The name that each fixture got when it was last set up, in this order.
        self._fixtures: dict[pytest.FixtureDef[object], str] = {}
        self._count = 0

    @property
    def running(self) -> str:
        return self.open[0] if self.open else ""

    def begin(self, name: str) -> None:
        self.open.append(name)
        if self.on_begin is not None:
            self.on_begin(name)

    def end(self) -> None:
        if self.on_end is not None:
            self.on_end(self.open[-1])
        self.open.pop()

    def name_fixture(self, fixture: pytest.FixtureDef[object]) -> str:
        self._count += 1
        self._fixtures.pop(fixture, None)
        self._fixtures[fixture] = f"fixture {self._count}"
        return self._fixtures[fixture]

    def note_shared(self, fixtures: set[pytest.FixtureDef[object]]) -> None:
        self.shared[self.running] = [name for fixture, name in self._fixtures.items() if fixture in fixtures]


watch = Watch()


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Load our plugin for users, so that pins and markers work in both environments, even if only one has pseudograd."""
    names = "pseudograd", "pseudograd_pytest"
    is_known = any(pluginmanager.has_plugin(name) or pluginmanager.is_blocked(name) for name in names)
    if not (is_known or "PYTEST_DISABLE_PLUGIN_AUTOLOAD" in os.environ):
        pluginmanager.import_plugin(names[1])


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Run the collected files even if others cannot be collected. Fix the order of pytest-randomly, unless the command line does."""
    config.option.continue_on_collection_errors = True
    if getattr(config.option, "randomly_seed", None) == "default":
        config.option.randomly_seed = 0


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """In further runs, ignore files that have no test to run."""
    names = _load_tests()
    if names is None or collection_path.is_dir() or collection_path.name in ("conftest.py", "__init__.py"):
        return None
    return None if collection_path.name in {Path(name.partition("::")[0]).name for name in names} else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    names = _load_tests()
    if names is not None:
        items[:] = [item for item in items if item.nodeid in names]


@functools.cache
def _load_tests() -> set[str] | None:
    file = os.environ.get(TESTS)
    return {*json.loads(Path(file).read_text(encoding="utf-8"))} if file else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if watch.running:  # a suite inside a test
        return (yield)
    os.environ[RUNS_TESTS] = str(os.getpid())
    watch.begin(item.nodeid)
    try:
        return (yield)
    finally:
        watch.end()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    if fixturedef.scope == "function" or not watch.running:
        return (yield)
    watch.begin(watch.name_fixture(fixturedef))
    try:
        return (yield)
    finally:
        watch.end()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    if item.nodeid == watch.running:
        watch.note_shared({*getattr(getattr(item, "_request", None), "_fixture_defs", {}).values()})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the outcome of the test itself; that of its set-up or teardown only if it did not pass. The first failure stays."""
    if report.nodeid != watch.running or (report.when != "call" and report.outcome == PASSED):
        return
    known = watch.endings.get(report.nodeid)
    if known is None or known.outcome != FAILED:
        outcome: str = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = {SKIPPED: XFAILED, PASSED: XPASSED}.get(outcome, outcome)
        watch.endings[report.nodeid] = SuiteTest(outcome, _describe(report))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome == FAILED:
        watch.endings[report.nodeid] = SuiteTest(NOT_COLLECTED, _describe(report))


def _describe(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The error of a failed test in one line, with the location that pytest prints last. Empty if it did not fail."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if report.outcome != FAILED:
        return ""
    if crash is None:
        lines = ["", *str(report.longrepr).strip().splitlines()]
        return next((line.removeprefix("E ").strip() for line in reversed(lines) if line.startswith("E ")), lines[-1])
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", [])
    end = next((entry.reprfileloc for entry in reversed(entries) if getattr(entry, "reprfileloc", None)), crash)
    return f"{os.path.relpath(end.path)}:{end.lineno}: {crash.message.partition(chr(10))[0]}"
