"""Findings that are known: they pass, and new ones fail.

A finding is known by its file, its code and the text of its expression, never by its line, and as many times as it was there: what moves
stays known, a copy of it is new.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from .notice import Notice

_KIND = "pseudograd baseline"
Key = tuple[str, str, str]


def key(one: Notice) -> Key:
    """Layout does not count: the expression is as `ast` writes it, and the path has the slashes of every system."""
    return PurePath(one.path).as_posix().removeprefix("./"), one.code, " ".join(one.expression.split())


def text(found: Iterable[Notice]) -> str:
    counts = Counter(map(key, found))
    rows = [
        {"path": path, "code": code, "expression": expression, "count": n}
        for (path, code, expression), n in sorted(counts.items())
    ]
    return json.dumps({"kind": _KIND, "version": 1, "findings": rows}, indent=1, ensure_ascii=False) + "\n"


def read(where: str, file: Path) -> Counter[Key]:
    """Raises ValueError for what is no baseline."""
    remedy = f"Write one with --write-baseline {file}."
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["kind"] != _KIND or stored["version"] != 1:
            raise KeyError("kind")
        return Counter({(row["path"], row["code"], row["expression"]): int(row["count"]) for row in stored["findings"]})
    except OSError as error:
        raise ValueError(f"{where}: --baseline must be a file that can be read, got {str(file)!r}. {remedy}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{where}: --baseline must be a file that --write-baseline wrote, got {str(file)!r}. {remedy}"
        ) from error


def new(found: Sequence[Notice], known: Counter[Key]) -> list[Notice]:
    """Without those that are known. Of equal ones the first so many are."""
    left = Counter(known)
    told = []
    for one in found:
        if left[key(one)] > 0:
            left[key(one)] -= 1
        else:
            told.append(one)
    return told
