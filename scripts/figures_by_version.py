"""Figures that docs keep in a JSON file, by the version of torch that they were measured with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch


def keep(file: Path, figures: Mapping[str, Any]) -> None:
    """In place of those of the installed torch; what was not measured now stays, and so do other versions."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    version = torch.__version__.split("+")[0]
    kept[version] = {**kept.get(version, {}), **figures}
    file.write_text(json.dumps(dict(sorted(kept.items())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def of_installed(cases: Mapping[str, Callable[[], Any]], names: Sequence[str] = ()) -> dict[str, Any]:
    """What the named cases give, or all; one whose package is not installed is left out, and that is said."""
    found = {}
    for name in names or cases:
        try:
            found[name] = cases[name]()
        except ImportError as error:
            print(f"{name}: left out, {error}")
            continue
        print(name, json.dumps(found[name], indent=1))
    return found
