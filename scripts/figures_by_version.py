"""Figures that docs keep in a JSON file, by the version of torch that they were measured with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch


def keep(file: Path, figures: Mapping[str, Any]) -> None:
    """Replace the figures of the installed torch that were measured now; the others stay."""
    figures_by_version = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    version = torch.__version__.split("+")[0]
    figures_by_version[version] = {**figures_by_version.get(version, {}), **figures}
    file.write_text(
        json.dumps(dict(sorted(figures_by_version.items())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def measure_installed(cases: Mapping[str, Callable[[], Any]], names: Sequence[str] = ()) -> dict[str, Any]:
    """The results of the named cases, or of all. A case whose package is not installed is left out with a message."""
    figures = {}
    for name in names or cases:
        try:
            figures[name] = cases[name]()
        except ImportError as error:
            print(f"{name}: left out, {error}")
            continue
        print(name, json.dumps(figures[name], indent=1))
    return figures
