"""Time and memory of clamps, forward and backward: torch's own, the popular snippet, other libraries', ours; and what is promised.

    python benchmarks/speed.py --check              # everything, about a quarter of an hour; status 1 if a promise does not hold
    python benchmarks/speed.py --quick --check      # what the promises name and nothing else, about three minutes
    python benchmarks/speed.py --questions size --sizes 1e5,1e6 --dtype bfloat16 --threads 4 --json speed.json

A run of everything is kept in benchmarks/results, and `report.py` makes docs/speed.md of it. How it measures: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import import_time
from options import Parser, at_least, new_file, sizes
from suite.cases import QUESTIONS, Case, plan
from suite.machine import describe, in_words, native_kernels
from suite.measure import Routes, measure
from suite.network import measure_network
from suite.promises import Promise, Verdict, judge, needed, promises
from suite.routes import peers

RESULTS = Path(__file__).resolve().parent / "results"
DTYPES = ("float16", "bfloat16", "float32", "float64")


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    machine = describe()
    print("\n".join(in_words(machine)), flush=True)
    promised = promises(native_kernels=native_kernels())
    planned = _planned(options, promised)
    results, missing = _measured(planned, options)
    verdicts = judge(results, promised)
    print("\npromised\n" + "\n".join(_told(verdicts, missing)))
    run = {
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "selection": _selection(options),
        "rounds": options.rounds,
        "machine": machine,
        "peers": peers(),
        "missing": missing,
        "cases": [{"case": asdict(case), "routes": routes} for case, routes in results.items()],
        "promises": [verdict.record() for verdict in verdicts],
    }
    _write(run, options.json)
    return 1 if options.check and any(verdict.holds is False for verdict in verdicts) else 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="only the cases and routes that promises name, 11 rounds")
    parser.add_argument("--questions", help=f"some of: {', '.join(QUESTIONS)}")
    parser.add_argument("--sizes", type=sizes, default=(), help="in place of those of each question, such as 10,1e5")
    parser.add_argument("--dtype", choices=DTYPES, help="in place of those of each question")
    parser.add_argument("--threads", type=at_least(1), help="torch's own threads, in place of those of each question")
    parser.add_argument(
        "--rounds", type=at_least(1), help="samples of each route; default 31. A fifth above 3e7 elements"
    )
    parser.add_argument("--seconds", type=at_least(0, float), default=0.003, help="least length of one sample")
    parser.add_argument("--json", type=new_file, help="where to write what was found; a full run is kept in any case")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a promise does not hold")
    options = parser.parse_args(arguments)
    options.questions = tuple(QUESTIONS) if options.questions is None else _names(parser, options.questions)
    options.rounds = options.rounds or (11 if options.quick else 31)
    if options.quick and _is_narrowed(options):
        parser.error("--quick has a selection of its own: leave out --questions, --sizes, --dtype and --threads")
    return options


def _names(parser: Parser, text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(","))
    unknown = [name for name in found if name not in QUESTIONS]
    if unknown:
        parser.error(f"--questions must be some of {', '.join(QUESTIONS)}, got {unknown[0]!r}")
    return found


def _is_narrowed(options: argparse.Namespace) -> bool:
    return bool(options.questions != tuple(QUESTIONS) or options.sizes or options.dtype or options.threads)


def _selection(options: argparse.Namespace) -> str:
    return "quick" if options.quick else "some" if _is_narrowed(options) else "full"


def _planned(options: argparse.Namespace, promised: Iterable[Promise]) -> dict[Case, tuple[str, ...]]:
    if options.quick:
        return needed(promised)
    dtypes, threads = ((one,) if one else () for one in (options.dtype, options.threads))
    return plan(QUESTIONS[name].narrowed(options.sizes, dtypes, threads) for name in options.questions)


def _measured(
    planned: dict[Case, tuple[str, ...]], options: argparse.Namespace
) -> tuple[dict[Case, Routes], dict[str, str]]:
    """What was found for each case, and why some routes of some ops were left out."""
    results: dict[Case, Routes] = {}
    missing: dict[str, str] = {}
    threads = torch.get_num_threads()
    try:
        for case, routes in planned.items():
            results[case], left_out = _of_case(case, routes, options)
            missing |= {f"{case.op}: {name}": why for name, why in left_out.items()}
            print(f"\n{case}\n" + "\n".join(_table(results[case], left_out)), flush=True)
    finally:
        torch.set_num_threads(threads)
    return results, missing


def _of_case(case: Case, routes: tuple[str, ...], options: argparse.Namespace) -> tuple[Routes, dict[str, str]]:
    if case.op == "network":
        return measure_network(routes), {}
    if case.op == "import":
        _, inside = import_time.measure(import_time.LEAST_PAIRS if options.quick else import_time.PAIRS)
        return {"pseudograd": {"milliseconds": statistics.median(inside)}}, {}
    return measure(case, routes, options.rounds, options.seconds)


# --- text -------------------------------------------------------------------------------------------------------------


def _table(found: Routes, left_out: dict[str, str]) -> list[str]:
    lines = []
    for name, of in found.items():
        cells = [f"  {name:<18}"]
        if "microseconds" in of:
            cells.append(f"{of['microseconds']:>14,.1f} us")
            cells += [
                f"{of['over'][other]:7.2f} x {other}" for other in ("floor", "native", "snippet") if other in of["over"]
            ]
        if "milliseconds" in of:
            cells.append(f"{of['milliseconds']:.1f} ms")
        if "saved_bytes" in of:
            cells.append(f"  keeps {of['saved_bytes']:,} B")
        lines.append("".join(cells))
    return lines + [f"  {name:<18} left out: {why}" for name, why in left_out.items()]


def _told(verdicts: list[Verdict], missing: dict[str, str]) -> list[str]:
    """A line for each promise that could be judged, one for all others, one for each route that was left out."""
    unknown = sum(verdict.holds is None for verdict in verdicts)
    lines = [str(verdict) for verdict in verdicts if verdict.holds is not None]
    if unknown:
        lines.append(f"  not measured  {unknown} of {len(verdicts)} promises")
    return lines + [f"  left out      {name} ({why})" for name, why in missing.items()]


def _write(run: dict[str, Any], chosen: Path | None) -> None:
    """To the file that was asked for; a full run, if none was, to benchmarks/results under its day and torch."""
    if chosen is None and run["selection"] == "full":
        RESULTS.mkdir(exist_ok=True)
        chosen = RESULTS / f"{run['when'][:10]}-torch-{torch.__version__.split('+')[0]}.json"
    if chosen is not None:
        chosen.write_text(json.dumps(rounded(run), indent=1) + "\n", encoding="utf-8")
        print(f"\nwritten to {chosen}")


def rounded(value: Any) -> Any:
    """To four digits: the rest is noise."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, (list, tuple)) else value


if __name__ == "__main__":
    sys.exit(main())
