"""Records a suite of pytest in its own process: for each test its own events, and how it ended."""

from __future__ import annotations

import os
import pickle
import zlib
from typing import TYPE_CHECKING

import torch

from .recorder import Recorder, Session, Settings, SilentSession, set_seed
from .recording import Schedule
from .suite_plugin import watch

if TYPE_CHECKING:
    from pseudograd.listen.program.process import Process

_WORKER = "PSEUDOGRAD_UPGRADE_WORKER"


class SuiteRecorder(Recorder):
    """Begins anew with each test."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.is_on = False  # outside of tests

    def begin_test(self) -> None:
        noted, schedule = self.noted, self.schedule
        Recorder.__init__(self, schedule)
        self.noted = noted

    def end_test(self) -> bytes:
        """Its content, packed: two of them are equal only if all of it is."""
        content = self.content()
        self.is_on = False
        return zlib.compress(pickle.dumps({name: content[name] for name in ("origins", "steps", "losses")}))


class SuiteSession(Session):
    """Seeds each test by itself, so that it does not depend on the tests before it."""

    def __init__(self, settings: Settings, process: Process) -> None:
        super().__init__(settings, process)
        self.seed = settings["seed"]
        self.tests: dict[str, bytes] = {}
        watch.on_begin, watch.on_end = self._begin_test, self._end_test
        if watch.running:
            self._begin_test(watch.running)

    def make_recorder(self, schedule: Schedule, settings: Settings) -> SuiteRecorder:
        self.suite_recorder = SuiteRecorder(schedule)
        return self.suite_recorder

    def _begin_test(self, name: str) -> None:
        set_seed(self.seed)
        self.suite_recorder.begin_test()

    def _end_test(self, name: str) -> None:
        self.tests[name] = self.suite_recorder.end_test()

    def content(self) -> dict[str, object]:
        endings = {name: tuple(ending) for name, ending in watch.endings.items()}
        errors = self.suite_recorder.noted.lines
        return {
            "torch": torch.__version__,
            "errors": errors,
            "endings": endings,
            "tests": self.tests,
            "running": watch.running,
        }

    def forked(self) -> None:
        super().forked()
        watch.on_begin = watch.on_end = None


def begin(job: Settings, process: Process) -> SuiteSession | SilentSession:
    """In the process of the command, and in a worker of pytest-xdist. A process that a test starts inherits the name of the worker."""
    is_worker = "PYTEST_XDIST_WORKER" in os.environ and _WORKER not in os.environ
    if not (process.is_main or is_worker):
        return SilentSession()
    os.environ[_WORKER] = str(os.getpid())
    return SuiteSession(job["settings"], process)
