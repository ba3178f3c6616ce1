"""Records a suite of pytest in its process: the events of each test by itself, and how the test ended."""

from __future__ import annotations

import os
import pickle
import zlib
from typing import TYPE_CHECKING

import torch

from pseudograd.listen.frames import Locations
from pseudograd.wording import counted

from .recorder import Recorder, Session, Settings, SilentSession, set_seed
from .recording import MOST_DIGESTS, Schedule
from .suite_plugin import RUNS_TESTS, watch

if TYPE_CHECKING:
    from pseudograd.listen.program.process import Process


_MOST_LOCATIONS = 5_000  # with more, all are forgotten at the next test
# The attributes that `Recorder.start` sets: those of one part.
_STATE = ("step", "is_on", "steps", "losses", "_events", "_digest_count", "_depth", "full_step")


class SuiteRecorder(Recorder):
    """Records parts: tests, and inside a test its shared fixtures. A node that one part made may run in another."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.is_on = False  # outside of tests
        self._outer: list[dict[str, object]] = []  # the state of each part around the present one
        self.full_steps: dict[str, int] = {}  # by test, the first step with events that have no digest

    def begin_part(self) -> None:
        if len(self._origins) > _MOST_LOCATIONS:
            self._locations, self._origins = Locations(), {}
        self._outer.append({name: getattr(self, name) for name in _STATE})
        self.start()
        self._ranges.start_afresh()

    def end_part(self, test: str) -> bytes | None:
        """The packed content of the part. Equal contents give equal bytes. None if the part recorded nothing."""
        try:
            self.content()  # fetches the last events
            part = {"steps": self.steps, "losses": self.losses}
            if self.full_step is not None:
                self.full_steps[test] = self.full_step
        finally:
            vars(self).update(self._outer.pop())
        return zlib.compress(pickle.dumps(part), 1) if any(part.values()) else None


class SuiteSession(Session):
    """Seeds each part anew, so that it does not depend on what ran before."""

    reaches_threads = False  # only while a test runs: see `_begin_part`

    def __init__(self, settings: Settings, process: Process) -> None:
        super().__init__(settings, process)
        self.seed = settings["seed"]
        self.parts: dict[str, bytes | None] = {}
        watch.on_begin, watch.on_end = self._begin_part, self._end_part
        for name in watch.open:
            self._begin_part(name)

    def make_recorder(self, schedule: Schedule, settings: Settings) -> SuiteRecorder:
        self.suite_recorder = SuiteRecorder(schedule)
        return self.suite_recorder

    def _begin_part(self, name: str) -> None:
        self.suite_recorder.begin_part()
        if watch.running == name:
            self.threads.__enter__()
        self._set_seed()

    def _end_part(self, name: str) -> None:
        try:
            self.parts[name] = self.suite_recorder.end_part(watch.running)
        except Exception as error:
            self.suite_recorder.noted.note(f"the end of {name}", error)
        if watch.running == name:
            self.threads.__exit__()
        else:
            self._set_seed()  # for the test, whether or not it is the first to share this fixture

    def _set_seed(self) -> None:
        try:
            set_seed(self.seed)
        except Exception as error:  # a test may have broken torch
            self.suite_recorder.noted.note("the seed of a test", error)

    def content(self) -> dict[str, object]:
        endings = {name: (test.outcome, test.message) for name, test in watch.endings.items()}
        full = [f"step {step} of {test}" for test, step in self.suite_recorder.full_steps.items()]
        more = f", and of {counted(len(full) - 1, 'test')} more" if len(full) > 1 else ""
        errors = [f"after {MOST_DIGESTS:,} tensors of {first}{more}" for first in full[:1]]
        errors += self.suite_recorder.noted.lines
        return {
            "torch": torch.__version__,
            "errors": errors,
            "endings": endings,
            "tests": {name: self._parts_of(name) for name in watch.endings},
            "running": watch.running,
        }

    def _parts_of(self, test: str) -> tuple[bytes, ...]:
        """The test's own part is the last one."""
        shared = (self.parts.get(name) for name in watch.shared.get(test, []))
        return *filter(None, shared), self.parts.get(test) or b""

    def forked(self) -> None:
        super().forked()
        watch.on_begin = watch.on_end = None


def begin(job: Settings, process: Process) -> SuiteSession | SilentSession:
    """Record in the process of the command and in workers of pytest-xdist, but in no process that a test starts."""
    own = str(os.getpid())
    is_worker = "PYTEST_XDIST_WORKER" in os.environ and os.environ.get(RUNS_TESTS, own) == own
    return SuiteSession(job["settings"], process) if process.is_main or is_worker else SilentSession()
