"""What one run of a program did, event by event, and the file that keeps runs for another day."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pseudograd.errors import must
from pseudograd.listen.program.files import write

_KIND, _FORMAT = "pseudograd upgrade digests", 1

# Runs of the older torch, as a file and an answer call them.
AS_IT_IS, OTHER_ORDER, SHAKEN = "as it is", "sums in another order", "parameters moved by roundings"
FORWARD, BACKWARD, UPDATE, LEAF = "forward", "backward", "update", "leaf"


class Origin(NamedTuple):
    """The call that an event comes from. kind: one of the above. where: the line that calls torch; user_where: the program's own line,
    where that is another.
    """

    kind: str
    op: str
    where: str
    user_where: str
    expression: str


class Digest(NamedTuple):
    """A tensor: did it arrive (at a backward)? its dtype and shape; its sum, that of its magnitudes, a projection, how many are not 0."""

    arrives: bool
    shape: str
    numbers: tuple[float, float, float, float]


class Event(NamedTuple):
    """options: the arguments that are no tensors. occurrence: of this op at this line, with tensors of these shapes, in this step."""

    origin: Origin
    options: str
    tensors: tuple[Digest, ...]
    occurrence: int

    @property
    def key(self) -> tuple[object, ...]:
        return (*self.origin[:3], *(tensor.shape for tensor in self.tensors), self.occurrence)


@dataclass(frozen=True)
class Recording:
    """losses: of every backward. steps: the events of the steps that were kept whole. status, stderr: how the program ended. more: further
    runs that show, as this one does, how far rounding alone moves them.
    """

    torch: str
    losses: list[list[float]]
    steps: dict[int, list[Event]]
    status: int = 0
    stderr: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    more: tuple[Recording, ...] = ()


def read_content(
    content: dict[str, Any], status: int = 0, stderr: Iterable[str] = (), errors: Iterable[str] = ()
) -> Recording:
    """The recording that a process has written, or a file."""
    origins = [Origin(*origin) for origin in content["sites"]]
    steps = {int(step): _load_events(origins, events) for step, events in content["steps"].items()}
    errors = (*errors, *content.get("noted", ()))
    return Recording(content["torch"], content["losses"], steps, status, tuple(stderr), errors, content)


def _load_events(origins: list[Origin], rows: Any) -> list[Event]:
    counts: dict[tuple[object, ...], int] = {}
    events = []
    for number, options, tensors in rows:
        origin = origins[number]
        key = (*origin[:3], *(shape for _, shape, _ in tensors))
        counts[key] = counts.get(key, -1) + 1
        is_backward = origin.kind == BACKWARD
        digests = tuple(Digest(not at and is_backward, shape, tuple(numbers)) for at, shape, numbers in tensors)
        events.append(Event(origin, options, digests, counts[key]))
    return events


def keep(path: Path, program: list[str], runs: dict[str, Recording]) -> None:
    """Keeps runs of the older torch, by their names."""
    raw = {name: run.raw for name, run in runs.items()}
    document = {"kind": _KIND, "format": _FORMAT, "program": program, "runs": raw}
    write("upgrade", "--keep", path, gzip.compress(json.dumps(document).encode(), mtime=0))


def read(path: Path) -> tuple[list[str], dict[str, Recording]]:
    """The program and the runs of a file that `keep` wrote."""
    requirement = "be a file that --keep wrote"
    try:
        document = json.loads(gzip.decompress(path.read_bytes()))
        if document["kind"] != _KIND or document["format"] != _FORMAT:
            raise ValueError(path)
        return document["program"], {name: read_content(content) for name, content in document["runs"].items()}
    except OSError as error:
        why = error.strerror or "it is no file of digests"
        raise ValueError(must("upgrade", "--against", requirement, str(path), why)) from error
    except (ValueError, KeyError, TypeError, EOFError) as error:
        raise ValueError(must("upgrade", "--against", requirement, str(path))) from error
