"""A results file, as `speed.py` writes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cases import Case
from .measure import Routes

FOLDER = Path(__file__).resolve().parent.parent / "results"


@dataclass(frozen=True)
class Run:
    when: str
    selection: str
    rounds: int
    machine: dict[str, Any]
    peers: dict[str, str]
    missing: dict[str, str]
    cases: dict[Case, Routes]
    promises: tuple[dict[str, Any], ...]  # each with its case, what was found and whether it holds


def read(path: Path) -> Run:
    """ValueError, in one line, if it is no such file."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        cases = {Case(**one["case"]): one["routes"] for one in stored["cases"]}
        promises = tuple({**one, "case": Case(**one["case"])} for one in stored["promises"])
        rest = {name: stored[name] for name in ("when", "selection", "rounds", "machine", "peers", "missing")}
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: is not a results file of benchmarks/speed.py") from error
    return Run(**rest, cases=cases, promises=promises)


def newest() -> Path | None:
    """Of those kept in benchmarks/results: the one measured last."""
    found = {path: read(path).when for path in FOLDER.glob("*.json")}
    return max(found, key=lambda path: found[path]) if found else None
