"""docs/speed.md and the part of the README, from a results file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from .cases import QUESTIONS, Case, Question
from .figures import names
from .machine import in_words
from .measure import PROFILED
from .names_and_colours import shown, value_of, varied
from .results import Run

_ALT = {
    "speed.png": "Time of a clamp against copying twice, over the number of elements; memory that a network keeps for backward",
    "speed_questions.png": "Milliseconds of a clamp of one million elements, ours against other code, in six settings, a bar for each",
    "speed_cases.png": "The time of the rule inward against torch's own op at one million elements, a bar for each case",
    "speed_memory.png": "Bytes kept for backward and memory taken by one call, a bar for each route",
}


def text(run: Run) -> str:
    drawn = names(run)
    machine = in_words(run.machine)
    others = ", ".join(f"{name} {version}" for name, version in run.peers.items()) or "none"
    lines = [
        "# Speed and memory",
        "",
        f"Measured {run.when[:10]}, {run.rounds} rounds, by `python benchmarks/speed.py` "
        "([how](../benchmarks/README.md)); this page is made by `python benchmarks/report.py`.",
        "",
        *(f"- {line}" for line in machine),
        f"- other libraries: {others}",
        *(f"- left out: {name} ({why})" for name, why in run.missing.items()),
        "",
        "A time is that of forward and backward together. *Two copies* is what it is compared with: an `autograd.Function` that copies x",
        "on the way forward and grad on the way back, as little as an op can do that makes a new tensor in both passes.",
        *_below_two_copies(run),
        *_pictures(drawn, "speed.png"),
        "",
        "## What is promised",
        "",
        *_in_all(run),
        *_promises(run),
        *_pictures(drawn, "speed_cases.png", "speed_questions.png"),
    ]
    for question in QUESTIONS.values():
        lines += _section(run, question)
    lines += [*_memory(run), *_pictures(drawn, "speed_memory.png")]
    return "\n".join(lines).rstrip() + "\n"


def _below_two_copies(run: Run) -> list[str]:
    """Why a time can be a third of what looks like the least."""
    large = run.cases.get(Case("clamp", 10_000_000), {}).get("inward")
    if (
        large is None
        or large["over"].get("floor", 1.0) >= 1
        or run.machine.get("huge_pages") not in ("madvise", "always")
    ):
        return []
    return [
        f"Yet at ten million elements `inward` takes {large['over']['floor']:.2f} of it. No copy is that fast: results of 40 MB are fresh",
        "memory, and to get it from Linux in pages of 4 KiB, as the two copies do, takes longer than to fill it. Our kernels ask for",
        "*huge pages* of 2 MiB ([memory.md](memory.md)). Smaller results lie in memory that was used before, and above 128 MiB",
        "nobody asks: there the times are alike.",
    ]


def _pictures(drawn: Iterable[str], *wanted: str) -> list[str]:
    return [line for name in wanted if name in drawn for line in ("", f"![{_ALT[name]}]({name})")]


# --- promises ---------------------------------------------------------------------------------------------------------


def _promises(run: Run) -> list[str]:
    """A row for each limit, with the case that comes closest to it or goes furthest beyond."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for one in run.promises:
        key = one["case"].op, one["route"], one["against"], one["limit"], one["quantity"]
        groups.setdefault(key, []).append(one)
    lines = ["| what | at most | where | closest to its limit | |", "|---|---|---|---|---|"]
    for (op, route, against, limit, quantity), members in groups.items():
        what = f"{shown(route, op)} ({op})" if op.startswith("clamp,") else shown(route, op)
        unit = f"x {shown(against, op)}" if against else quantity
        judged = [one for one in members if one["holds"] is not None]
        worst = max(judged, key=lambda one: one["found"], default=None)
        found = "not measured" if worst is None else f"{worst['found']:.3g}, {_where([worst])}"
        word = "" if worst is None else "holds" if all(one["holds"] for one in judged) else "**FAILS**"
        if judged and len(judged) < len(members):
            word += f", {len(members) - len(judged)} not measured"
        lines.append(f"| {what} | {limit:g} {unit} | {_where(members)} | {found} | {word} |")
    return lines


def _in_all(run: Run) -> list[str]:
    judged = [one["holds"] for one in run.promises if one["holds"] is not None]
    if not judged:
        return []
    kept = (
        f"{sum(judged)} of {len(judged)} cases keep their limit"
        if not all(judged)
        else f"All {len(judged)} cases keep their limit"
    )
    return [
        f"{kept}. A row holds all cases of one limit, and shows the one that comes closest to it or goes furthest beyond.",
        "",
    ]


def _where(members: list[dict[str, Any]]) -> str:
    """Cases that differ in size alone are told together."""
    if len(members) > 12:
        return f"{len(members)} sizes, dtypes, layouts and numbers of threads"
    sizes: dict[str, list[str]] = {}
    for one in members:
        case = one["case"]
        rest = str(replace(case, size=0)).removeprefix(case.op)
        sizes.setdefault(rest, []).append(
            f"{case.size:.0e}".replace("e+0", "e") if case.size > 1000 else str(case.size)
        )
    if members[0]["case"].size == 0:
        return str(members[0]["case"].op)
    return "; ".join(f"{', '.join(some)} elements{rest}" for rest, some in sizes.items())


# --- tables -----------------------------------------------------------------------------------------------------------


def _section(run: Run, question: Question) -> list[str]:
    cases = [case for case in question.cases() if case in run.cases]
    if question.sizes == (0,) or not cases:
        return []
    fields = varied(question) or ["size"]
    routes = [route for route in question.routes if any(route in run.cases[case] for case in cases)]
    reference = "floor" if "floor" in routes else "native"
    heads = [*(_HEADS[field] for field in fields), *(shown(route, question.op) for route in routes)]
    lines = [
        "",
        f"## {question.asks}",
        "",
        f"`{question.op}`: microseconds, and in brackets the multiple of {shown(reference, question.op)}.",
        "",
        "| " + " | ".join(heads) + " |",
        "|" + "---|" * len(fields) + "---:|" * len(routes),
    ]
    for case in cases:
        cells = [_cell(run.cases[case].get(route), reference) for route in routes]
        lines.append("| " + " | ".join([*(value_of(case, field) for field in fields), *cells]) + " |")
    return lines


_HEADS = {"size": "elements", "dtype": "dtype", "threads": "threads", "data": "input", "layout": "layout"}


def _cell(found: dict[str, Any] | None, reference: str) -> str:
    if found is None:
        return ""
    time = found["microseconds"]
    shown_time = f"{time:,.0f}" if time >= 100 else f"{time:.1f}"
    over = found["over"].get(reference)
    return shown_time if over is None else f"{shown_time} ({over:.2f})"


def _memory(run: Run) -> list[str]:
    lines = ["", "## How much memory?", ""]
    network = run.cases.get(Case("network"))
    if network:
        lines += [
            "Twelve times a 3 x 3 convolution of 32 channels and a clamp, on 4 images of 192 x 192 (parameters and images not counted):",
            "",
            "| activation | " + " | ".join(shown(route) for route in network) + " |",
            "|---|" + "---:|" * len(network),
            "| MiB kept for backward | "
            + " | ".join(f"{of['saved_bytes'] / 2**20:.1f}" for of in network.values())
            + " |",
            "",
        ]
    profiled = [(case, routes) for case, routes in run.cases.items() if _is_profiled(case, routes)]
    if profiled:
        lines += [
            f"{PROFILED:,} elements; a kept byte and a taken byte are per element of x. x itself counts as kept where it is.",
            "",
            "| op | route | kept for backward | blocks taken by one call | bytes taken |",
            "|---|---|---:|---:|---:|",
        ]
        for case, routes in profiled:
            for route, of in routes.items():
                kept, taken = (of[name] / case.size for name in ("saved_bytes", "allocated_bytes"))
                lines.append(
                    f"| {case.op} | {shown(route, case.op)} | {kept:.2f} | {of['allocations']} | {taken:.2f} |"
                )
    imported = run.cases.get(Case("import"))
    if imported:
        lines += ["", f"`import pseudograd`, once torch is imported: {imported['pseudograd']['milliseconds']:.1f} ms."]
    return lines


def _is_profiled(case: Case, routes: dict[str, Any]) -> bool:
    usual = Case(case.op, case.size) == case
    return usual and any("allocations" in of for of in routes.values())


# --- README -----------------------------------------------------------------------------------------------------------

NOT_MEASURED = "Speed and memory: `make bench` measures them and writes a page; no results are kept here yet."


def for_readme(run: Run) -> str:
    """The picture, and what it says in numbers."""
    million = run.cases.get(Case("clamp", PROFILED), {}).get("inward")
    network = run.cases.get(Case("network"), {})
    if million is None or "inward" not in network or "speed.png" not in names(run):
        return NOT_MEASURED
    over = million["over"]
    mib = {route: f"{of['saved_bytes'] / 2**20:.0f}" for route, of in network.items()}
    ratios = f"{over['native']:.2f} × the time of torch.clamp, {over['snippet']:.2f} × the popular snippet"
    broken = sum(one["holds"] is False for one in run.promises)
    holding = sum(one["holds"] is True for one in run.promises)
    promises = f"Of {holding + broken} measured cases that have a promised limit, {holding} keep it" + (
        f" and {broken} do not" if broken else ""
    )
    return "\n".join(
        [
            f"![{_ALT['speed.png']}](docs/speed.png)",
            f"`inward` at a million elements: {ratios}, {over['floor']:.2f} × copying twice. The network drawn keeps "
            f"{mib['inward']} MiB for backward with it, {mib['native']} with torch.clamp. {promises}: [docs/speed.md](docs/speed.md).",
        ]
    )
