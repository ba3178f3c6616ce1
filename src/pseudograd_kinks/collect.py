"""Measure every point on the installed torch, for scripts/collect_kinks.py: python -m pseudograd_kinks.collect RESULT.json"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from .compiled import compiled
from .measure import EAGER, ROUTES, measured
from .numbers import Outcome
from .point import Point
from .points import defined

COMPILED = ("aot_eager", "inductor")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pseudograd_kinks.collect")
    parser.add_argument("result", type=Path, help="what it has of other routes stays")
    parser.add_argument("--routes", nargs="+", choices=(*ROUTES, *COMPILED), default=(*ROUTES, *COMPILED))
    options = parser.parse_args()
    torch.set_num_threads(1)
    points = defined()
    kept = _kept(options.result)
    for route in options.routes:
        print(f"  {route}", file=sys.stderr, flush=True)
        for id, outcome in _by(route, points).items():
            if outcome is not None:
                kept["outcomes"].setdefault(id, {})[route] = outcome.as_json()
        kept["routes"] = [name for name in (*ROUTES, *COMPILED) if name in kept["routes"] or name == route]
        options.result.write_text(json.dumps(kept), encoding="utf-8")
    return 0


def _by(route: str, points: dict[str, Point]) -> dict[str, Outcome | None]:
    if route not in COMPILED:
        return {id: measured(point, route) for id, point in points.items()}
    plain = {id: measured(point, EAGER) for id, point in points.items()}
    usable = [point for id, point in points.items() if (found := plain[id]) is not None and found.gradient is not None]
    return dict(compiled(usable, route))


def _kept(result: Path) -> dict[str, Any]:
    """What an earlier run on the same torch found."""
    about = {"version": torch.__version__, "processor": torch.backends.cpu.get_cpu_capability()}
    before = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
    if before.get("version") != torch.__version__:
        before = {"routes": [], "outcomes": {}}
    return {**before, **about}


if __name__ == "__main__":
    sys.exit(main())
