"""Why a gradient at a kink is not what it was: a sentence for each change between two measured versions of torch."""

from __future__ import annotations

from fnmatch import fnmatchcase

from ..record import Record


class Change(Record):
    """since: the first measured version that has it. ids: the points, as patterns with *. sentence: what changed, and by what."""

    since: str
    ids: tuple[str, ...]
    sentence: str

    def is_of(self, id: str) -> bool:
        return any(fnmatchcase(id, pattern.replace("[", "[[]")) for pattern in self.ids)


CHANGES: tuple[Change, ...] = ()
