"""For test suites: `diagnosed(model)`, a context that fails if training steps have a finding, and the context of pinned tests."""

from __future__ import annotations

import argparse
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from pseudograd_notices.options import choose, known_notices
from pseudograd_notices.settings import Settings

from .. import engine
from ..listen import frames, hooks
from ..rewrite.edges import pinned_edge
from ..rewrite.pin_edge import pin_edge
from ..torch_table.forms import SPELLINGS
from ..torch_table.records import EDGE, Arguments, Function, Keywords

if TYPE_CHECKING:
    from ..diagnosis.context import Diagnosis


def diagnosed(
    model: nn.Module | None = None,
    *,
    fail_on: str | Sequence[str] = "any",
    ignore: Sequence[str] = (),
    detail: Literal["full", "counts"] = "full",
) -> contextlib.AbstractContextManager[Diagnosis]:
    """Diagnose the training steps inside the block, and raise AssertionError if there is a finding.

    Args:
        model, ignore, detail: as `pseudograd.diagnose` takes them.
        fail_on: "any", a code such as "starved", or a code with a share such as "cut>0.5"; or a list of these.
    Returns: a context that gives the `Diagnosis`. It works in every test runner; in pytest the fixture `diagnosed` is this function.
    Raises: AssertionError with the report if one of `fail_on` holds, or if no backward pass ran in the block;
        ValueError for an unknown code. An error of the steps is raised as it is.
    Example:
        >>> net = torch.nn.Linear(2, 1)
        >>> with diagnosed(net, fail_on="starved"):
        ...     net(torch.ones(1, 2)).sum().backward()
    Source: new in pseudograd.
    """
    return _diagnosed(Settings(), model, fail_on=fail_on, ignore=ignore, detail=detail)


def diagnosed_by(settings: Settings) -> Callable[..., contextlib.AbstractContextManager[Diagnosis]]:
    """`diagnosed` in a project with these settings. If `ignore` is given, it replaces `ignore` of the settings."""
    return partial(_diagnosed, settings)


@contextlib.contextmanager
def _diagnosed(
    settings: Settings,
    model: nn.Module | None = None,
    *,
    fail_on: str | Sequence[str] = "any",
    ignore: Sequence[str] = (),
    detail: Literal["full", "counts"] = "full",
) -> Iterator[Diagnosis]:
    # Imported here, so that a suite that is only pinned does not load the diagnosis.
    from ..diagnosis import diagnose
    from ..diagnosis.judge import findings
    from ..diagnosis.processes import ProgramReport, fields_of
    from ..diagnosis.run import parse_conditions
    from ..diagnosis.tell.notices import Output

    failures = parse_conditions(fail_on)
    options = argparse.Namespace(select=[], ignore=[], baseline=None, write_baseline=None)
    chosen = choose("diagnosed", findings.CODES, options, "all", settings._replace(ignore=()) if ignore else settings)
    output = Output("?", known=known_notices("diagnosed", options, settings), chosen=chosen)
    left_out = chosen.ignore
    with diagnose(model, ignore=[*ignore, *left_out] if left_out else ignore, detail=detail) as d:
        yield d
    if not d.backwards:
        raise AssertionError(
            "diagnosed: no backward pass ran in this block, so there was nothing to check. Put the training step inside it."
        )
    if failure := failures(d if output.known is None else output.drop_known(ProgramReport(fields_of(d)))):
        raise AssertionError(f"diagnosed: {failure}\n{d}")


class PinnedTests:
    """The context in which the plugin runs every test. It pins the edge, and counts calls in threads, which the pin does not reach."""

    def __init__(self, edge: str) -> None:
        self.pin = pin_edge(edge)
        # An idle pin changes no call, so it can miss none.
        is_idle = not self.pin.replacements or self.pin.report().is_torchs_own
        counting = hooks.NewThreads(lambda: _Counting(self._missed, lambda: self._depth > 0))
        self._threads = contextlib.nullcontext() if is_idle else counting
        self._depth = 0
        self._missed: Counter[str] = Counter()

    def __enter__(self) -> None:
        self.pin.__enter__()
        self._threads.__enter__()
        self._depth += 1

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        self._threads.__exit__(None, None, None)
        self.pin.__exit__(*exception)

    def count_calls(self) -> Counter[tuple[str, str, str]]:
        """The number of calls by (state, line, reason).

        state: "pinned", "compiled" or "missed".
        reason: why the pin missed the call; "" for the other states.
        """
        report = self.pin.report()
        counts: Counter[tuple[str, str, str]] = Counter()
        for calls in report.rewritten:
            counts["compiled" if calls.compiled else "pinned", calls.where, ""] += calls.calls
        for missed in report.missed:
            counts["missed", missed.where, missed.why] += missed.calls
        for where, number in list(self._missed.items()):
            counts["missed", where, "in a thread that a test started"] += number
        return counts


class _Counting(TorchFunctionMode):
    """Counts, by line, the calls that the pin of an edge would reach. It changes no call."""

    def __init__(self, counts: Counter[str], is_on: Callable[[], bool]) -> None:
        super().__init__()
        self.counts, self.is_on = counts, is_on

    def __torch_function__(
        self, func: Function, types: object, args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        kwargs = kwargs or {}
        if not torch.compiler.is_compiling() and self.is_on() and (spelling := SPELLINGS.get(func)) is not None:
            call = spelling.read(args, kwargs) if EDGE in spelling.form.switches and not spelling.form.hides else None
            if call is not None and engine.is_recording(*call[1]) and pinned_edge(*call[:2]) is not None:
                self.counts[frames.file_and_line(frames.point(frames.calling_frame()))] += 1
        return func(*args, **kwargs)
