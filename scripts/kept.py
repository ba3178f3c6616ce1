"""Figures that docs keep in a JSON file, by the version of torch that they were measured with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


def keep(file: Path, figures: Any) -> None:
    """In place of those of the installed torch; the figures of other versions stay."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    kept[torch.__version__.split("+")[0]] = figures
    file.write_text(json.dumps(dict(sorted(kept.items())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def of_installed(cases: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """What each case gives; one whose package is not installed is left out, and that is said."""
    found = {}
    for name, case in cases.items():
        try:
            found[name] = case()
        except ImportError as error:
            print(f"{name}: left out, {error}")
            continue
        print(name, json.dumps(found[name], indent=1))
    return found
