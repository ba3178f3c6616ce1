"""Does a run draw random numbers? Only of one that provably draws none, and is given no seed, is it known that the seed changes nothing.

Equal numbers with two seeds show little: a success rate of 95 % gives them in nine of ten cases. So the states of the generators that the
seed sets are compared before and after, and the functions that read a state or the seed (with which one can draw and put it back, as
`fork_rng` does) are watched in between. A process that is forked, or a device whose states are not looked at, counts as chance. Not seen is
a reader that the program took from its module by name beforehand (`from torch import initial_seed`).
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..listen.patches import READERS_OF_RANDOM_STATES


class Chance:
    """`none` once `watched` has ended: nothing in between touched a random state, as far as anybody could."""

    def __init__(self) -> None:
        self.none = False
        self._was_read = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        before = _states()
        for patch in READERS_OF_RANDOM_STATES:
            patch.apply(_noting)
        _open.append(self)
        try:
            yield
        finally:
            _open.remove(self)
            if not _open:
                for patch in READERS_OF_RANDOM_STATES:
                    patch.remove()
        self.none = not self._was_read and before is not None and _equal(before, _states())

    def note(self) -> None:
        self._was_read = True


def _noting(read: Callable[..., object]) -> Callable[..., object]:
    def reader(*args: object, **kwargs: object) -> object:
        for chance in _open:
            chance.note()
        return read(*args, **kwargs)

    return reader


_open: list[Chance] = []


def _forked() -> None:
    """What a child draws, nobody here sees."""
    for chance in _open:
        chance.note()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_forked)


def _states() -> tuple[object, ...] | None:
    """Of all generators that a seed sets; None where there may be others, on a device whose states are not looked at."""
    if _has_another_device():
        return None
    numpy = sys.modules.get("numpy")
    of_cuda = tuple(torch.cuda.get_rng_state_all()) if _cuda_runs() else ()
    of_numpy = None if numpy is None else numpy.random.get_state()
    return torch.get_rng_state(), random.getstate(), of_numpy, of_cuda


def _cuda_runs() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def _has_another_device() -> bool:
    return any(
        getattr(module, "is_available", lambda: False)()
        for module in (getattr(torch.backends, "mps", None), getattr(torch, "xpu", None), getattr(torch, "mtia", None))
    )


def _equal(ours: Any, others: object) -> bool:
    if isinstance(ours, tuple):
        return isinstance(others, tuple) and len(ours) == len(others) and all(map(_equal, ours, others))
    if isinstance(ours, torch.Tensor):
        return isinstance(others, torch.Tensor) and torch.equal(ours, others)
    return bool((ours == others).all()) if hasattr(ours, "tobytes") else bool(ours == others)
