"""What was heard in one run of a program, and the file in which it is kept for another day."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pseudograd.errors import must
from pseudograd.listen.program.files import write

_KIND, _FORMAT = "pseudograd upgrade digests", 1

# Runs of the older torch, as a file and an answer call them.
AS_IT_IS, OTHER_ORDER, SHAKEN = "as it is", "sums in another order", "parameters moved by roundings"
FORWARD, BACKWARD, UPDATE, LEAF = "forward", "backward", "update", "leaf"


class Site(NamedTuple):
    """kind: one of the above. where: the line that calls torch; user_where: the program's own, where that is another."""

    kind: str
    op: str
    where: str
    user_where: str
    expression: str


class Digested(NamedTuple):
    """A tensor: did it arrive (backward)? its dtype and shape, its sum, that of its magnitudes, a projection, how many are not 0."""

    arrived: bool
    shape: str
    digest: tuple[float, float, float, float]


class Event(NamedTuple):
    """said: the arguments that are no tensors. occurrence: of this op at this line, with tensors of these shapes, in this
    step, from 0 on.
    """

    site: Site
    said: str
    tensors: tuple[Digested, ...]
    occurrence: int

    @property
    def key(self) -> tuple[object, ...]:
        return (*self.site[:3], *(kept.shape for kept in self.tensors), self.occurrence)


@dataclass(frozen=True)
class Recorded:
    """losses: of every backward. steps: of those that everything was kept of. status, stderr: how the program ended. more: further runs
    that show, as this one does, what rounding alone changes.
    """

    torch: str
    losses: list[list[float]]
    steps: dict[int, list[Event]]
    status: int = 0
    stderr: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    more: tuple[Recorded, ...] = ()


def of_content(content: dict[str, Any], status: int = 0, stderr: Any = (), errors: Any = ()) -> Recorded:
    """From what a process has written, or a file."""
    sites = [Site(*site) for site in content["sites"]]
    steps = {int(step): _events(sites, events) for step, events in content["steps"].items()}
    return Recorded(
        content["torch"], content["losses"], steps, status, tuple(stderr), (*errors, *content.get("noted", ())), content
    )


def _events(sites: list[Site], events: Any) -> list[Event]:
    seen: dict[tuple[object, ...], int] = {}
    found = []
    for number, said, tensors in events:
        site = sites[number]
        key = (*site[:3], *(shape for _, shape, _ in tensors))
        seen[key] = seen.get(key, -1) + 1
        kept = tuple(Digested(not at and site.kind == BACKWARD, shape, tuple(digest)) for at, shape, digest in tensors)
        found.append(Event(site, said, kept, seen[key]))
    return found


def keep(path: Path, program: list[str], runs: dict[str, Recorded]) -> None:
    """Of the older torch: the run, and the one in which sums go in another order."""
    kept = {"kind": _KIND, "format": _FORMAT, "program": program, "runs": {name: run.raw for name, run in runs.items()}}
    write("upgrade", "--keep", path, gzip.compress(json.dumps(kept).encode(), mtime=0))


def read(path: Path) -> tuple[list[str], dict[str, Recorded]]:
    """The program and the runs of a file that `keep` wrote."""
    try:
        found = json.loads(gzip.decompress(path.read_bytes()))
        if found["kind"] != _KIND or found["format"] != _FORMAT:
            raise ValueError(path)
        return found["program"], {name: of_content(content) for name, content in found["runs"].items()}
    except OSError as error:
        why = error.strerror or "it is no file of digests"
        raise ValueError(must("upgrade", "--against", "be a file that --keep wrote", str(path), why)) from error
    except (ValueError, KeyError, TypeError, EOFError) as error:
        raise ValueError(must("upgrade", "--against", "be a file that --keep wrote", str(path))) from error
