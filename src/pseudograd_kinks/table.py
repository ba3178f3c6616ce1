"""The kink table as it was collected: `load()` gives every point with what each framework, version and route does there."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

from pseudograd.errors import must, unknown_name

from .numbers import Outcome, nested
from .point import FRAMEWORKS, Point

FILE = Path(__file__).with_name("table.json")
Version = tuple[int, ...]


class Span(NamedTuple):
    """What does the same from one measured version to another, both included."""

    first: Version
    last: Version
    outcome: Outcome

    def __contains__(self, version: object) -> bool:
        return isinstance(version, tuple) and self.first <= version <= self.last

    @property
    def versions(self) -> str:
        """ "2.8-2.13"; one version alone as it is."""
        return dotted(self.first) if self.first == self.last else f"{dotted(self.first)}-{dotted(self.last)}"


class TablePoint(Point, kw_only=True):
    """A point with its measurements.

    spans: by framework, the outcomes of its plain gradient, from the oldest version on. exceptions: by framework and route, the spans of
        the outcomes that are not those of the plain gradient. changes: by the version that began with it, why the gradient changed.
    """

    spans: dict[str, list[Span]]
    exceptions: dict[tuple[str, str], list[Span]]
    changes: dict[str, str]

    def gradient(self, framework: str, version: str | None = None) -> list[list[float]] | None:
        """What each differentiated input gets; zeros for one that gets nothing. Without a version: in the last one that was measured.

        None where the framework raises, lacks the function, or was not measured in that version.
        """
        outcome = self.outcome(framework, version)
        if outcome is None or outcome.gradient is None:
            return None
        sizes = [_size(self.inputs[at]) for at in self.differentiated]
        rows = zip(outcome.gradient, sizes, strict=True)
        return [[0.0] * size if row is None else list(row) for row, size in rows]

    def outcome(self, framework: str, version: str | None = None, route: str = "eager") -> Outcome | None:
        """With the error where it raises; None where it was not measured. Of a version between two that do the same: theirs."""
        if framework not in FRAMEWORKS:
            raise unknown_name("kinks", "framework", FRAMEWORKS, framework)
        spans = self.spans.get(framework, [])
        asked = version_of(version) if version is not None else spans[-1].last if spans else ()
        exception = next((span for span in self.exceptions.get((framework, route), ()) if asked in span), None)
        found = exception or next((span for span in spans if asked in span), None)
        return None if found is None else found.outcome


class Table(NamedTuple):
    """measured: by framework and version, the version in full and the routes."""

    points: dict[str, TablePoint]
    measured: dict[str, dict[str, dict[str, Any]]]

    def versions(self, framework: str) -> list[str]:
        """From the oldest on."""
        if framework not in FRAMEWORKS:
            raise unknown_name("kinks", "framework", FRAMEWORKS, framework)
        return sorted(self.measured.get(framework, {}), key=version_of)

    def known_version(self, framework: str, version: str) -> str | None:
        """The measured version that says what this one should do: itself, or the last one before it."""
        earlier = [known for known in self.versions(framework) if version_of(known) <= version_of(version)]
        return earlier[-1] if earlier else None


def load(file: Path = FILE) -> Table:
    """The table of a file; that of the package without one."""
    return _load(file, file.stat().st_mtime_ns)


@functools.lru_cache(maxsize=4)
def _load(file: Path, changed: int) -> Table:
    return of_json(json.loads(file.read_text(encoding="utf-8")))


def of_json(kept: dict[str, Any]) -> Table:
    return Table({row["id"]: _point(row) for row in kept["points"]}, kept["measured"])


def _point(row: dict[str, Any]) -> TablePoint:
    return TablePoint(
        id=row["id"],
        family=row["family"],
        op=row["op"],
        kind=row["kind"],
        expressions=row["expressions"],
        inputs=tuple(nested(row["inputs"])),
        differentiated=tuple(row["differentiated"]),
        weights=tuple(row.get("weights", ())),
        elementwise=row.get("elementwise", False),
        note=row.get("note", ""),
        spans={framework: [_span(one) for one in spans] for framework, spans in row["gradients"].items()},
        exceptions={
            (framework, route): [_span(one) for one in spans]
            for framework, routes in row.get("exceptions", {}).items()
            for route, spans in routes.items()
        },
        changes=row.get("changes", {}),
    )


def _span(kept: dict[str, Any]) -> Span:
    first, _, last = kept["versions"].partition("-")
    return Span(version_of(first), version_of(last or first), Outcome.of_json(kept))


def _size(value: object) -> int:
    return sum(map(_size, value)) if isinstance(value, list) else 1


def version_of(text: str) -> Version:
    """(2, 13) of "2.13.0+cpu"."""
    try:
        major, minor = text.split("+")[0].split(".")[:2]
        return int(major), int("".join(digit for digit in minor if digit.isdigit()))
    except (ValueError, AttributeError) as error:
        raise ValueError(must("kinks", "version", "be two numbers, such as '2.13'", text)) from error


def dotted(version: Version) -> str:
    return ".".join(map(str, version))
