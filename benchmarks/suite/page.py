"""docs/speed.md and the part of the README, from a results file; and the names of routes where people read of them."""

from __future__ import annotations

from dataclasses import replace

from .cases import QUESTIONS, Case, Question
from .figures import ALT_TEXTS, names
from .measure import PROFILED
from .names import route_name
from .results import Measured, Record, Run, machine_in_words

# The routes of each column; the first that a case has is shown.
_FLOORS, _OWN, _USUAL, _OURS = (
    ("floor",),
    ("native",),
    ("snippet", "compressai", "spike"),
    ("inward", "triangle", "fewbit"),
)


def text(run: Run) -> str:
    drawn = names(run)
    machine = machine_in_words(run.machine)
    others = ", ".join(f"{name} {version}" for name, version in run.peers.items())
    missing = {
        name.rpartition(": ")[2]: why.removeprefix(f"{name.rpartition(': ')[2]}: ") for name, why in run.missing.items()
    }
    lines = [
        "# How fast",
        "",
        *_answer(run),
        *_pictures(drawn, "speed.png"),
        "",
        "Every time is of forward and backward together. The unit is *two copies*: an `autograd.Function` that copies x in forward and",
        "grad in backward. `python benchmarks/speed.py` measures, `python benchmarks/report.py` writes this page, and the results file",
        f"has all {len(run.cases)} cases ([how](../benchmarks/README.md)).",
        *_below_two_copies(run),
        "",
        "## What is promised",
        "",
        f"{_count_limits(run)} A row is one limit, with the case that is closest to the limit or furthest beyond it.",
        "",
        *_promises(run),
        *_pictures(drawn, "speed_cases.png"),
        *_times(run),
        *_memory(run),
        "",
        "## Where it was measured",
        "",
        f"{run.when[:10]}, {run.rounds} rounds:",
        "",
        *(f"- {line}" for line in machine),
        *([f"- other libraries: {others}"] if others else []),
        *(f"- left out: {peer} ({why})" for peer, why in missing.items()),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _answer(run: Run) -> list[str]:
    """A sentence for each size: how long the default rule takes beside torch's own clamp."""
    sizes = {"ten": 10, "a million": 1_000_000, "ten million": 10_000_000}
    measured = {name: run.cases.get(Case("clamp", size), {}).get("inward") for name, size in sizes.items()}
    shares = [f"{row['over']['native']:.2f} for {name}" for name, row in measured.items() if row is not None]
    if not shares:
        return []
    return [f"The time of `pg.clamp` divided by that of torch.clamp, by the number of elements: {', '.join(shares)}."]


def _below_two_copies(run: Run) -> list[str]:
    """Why a time can be a third of what looks like the least."""
    large = run.cases.get(Case("clamp", 10_000_000), {}).get("inward")
    has_huge_pages = run.machine.get("huge_pages") in ("madvise", "always")
    if large is None or large["over"].get("floor", 1.0) >= 1 or not has_huge_pages:
        return []
    return [
        f"At ten million elements `inward` takes {large['over']['floor']:.2f} of two copies, because results of 2 to 128 MiB use",
        "*huge pages*: Linux allocates these faster than the pages of 4 KiB that the copies get ([memory](memory.md#kernels)).",
    ]


def _pictures(drawn: list[str], name: str) -> list[str]:
    return ["", f"![{ALT_TEXTS[name]}]({name})"] if name in drawn else []


# --- promises ---------------------------------------------------------------------------------------------------------


def _promises(run: Run) -> list[str]:
    """A row for each limit, with the case that comes closest to it or goes furthest beyond."""
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in run.promises:
        key = record["case"].op, record["route"], record["against"], record["limit"], record["quantity"]
        groups.setdefault(key, []).append(record)
    lines = ["| what | at most | where | closest to its limit |", "|---|---|---|---|"]
    for (op, route, against, limit, quantity), members in groups.items():
        what = f"{route_name(route, op)} ({op})" if op.startswith("clamp,") else route_name(route, op)
        unit = f"x {route_name(against, op)}" if against else quantity
        judged = [record for record in members if record["holds"] is not None]
        worst = max(judged, key=lambda record: record["found"], default=None)
        value = "not measured" if worst is None else f"{worst['found']:.3g}, {_where([worst])}"
        word = "" if worst is None or all(record["holds"] for record in judged) else ", **FAILS**"
        if judged and len(judged) < len(members):
            word += f", {len(members) - len(judged)} not measured"
        lines.append(f"| {what} | {limit:g} {unit} | {_where(members)} | {value}{word} |")
    return lines


def _count_limits(run: Run) -> str:
    judged = [record["holds"] for record in run.promises if record["holds"] is not None]
    if all(judged):
        return f"All {len(judged)} limits that we set on time and memory hold." if judged else ""
    return f"{sum(judged)} of the {len(judged)} limits that we set on time and memory hold."


def _where(members: list[Record]) -> str:
    """Cases that differ in size alone stand together."""
    cases = [record["case"] for record in members]
    if len(cases) > 12:
        return f"{len(cases)} sizes, dtypes, layouts and numbers of threads"
    if cases[0].size == 0:
        return str(cases[0].op)
    sizes: dict[str, list[str]] = {}
    for case in cases:
        size = f"{case.size:.0e}".replace("e+0", "e") if case.size > 1000 else str(case.size)
        sizes.setdefault(str(replace(case, size=0)).removeprefix(case.op), []).append(size)
    return "; ".join(f"{', '.join(group)} elements{rest}" for rest, group in sizes.items())


# --- tables -----------------------------------------------------------------------------------------------------------


def _times(run: Run) -> list[str]:
    """A row for each size of a clamp, and one for a million elements of each other op; speed_cases.png has the other clamps."""
    lines = [
        "",
        "## How long?",
        "",
        "Microseconds on one thread; in brackets, the multiple of two copies, or of torch's own op if the row has no two copies. The",
        "picture has other clamps.",
        "",
        "| op | elements | two copies | torch's own | the usual code | pseudograd |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    cases = [case for question in QUESTIONS.values() for case in question.cases() if _is_shown(case, question)]
    rows = [_row(case, run.cases[case]) for case in dict.fromkeys(cases) if case in run.cases]
    million = run.cases.get(Case("clamp", PROFILED), {})
    compiled = {name.removesuffix(", compiled"): row for name, row in million.items() if name.endswith(", compiled")}
    if compiled:
        rows.append(_row(Case("clamp, compiled", PROFILED), {"floor": million["floor"], **compiled}))
    return [*lines, *rows]


def _is_shown(case: Case, question: Question) -> bool:
    is_typical = case.layout == "contiguous" and case.threads == 1
    return is_typical and (question.name == "size" or (case.size == PROFILED and not _is_a_clamp(case)))


def _is_a_clamp(case: Case) -> bool:
    return case.op == "clamp" or case.op.startswith("clamp,")


def _row(case: Case, routes: Measured) -> str:
    reference = "floor" if "floor" in routes else "native"
    cells = [_cell(_first(routes, names), reference) for names in (_FLOORS, _OWN, _USUAL, _OURS)]
    return f"| {replace(case, size=0)} | {case.size:,} | {' | '.join(cells)} |"


def _first(routes: Measured, names: tuple[str, ...]) -> Record | None:
    return next((routes[name] for name in names if name in routes), None)


def _cell(measured: Record | None, reference: str) -> str:
    if measured is None:
        return ""
    time, over = measured["microseconds"], measured["over"].get(reference)
    written = f"{time:,.0f}" if time >= 100 else f"{time:.1f}"
    return written if over is None else f"{written} ({over:.2f})"


def _memory(run: Run) -> list[str]:
    lines = ["", "## How much memory?", ""]
    network = run.cases.get(Case("network"))
    if network:
        mib = (f"{values['saved_bytes'] / 2**20:.1f}" for values in network.values())
        lines += [
            "Twelve times a 3 x 3 convolution of 32 channels and a clamp, on 4 images of 192 x 192 (parameters and images not counted):",
            "",
            f"| activation | {' | '.join(route_name(route) for route in network)} |",
            "|---|" + "---:|" * len(network),
            f"| MiB kept for backward | {' | '.join(mib)} |",
            "",
            "[Memory](memory.md) has the bytes of each rule.",
        ]
    imported = run.cases.get(Case("import"))
    if imported:
        lines += ["", f"`import pseudograd`, once torch is imported: {imported['pseudograd']['milliseconds']:.1f} ms."]
    return lines


# --- README -----------------------------------------------------------------------------------------------------------

NOT_MEASURED = "Speed and memory: `make bench` measures them and writes a page; no results are kept here yet."


def readme_part(run: Run) -> str:
    """The picture, and what it says in numbers."""
    million = run.cases.get(Case("clamp", PROFILED), {}).get("inward")
    network = run.cases.get(Case("network"), {})
    if million is None or "inward" not in network or "speed.png" not in names(run):
        return NOT_MEASURED
    over = million["over"]
    mib = {route: f"{values['saved_bytes'] / 2**20:.0f}" for route, values in network.items()}
    ratios = f"{over['native']:.2f} × the time of torch.clamp and {over['snippet']:.2f} × that of ClampWithGrad"
    return "\n".join(
        [
            f"![{ALT_TEXTS['speed.png']}](docs/speed.png)",
            f"On the CPU, forward and backward of a million elements with `inward` take {ratios}, the class that scripts "
            f"copy (in the picture: *popular snippet*). The picture compares with a mere copy of x and grad: "
            f"`inward` takes {over['floor']:.2f} × the time of that copy. "
            f"The network of the picture saves {mib['inward']} MiB for its backward pass with `inward` and {mib['native']} MiB with "
            f"torch.clamp. [How fast](docs/speed.md) has more figures. {_count_limits(run)}",
        ]
    )
