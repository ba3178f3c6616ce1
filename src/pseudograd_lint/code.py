"""What a code is: a row of the one table that `pseudograd lint` and `pseudograd diagnose` speak from."""

from __future__ import annotations

from typing import NamedTuple


class Code(NamedTuple):
    """PG1xx is said of source by `lint`, PG2xx of a run by `diagnose`. A number is never given to another code.

    number, name: two ways to ask for it. meaning: what is so where it is told, one sentence without its full stop. why: why that is bad.
    mend: what to do instead. bad: a program where it is told; good: one where it is silent, in most cases the first one mended. Tests run
    both. is_default: told without being asked for. from_source: by `lint`.
    """

    number: str
    name: str
    meaning: str
    why: str
    mend: str
    bad: str
    good: str
    is_default: bool = True
    from_source: bool = True

    @property
    def said_by(self) -> str:
        return "lint" if self.from_source else "diagnose"
