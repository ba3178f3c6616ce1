"""Measure every point on the installed torch, for scripts/collect_kinks.py: python -m pseudograd.kinks.collect RESULT.json [--fast]"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from .measure import ROUTES, measured
from .numbers import Outcome
from .points import defined


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pseudograd.kinks.collect")
    parser.add_argument("result", type=Path)
    parser.add_argument("--fast", action="store_true", help="without the compiled routes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    outcomes = {id: {route: measured(point, route) for route in ROUTES} for id, point in defined().items()}
    kept = {
        "version": torch.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
        "routes": list(ROUTES),
        "outcomes": {id: _as_json(routes) for id, routes in outcomes.items()},
    }
    options.result.write_text(json.dumps(kept), encoding="utf-8")
    return 0


def _as_json(routes: dict[str, Outcome | None]) -> dict[str, Any]:
    return {route: outcome.as_json() for route, outcome in routes.items() if outcome is not None}


if __name__ == "__main__":
    sys.exit(main())
