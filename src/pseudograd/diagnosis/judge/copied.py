"""Functions of the program that are copies of ops which stand here under a name, with tests."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from ...listen.frames import named, shown
from ...listen.quietly import quietly
from ...look.copies import known
from ..records import Copied


def copied(tallies: Iterable[Any]) -> list[Copied]:
    """In the order in which a backward met them. The classes are asked in a way that harms no program: see `analysis.copies`."""
    uses: dict[object, list[str]] = {}
    for tally in sorted(tallies, key=lambda one: one.order):
        cls = tally.function
        if cls is not None and cls.__module__.partition(".")[0] not in ("torch", __name__.partition(".")[0]):
            uses.setdefault(cls, []).append(named(tally.place.call))
    return list(_recognised(uses))


def inward_codes(tallies: Iterable[Any]) -> set[Any]:
    """Of the forwards of copies that let pass what leads back inside: a clamp in there has that rule already."""
    classes = {tally.function for tally in tallies if tally.function is not None}
    with quietly():
        return {
            inspect.unwrap(cls.forward).__code__
            for cls in classes
            if (found := known(cls)) is not None and '"inward"' in found.meaning
        }


def _recognised(uses: dict[Any, list[str]]) -> Iterator[Copied]:
    for cls, places in uses.items():
        with quietly():
            found = known(cls)
        if found is None:
            continue
        code = inspect.unwrap(cls.forward).__code__
        is_installed = "site-packages" in code.co_filename or "dist-packages" in code.co_filename
        where = shown(code, code.co_firstlineno)
        yield Copied(
            cls.__qualname__, where, found.meaning, "" if is_installed else found.instead, tuple(dict.fromkeys(places))
        )
