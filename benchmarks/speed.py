"""Measure time and memory of clamps in forward and backward, and check the *promises*: the limits in suite/promises.py.

    python benchmarks/speed.py --check              # everything, about a quarter of an hour; status 1 if a promise does not hold
    python benchmarks/speed.py --quick --check      # only what the promises name, about three minutes
    python benchmarks/speed.py --questions size,relu --json speed.json

A *route* is a way to compute an op: torch's own, the popular snippet, another library's, ours; the route "floor" only copies x and grad.
A *question* is a table of docs/speed.md: suite/cases.py. A full run has neither --quick nor --questions. Without --json its results go to
benchmarks/results, from which `report.py` makes docs/speed.md. How it measures: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path

import torch

import import_time
from harness import parser_of
from suite import results as files
from suite.cases import QUESTIONS, Case, plan
from suite.measure import measure, measure_network
from suite.promises import needed, promises
from suite.results import Measured, Record, describe_machine, machine_in_words
from suite.routes import library_versions


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    machine, promised = describe_machine(), promises(import_time.promised_ms())
    print("\n".join(machine_in_words(machine)), flush=True)
    results, missing = measure_all(needed(promised) if options.quick else plan(options.questions), options)
    verdicts = [promise.judge(results) for promise in promised]
    print("\npromised\n" + "\n".join(_verdict_lines(verdicts, missing)))
    run = {
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "selection": options.selection,
        "rounds": options.rounds,
        "machine": machine,
        "peers": library_versions(),
        "missing": missing,
        "cases": [{"case": asdict(case), "routes": routes} for case, routes in results.items()],
        "promises": verdicts,
    }
    file = options.json
    if file is None and options.selection == "full":
        files.FOLDER.mkdir(exist_ok=True)
        file = files.FOLDER / f"{run['when'][:10]}-torch-{torch.__version__.split('+')[0]}.json"
    if file is not None:
        file.write_text(json.dumps(round_all(run), indent=1) + "\n", encoding="utf-8")
        print(f"\nwritten to {file}")
    return int(options.check and any(verdict["holds"] is False for verdict in verdicts))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, rounds=31)
    parser.add_argument("--quick", action="store_true", help="only the cases and routes that promises name, 11 rounds")
    parser.add_argument("--questions", help=f"separated by commas, some of: {', '.join(QUESTIONS)}")
    parser.add_argument("--seconds", type=float, default=0.003, help="least length of one sample")
    parser.add_argument("--json", type=Path, help="where to write; a full run writes to benchmarks/results by default")
    options = parser.parse_args(arguments)
    names = QUESTIONS if options.questions is None else options.questions.split(",")
    if unknown := [name for name in names if name not in QUESTIONS]:
        parser.error(f"--questions must be some of {', '.join(QUESTIONS)}, got {unknown[0]!r}")
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json must be a file in an existing folder, got {str(options.json)!r}")
    options.selection = "quick" if options.quick else "full" if options.questions is None else "some"
    options.questions = [QUESTIONS[name] for name in names]
    options.rounds = min(options.rounds, 11) if options.quick else options.rounds
    return options


def measure_all(
    planned: dict[Case, tuple[str, ...]], options: argparse.Namespace
) -> tuple[dict[Case, Measured], dict[str, str]]:
    """The results of each case, and why some routes of some ops were left out."""
    results: dict[Case, Measured] = {}
    missing: dict[str, str] = {}
    threads = torch.get_num_threads()
    try:
        for case, routes in planned.items():
            results[case], left_out = measure_case(case, routes, options)
            missing |= {f"{case.op}: {name}": why for name, why in left_out.items()}
            print(f"\n{case}\n" + "\n".join(_route_lines(results[case], left_out)), flush=True)
    finally:
        torch.set_num_threads(threads)
    return results, missing


def measure_case(case: Case, routes: tuple[str, ...], options: argparse.Namespace) -> tuple[Measured, dict[str, str]]:
    if case.op == "network":
        return measure_network(routes), {}
    if case.op == "import":
        _, milliseconds = import_time.measure(import_time.FEWEST_PAIRS if options.quick else import_time.PAIRS)
        return {"pseudograd": {"milliseconds": statistics.median(milliseconds)}}, {}
    return measure(case, routes, options.rounds, options.seconds)


def _route_lines(measured: Measured, left_out: dict[str, str]) -> list[str]:
    lines = []
    for name, values in measured.items():
        cells = [f"  {name:<18}"]
        if "microseconds" in values:
            over = values["over"]
            cells.append(f"{values['microseconds']:>14,.1f} us")
            cells += [f"{over[other]:7.2f} x {other}" for other in ("floor", "native", "snippet") if other in over]
        if "milliseconds" in values:
            cells.append(f"{values['milliseconds']:.1f} ms")
        if "saved_bytes" in values:
            cells.append(f"  keeps {values['saved_bytes']:,} B")
        lines.append("".join(cells))
    return lines + [f"  {name:<18} left out: {why}" for name, why in left_out.items()]


def _verdict_lines(verdicts: list[Record], missing: dict[str, str]) -> list[str]:
    """A line for each promise that could be judged, one for all others, one for each route that was left out."""
    lines = []
    for verdict in verdicts:
        if verdict["holds"] is not None:
            unit = f"x {verdict['against']}" if verdict["against"] else verdict["quantity"]
            word = "holds" if verdict["holds"] else "FAILS"
            what = f"{Case(**verdict['case'])}: {verdict['route']} at most {verdict['limit']:g} {unit}"
            lines.append(f"  {word:<13} {what}: {verdict['found']:.3f}")
    if len(lines) < len(verdicts):
        lines.append(f"  not measured  {len(verdicts) - len(lines)} of {len(verdicts)} promises")
    return lines + [f"  left out      {name} ({why})" for name, why in missing.items()]


def round_all(value: object) -> object:
    """To four digits: the rest is noise."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: round_all(part) for name, part in value.items()}
    return [round_all(part) for part in value] if isinstance(value, (list, tuple)) else value


if __name__ == "__main__":
    sys.exit(main())
