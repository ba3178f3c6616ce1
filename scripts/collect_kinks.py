"""Collect the kink table anew: src/pseudograd_kinks/table.json, from torch 2.8 to 2.15, JAX and TensorFlow.

python scripts/collect_kinks.py                   everything; the first run installs what is missing, several GB
python scripts/collect_kinks.py --only torch-2.15.0 jax-0.10.2      measure these; take the others from the last run or from the table
python scripts/collect_kinks.py --join            measure nothing; make the table from the last runs
python scripts/collect_kinks.py --fast            without compiled routes: Inductor takes ten minutes a version and a C++ compiler

PSEUDOGRAD_CACHE  where the environments and the measurements live, those of scripts/test_versions.sh too (default: the user's cache folder)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pseudograd.torch_table.eras import SUPPORTED
from pseudograd_kinks.collect import ByVersion, join
from pseudograd_kinks.measure import ROUTES
from pseudograd_kinks.outcome import Outcome
from pseudograd_kinks.table import FILE, dotted, load, parse_version

ROOT = Path(__file__).resolve().parent.parent
CACHE = Path(
    os.environ.get("PSEUDOGRAD_CACHE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pseudograd"
)
ENVIRONMENTS = (*(f"torch-{version}" for version in SUPPORTED), "jax-0.10.2", "tensorflow-2.21.0")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ENVIRONMENTS, default=ENVIRONMENTS, metavar="ENVIRONMENT")
    parser.add_argument("--join", action="store_true")
    parser.add_argument("--fast", action="store_true")
    options = parser.parse_args()
    folder = CACHE / "kinks"
    folder.mkdir(parents=True, exist_ok=True)
    for name in () if options.join else options.only:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        _measure(name, folder, options.fast)
    table = _join(folder)
    FILE.write_text(as_text(table), encoding="utf-8")
    print(f"{FILE.relative_to(ROOT)}: {len(table['points'])} points", file=sys.stderr)
    return 0


def _measure(name: str, folder: Path, fast: bool) -> None:
    framework = name.partition("-")[0]
    result = folder / f"{name}.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    if framework == "torch":
        command = ["-m", "pseudograd_kinks.collect", str(result), *(["--routes", *ROUTES] if fast else [])]
    else:
        points = folder / "points.json"
        points.write_text(json.dumps(_stored()["points"]), encoding="utf-8")
        command = [str(ROOT / "scripts" / "kinks_elsewhere.py"), framework, str(points), str(result)]
    subprocess.run([str(_python(name)), *command], check=True, env=environment)


def _python(name: str) -> Path:
    """The Python of an environment, which is made first if it is missing."""
    folder = CACHE / name
    python = folder / "bin" / "python"
    if python.is_file():
        return python
    framework, _, version = name.partition("-")
    if framework == "torch":
        environment = {**os.environ, "TORCH": version}
        subprocess.run([str(ROOT / "scripts" / "environment.sh"), str(folder), "dev"], check=True, env=environment)
    else:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", f"{framework}=={version}"], check=True)
    return python


def _stored() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def _join(folder: Path) -> dict[str, Any]:
    outcomes: dict[str, dict[str, ByVersion]] = {id: {} for id in load().points}
    measured: dict[str, dict[str, dict[str, Any]]] = {}
    for name in ENVIRONMENTS:
        framework = name.partition("-")[0]
        result = _stored_result(folder / f"{name}.json", name)
        version = parse_version(result["version"])
        about = {key: result[key] for key in ("version", "routes", "processor") if key in result}
        measured.setdefault(framework, {})[dotted(version)] = about
        for id, by_route in result["outcomes"].items():
            if by_route and id in outcomes:
                by_version = outcomes[id].setdefault(framework, {})
                by_version[version] = {route: Outcome.from_json(stored) for route, stored in by_route.items()}
    return join(_stored(), outcomes, measured)


def _stored_result(file: Path, name: str) -> dict[str, Any]:
    """The result of the last run on this machine; without one, the outcomes in the table."""
    if file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
    print(f"{name}: from the table", file=sys.stderr)
    framework, _, version = name.partition("-")
    table, version = load(), dotted(parse_version(version))
    about = table.measured[framework][version]
    outcomes = {
        id: {
            route: outcome.as_json()
            for route in about["routes"]
            if (outcome := point.outcome(framework, version, route))
        }
        for id, point in table.points.items()
    }
    return {**about, "outcomes": outcomes}


def as_text(table: dict[str, Any]) -> str:
    """The JSON with a line for each point, so that a changed point is a changed line."""
    head = json.dumps({key: value for key, value in table.items() if key != "points"}, indent=1)
    rows = ",\n".join(json.dumps(point, ensure_ascii=False) for point in table["points"])
    return f'{head[:-2]},\n "points": [\n{rows}\n]}}\n'


if __name__ == "__main__":
    sys.exit(main())
