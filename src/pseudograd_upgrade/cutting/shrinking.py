"""A call that differs, made as small as it gets while it still does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from ..recorded import UPDATE
from . import simpler, smaller
from .call import Call
from .trees import SameAloneError, UnwritableError
from .workers import Found, LateError, Outcome, Workers, apart

_ROUNDINGS = 64
_SHARE = 0.01  # of the difference that there was at first
_ROUNDS = 3

Moves = Callable[[Found], Iterator[Call]]
_MOVES: tuple[Moves, ...] = (
    smaller.entries,
    smaller.gradients,
    smaller.required,
    smaller.arguments,
    smaller.halves,
    smaller.ranks,
    simpler.values,
    simpler.numbers,
    simpler.recipes,
)


class Shrinking:
    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self._least = 0.0
        self.error = UnwritableError()  # why the last call did not differ

    def differs(self, call: Call) -> Found | None:
        """In what it is looked at for, beyond rounding, and in nothing before that."""
        old, new = self.workers.outcomes(call)
        if old.error or new.error:
            self.error = UnwritableError(f"the call alone fails: {old.error or new.error}")
            return None
        far = [one for one in apart(old, new) if one.far > max(self._least, _rounding(old, new))]
        before = [one for one in far if one.name.startswith("y")]
        wanted = [one for one in far if one.name.startswith("grad of ")] if call.is_of_gradients else before
        if not wanted or (call.is_of_gradients and before):
            self.error = _same(call)
            return None
        return Found(call, (old, new), max(wanted, key=lambda one: one.far))

    def shrunk(self, call: Call) -> Found:
        """UnwritableError where the call alone does not differ."""
        found = next(filter(None, map(self.differs, smaller.layouts(call))), None)
        if found is None:
            raise self.error
        self._least = _SHARE * min(1.0, found.worst.far)
        try:
            for _ in range(_ROUNDS):
                before = found.call
                for moves in _MOVES:
                    found = self._along(found, moves)
                if found.call is before:
                    break
        except LateError:
            pass
        return found

    def _along(self, found: Found, moves: Moves) -> Found:
        """As far as moves of one kind lead."""
        while True:
            other = next(filter(None, map(self.differs, moves(found))), None)
            if other is None:
                return found
            found = other


def _same(call: Call) -> UnwritableError:
    if call.kind == UPDATE:
        return UnwritableError(
            "without what it keeps from earlier steps, the optimiser alone gives the same under both"
        )
    return SameAloneError("with the same arguments, the call alone gives the same under both")


def _rounding(*outcomes: Outcome) -> float:
    kinds = {one.dtype for outcome in outcomes for one in outcome.tensors.values()}
    return max(
        (_ROUNDINGS * torch.finfo(kind).eps for kind in kinds if kind.is_floating_point or kind.is_complex), default=0.0
    )
