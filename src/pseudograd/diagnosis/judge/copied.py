"""Autograd Functions of the program that compute the same as an op of this library."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from torch.autograd import Function

from ...listen.frames import file_and_line, format_location
from ...listen.harmless import quietly
from ...look.what_is import what_is
from ..count.tally import Tally
from ..records import Copied


def copies(tallies: Iterable[Tally]) -> list[Copied]:
    """A record for each such Function, in the order in which a backward meets them."""
    uses: dict[type[Function], list[str]] = {}
    for tally in sorted(tallies, key=lambda tally: tally.order):
        cls = tally.function
        if cls is not None and cls.__module__.partition(".")[0] not in ("torch", __name__.partition(".")[0]):
            uses.setdefault(cls, []).append(file_and_line(tally.location.call))
    records = []
    for cls, locations in uses.items():
        with quietly():
            op = what_is(cls)
        if op is not None:
            code = inspect.unwrap(cls.forward).__code__
            is_installed = "site-packages" in code.co_filename or "dist-packages" in code.co_filename
            where, instead = format_location(code, code.co_firstlineno), "" if is_installed else op.instead
            records.append(Copied(cls.__qualname__, where, op.meaning, instead, tuple(dict.fromkeys(locations))))
    return records
