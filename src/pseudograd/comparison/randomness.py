"""Does a run draw from the generators that a seed sets? If it provably does not and is given no seed, the seed changes nothing.

Equal numbers with two seeds show little: a success rate of 95 % gives them in nine of ten cases. So the states of the generators that a
seed sets are compared before and after the run. During the run, calls of the functions that read a state or the seed are noted, because a
program can draw and put the state back, as `fork_rng` does. A forked process counts as randomness, and so does a device whose states are
not compared. A function that the program imported by name before the run (`from torch import initial_seed`) is not noted. Nor is a
generator of its own, such as `numpy.random.default_rng()`: no seed reaches it, and the report says what to do.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ..listen.patches import READERS_OF_RANDOM_STATES


class Randomness:
    """was_used: known after the run: did anything change or read a random state? was_read: a function read a state or the seed."""

    was_used = True
    was_read = False


_watching: list[Randomness] = []


@contextmanager
def watch_randomness() -> Iterator[Randomness]:
    watch, before = Randomness(), _states()
    for patch in READERS_OF_RANDOM_STATES:
        patch.apply(_note_calls)
    _watching.append(watch)
    try:
        yield watch
    finally:
        _watching.remove(watch)
        if not _watching:
            for patch in READERS_OF_RANDOM_STATES:
                patch.remove()
    watch.was_used = watch.was_read or before is None or before != _states()


def _note_calls(read: Callable[..., object]) -> Callable[..., object]:
    def reader(*args: object, **kwargs: object) -> object:
        _note_reading()
        return read(*args, **kwargs)

    return reader


def _note_reading() -> None:
    for watch in _watching:
        watch.was_read = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_note_reading)  # this process does not see what a child draws


def _states() -> list[object] | None:
    """The states of all generators that a seed sets; None on a device whose states are not compared."""
    devices = (getattr(torch.backends, "mps", None), getattr(torch, "xpu", None), getattr(torch, "mtia", None))
    if any(getattr(device, "is_available", lambda: False)() for device in devices):
        return None
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    states: list[object] = [bytes(state.tolist()) for state in (torch.get_rng_state(), *cuda)]
    if "numpy" in sys.modules:
        states.append(pickle.dumps(sys.modules["numpy"].random.get_state()))
    return [*states, random.getstate()]
