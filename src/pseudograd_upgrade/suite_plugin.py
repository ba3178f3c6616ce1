"""A plugin of pytest in each run of a suite: which tests run, which one runs now, and how each ends. It imports no torch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = "PSEUDOGRAD_UPGRADE_TESTS"  # in the environment: a file with the names of the tests to run, as JSON


class Ending(NamedTuple):
    """passed, failed, skipped or not run; and in one line why."""

    outcome: str
    message: str = ""


class Watch:
    """The tests of this process. on_begin, on_end: called with the name of a test, once torch is there."""

    def __init__(self) -> None:
        self.endings: dict[str, Ending] = {}
        self.running = ""
        self.on_begin: Callable[[str], None] | None = None
        self.on_end: Callable[[str], None] | None = None


watch = Watch()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    file = os.environ.get(TESTS)
    if file:
        names = {*json.loads(Path(file).read_text(encoding="utf-8"))}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in names])
        items[:] = [item for item in items if item.nodeid in names]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if watch.running:  # a suite inside a test
        return (yield)
    watch.running = item.nodeid
    if watch.on_begin is not None:
        watch.on_begin(item.nodeid)
    try:
        return (yield)
    finally:
        if watch.on_end is not None:
            watch.on_end(item.nodeid)
        watch.running = ""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.nodeid == watch.running and (report.when == "call" or report.outcome != "passed"):
        known = watch.endings.get(report.nodeid)
        if known is None or known.outcome != "failed":
            watch.endings[report.nodeid] = Ending(report.outcome, _describe(report))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome == "failed":
        watch.endings[report.nodeid] = Ending("failed", f"not collected: {_describe(report)}")


def _describe(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The error of a test that failed, and its line."""
    if report.outcome != "failed":
        return ""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        lines = str(report.longrepr).strip().splitlines() or [""]
        return next((line[1:].strip() for line in reversed(lines) if line.startswith("E ")), lines[-1])
    return f"{os.path.relpath(crash.path)}:{crash.lineno}: {crash.message.splitlines()[0]}"
