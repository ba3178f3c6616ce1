"""Figures that docs keep in a JSON file, by the version of torch that they were measured with."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping
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


def measure_installed(file: Path, cases: Mapping[str, Callable[[], Any]]) -> None:
    """Keep the results of the cases that the command names, or of all. A case whose package is not installed is left out and said."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    figures = {}
    for name in sys.argv[1:] or cases:
        try:
            figures[name] = cases[name]()
        except ImportError as error:
            print(f"{name}: left out, {error}")
            continue
        print(name, json.dumps(figures[name], indent=1))
    keep(file, figures)
