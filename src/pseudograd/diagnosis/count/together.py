"""Calls of nodes that are counted together: one call of the kernel in C counts as many as 60 of them, which each take less than that call.

Few gradients are kept for it, as nothing may change them until a call of torch is heard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ...kernels.native import counts as kernel
from ...listen.harmless import Errors, note, quiet, unheard
from ...torch_table.private import current_node, without_torch_function
from .grads import Leaving
from .leaves import Leaves

if TYPE_CHECKING:
    from .tally import Tally, Waiting

_MOST_WAITING = 60  # calls

Hook = Callable[[Leaving, Leaving], None]


class Recorder(Protocol):
    """The part of the recorder that is read here."""

    is_on: bool
    is_full: bool
    noted: Errors
    leaves: Leaves

    def count_now(self, tally: Tally, leaving: Leaving, arriving: Leaving) -> None: ...


class Together:
    """The calls that wait, in the order in which their nodes ran."""

    def __init__(self, recorder: Recorder) -> None:
        self.calls: list[Waiting] = []
        self.may_wait = False  # may more of them wait? Never outside a backward
        self.noted = recorder.noted
        self._recorder = recorder

    @property
    def is_on(self) -> bool:
        return self._recorder.is_on

    def hook_of(self, tally: Tally) -> Hook:
        """The hook of all nodes of a tally. It counts at once what leaves if that is not finite: the node still has its saved values."""
        recorder, calls = self._recorder, self.calls
        count_now, may_break = recorder.count_now, recorder.is_full and tally.may_break

        def ran(leaving: Leaving, arriving: Leaving) -> None:
            try:
                if not (self.may_wait and tally.may_wait) or unheard.depth:
                    count_now(tally, leaving, arriving)
                elif may_break and not _are_finite(leaving):
                    self.count()
                    count_now(tally, leaving, arriving)
                else:
                    calls.append((tally, leaving, arriving, current_node()))
                    if len(calls) >= _MOST_WAITING:
                        self.count()
            except Exception as error:
                note("the gradients at a node", error, self)

        return ran

    def count(self) -> None:
        """Count the calls that wait."""
        if self.calls:
            calls = self.calls[:]
            self.calls.clear()  # also where nothing is counted any more
            self._count(calls)

    @quiet("the gradients at a node")
    def _count(self, calls: list[Waiting]) -> None:
        from .tally import count_together

        count_together(calls, self._recorder.is_full, self._recorder.leaves)


def _are_finite(leaving: Leaving) -> bool:
    with without_torch_function():
        return kernel.are_finite(leaving)
