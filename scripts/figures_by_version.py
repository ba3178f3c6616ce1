"""Figures in a JSON file of docs, by the version of torch with which they were measured."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


def keep(file: Path, figures: Mapping[str, Any]) -> None:
    """Store these figures for the installed torch. All other figures stay."""
    figures_by_version = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    version = torch.__version__.split("+")[0]
    figures_by_version[version] = {**figures_by_version.get(version, {}), **figures}
    file.write_text(
        json.dumps(dict(sorted(figures_by_version.items())), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def measure_installed(file: Path, cases: Mapping[str, Callable[[], Any]]) -> None:
    """Store the results of the cases that the command line names, or of all. A case is left out, with a line, if its package is missing."""
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
