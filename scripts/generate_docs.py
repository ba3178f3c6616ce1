"""Write the generated parts of README and docs: tables of rules, whole pages, results of `compare`.

python scripts/generate_docs.py           run every task of `compare`, draw, and rewrite the generated parts and pages
python scripts/generate_docs.py --ops     the same without running `compare`
python scripts/generate_docs.py --check   fail if a generated text differs or a picture is missing; runs no task and draws nothing
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import codes_page
import commands_page
import gallery_page
import kinks_page
import op_pages
import playground_page
import policy_page
import which_rule
from torch import Tensor

import pseudograd as pg
from pseudograd.listen import patches
from pseudograd.look.rule_table import what_is_saved
from pseudograd.ops.bounds import CLAMP
from pseudograd.rule import OPS
from pseudograd.torch_table.eras import CLOSED_ERA
from pseudograd.torch_table.forms import FAMILIES, FORMS, SWITCHES
from pseudograd_tasks import TASKS, Outcome

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.look.functions import Silu  # noqa: E402  the picture and the tests audit the same function

sys.path.insert(0, str(ROOT / "benchmarks"))
import report as speed_report  # noqa: E402  the page of speed, from what `make bench` kept

DOCS = ROOT / "docs"
_MEASURED = ("real_packages", "diagnoses", "composites", "nan_tools")
REAL_PACKAGES, DIAGNOSES, COMPOSITES, NAN_TOOLS = (DOCS / f"{name}.json" for name in _MEASURED)
FILLED = (
    ROOT / "README.md",
    *(
        DOCS / f"{name}.md"
        for name in (
            "diagnose",
            "ten_ways",
            "your_own_rule",
            "lint",
            "override",
            "policy_clips",
            "kinks",
        )
    ),
    *op_pages.pages(),
)
AUDIT_FIGURE = DOCS / "audit_silu.png"
Function = Callable[[Tensor], Tensor]
STRIP = DOCS / "compare" / "strip.png"
_IN_README = ("zero", "identity", "inward", "leaky")  # the rules with a row there


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--ops", action="store_true")
    options = parser.parse_args()
    if not (options.check or options.ops):
        _run_compare()
    if not options.check:
        _draw_three_gradients()
        pg.audit(Silu, -4, 4).plot().savefig(AUDIT_FIGURE, metadata={"Software": None})
        op_pages.draw()
        policy_page.draw()
        kinks_page.draw()
        speed_report.draw()
    texts = {page: _fill(page.read_text(encoding="utf-8")) for page in FILLED}
    by_code = (which_rule, codes_page, commands_page, playground_page, gallery_page)
    texts |= {page.PAGE: page.text() for page in by_code}
    texts |= {kinks_page.TABLE_PAGE: kinks_page.table_page(), **speed_report.pages()}
    if options.check:
        return _check(texts)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return 0


def _check(texts: dict[Path, str]) -> int:
    """1 if a file differs from its text or shows a picture that is not there."""
    wrong = [path for path, text in texts.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    figures = (AUDIT_FIGURE, policy_page.PICTURE, kinks_page.PICTURE)
    wrong += [path for path in (*op_pages.pictures(), *speed_report.pictures(), *figures) if not path.is_file()]
    for path in wrong:
        print(f"{path.relative_to(ROOT)}: differs from the code. Run scripts/generate_docs.py.", file=sys.stderr)
    return 1 if wrong else 0


def _fill(text: str) -> str:
    """Replace the text between `<!-- NAME ARGUMENTS: generated -->` and `<!-- end -->` by the part of that name."""

    def part(match: re.Match[str]) -> str:
        name, *arguments = match[2].split()
        return f"{match[1]}\n{_PARTS[name](*arguments)}\n{match[3]}"

    return re.sub(r"(<!-- ([\w ]+): generated -->)\n.*?(<!-- end -->)", part, text, flags=re.DOTALL)


# --- text -------------------------------------------------------------------------------------------------------------


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _rule_table() -> str:
    """The rules that most readers choose from, and a link to the others."""
    rows = ["| rule | grad_x outside | saves | linear in grad | also called |", "|---|---|---|---|---|"]
    for rule in (CLAMP.rules[name] for name in _IN_README):
        name = f"`{rule.called}`" + (" (default)" if rule.name == CLAMP.default_rule else "")
        linear = "yes" if rule.is_linear_at(CLAMP.default_edge) else "no"
        formula = rule.formula.replace("|", "\\|")
        rows.append(f"| {name} | {formula} | {what_is_saved(CLAMP, rule)} | {linear} | {rule.also_called} |")
    others = _quoted(name for name in CLAMP.rules if name not in _IN_README)
    return "\n".join([*rows, "", f"Also {others}. [All of them](docs/ops/clamp.md), with pictures and sources."])


def _finding() -> str:
    """The sentences of the report about the strip, from the numbers of the same run."""
    task = TASKS["retarget"]
    assert task.finding is not None
    stored = json.loads(which_rule.RUN.read_text(encoding="utf-8"))["tasks"]["retarget"]["worlds"]["plain"]
    text = task.finding({name: Outcome(numbers) for name, numbers in stored.items()})
    return text.replace(f"With {CLAMP.default_rule} ", f"With our rule `{CLAMP.default_rule}` ")


def _packages() -> str:
    """Two published packages and a loss of torch, before torch 2.14, after it, and pinned. Two scripts measured the figures."""
    losses, diagnoses = (json.loads(file.read_text(encoding="utf-8")) for file in (REAL_PACKAGES, DIAGNOSES))
    before, after = losses
    cases = (before, "x_transformers"), (after, "x_transformers"), (after, "x_transformers_pinned")
    figures = [diagnoses[version][case] for version, case in cases]
    starving = [f"{figure['starved']} of {figure['parameters']}" for figure in figures]
    columns = losses[before]["plain"], losses[after]["plain"], losses[after][CLOSED_ERA]
    of_torchao = [", ".join(f"{float(loss):.3f}" for loss in column["torchao int2 losses"]) for column in columns]
    of_scorer = [column["pairs in order"] for column in columns]
    ranking = (
        "`F.margin_ranking_loss`, with a scorer whose weights start at 0: share of pairs that the scorer ranks right"
    )
    return f"""\
| measured | torch {before} | torch {after} | torch {after}, `pin_edge({CLOSED_ERA!r})` |
|---|---|---|---|
| torchao, 2-bit weights: final losses of three seeds | {" | ".join(of_torchao)} |
| x-transformers, polar positions: parameters that never train | {" | ".join(starving)} |
| {ranking} | {" | ".join(of_scorer)} |"""


def _families() -> str:
    """The families of override: the functions of each, and its edge."""
    rows = [
        "| family | functions, methods, in-place forms, modules, `torch.ops.aten` | default edge |",
        "|---|---|---|",
    ]
    for family, name in SWITCHES.items():
        forms = [form for form in FORMS if family in form.switches and not form.hides]
        functions = dict.fromkeys(name for form in forms for name in form.names)
        rows.append(f"| `{family}` | {_quoted(functions)} | {OPS[name].default_edge or ''} |")
    return "\n".join(rows)


def _conventions() -> str:
    """The families of pin_edge: their functions, the points, and what torch, JAX and TensorFlow do there."""
    names: dict[str, list[str]] = {}  # by the rest of the row
    for family in FAMILIES.values():
        forms = [form for form in FORMS if form.kink is not None and form.kink.family is family]
        functions = dict.fromkeys(name for form in forms for name in form.names)
        conventions = (family.torch, family.others.get("jax", ""), family.others.get("tensorflow", ""))
        texts = family.notes or [f"{part:g}" if isinstance(part, float) else part for part in conventions]
        named = f"`{family.name}`" + (f": {_quoted(functions)}" if [*functions] != [family.name] else "")
        names.setdefault(f"{family.kink} | {' | '.join(texts)}", []).append(named)
    rows = ["| family, and its functions | at | torch | JAX | TensorFlow |", "|---|---|---|---|---|"]
    return "\n".join([*rows, *(f"| {'; '.join(families)} | {rest} |" for rest, families in names.items())])


def _composites() -> str:
    """The functions that scripts/find_composites.py found on any torch, by the ops that they hide; and those that contexts do not reach."""
    functions: dict[str, dict[str, None]] = {}
    for counts in json.loads(COMPOSITES.read_text(encoding="utf-8")).values():
        for name, row in sorted(counts.items()):
            hidden = _quoted(row["hides"]) if row["reached"] == row["samples"] else "no context reaches"
            functions.setdefault(hidden, {})[name.rpartition(".")[2]] = None
    return "\n".join(f"- {hidden}: {_quoted(names)}" for hidden, names in sorted(functions.items()))


def _diagnosis() -> str:
    """The first finding of x-transformers on the newest torch, from scripts/measure_diagnoses.py, without the lines "also"."""
    figures = json.loads(DIAGNOSES.read_text(encoding="utf-8"))
    lines: list[str] = []
    is_also = False
    for line in list(figures.values())[-1]["x_transformers"]["text"]:
        is_also = line.startswith("    also:") or (is_also and line.startswith("     "))
        if line.startswith("parameters:"):
            break
        if line and not is_also:
            lines.append(line)
    return "\n".join(["```text", *lines, "```"])


def _nan_tools() -> str:
    """For each tool: of how many programs it names the line, the cause and a mend; and its cost. benchmarks/nan_tools.py counted them."""
    found = json.loads(NAN_TOOLS.read_text(encoding="utf-8"))
    faults, costs = found["faults"].values(), found["costs"]
    rows = [
        f"| of {len(faults)} programs | line | cause | mend | {' | '.join(costs)} |",
        f"|---|---|---|---|{'---|' * len(costs)}",
    ]
    for tool in next(iter(costs.values())):
        counts = [sum(word in said[tool] for said in faults) for word in ("line", "cause", "mend")]
        rows.append(
            f"| {tool} | {' | '.join(map(str, counts))} | {' | '.join(f'{cost[tool]:.1f} x' for cost in costs.values())} |"
        )
    versions = ", ".join(f"{name} {version.partition('+')[0]}" for name, version in found["versions"].items())
    return "\n".join([*rows, "", f"Measured with {versions}."])


def _audit_inward() -> str:
    """The regions of the report, without the version of torch, on which they do not depend."""

    def bounded(x: Tensor) -> Tensor:
        return pg.clamp(x, -1, 1)

    return _drop_version(str(pg.audit(bounded, -2, 2)).partition("\n\n  linear")[0])


def _drop_version(report: str) -> str:
    return "\n".join(["```text", re.sub(r", torch \S+", "", report, count=1), "```"])


_PARTS: dict[str, Callable[..., str]] = {
    "docstrings": op_pages.docstrings,
    "rules_of": op_pages.rule_table,
    "audit_inward": _audit_inward,
    "nan_tools": _nan_tools,
    "precision": codes_page.precision,
    "diagnosis": _diagnosis,
    "rules": _rule_table,
    "finding": _finding,
    "packages": _packages,
    "policy_differences": policy_page.differences,
    "policy_losses": policy_page.losses,
    "policy_report": policy_page.report,
    "composites": _composites,
    "patches": patches.table,
    "families": _families,
    "conventions": _conventions,
    "speed": speed_report.part,
    **kinks_page.PARTS,
}


# --- figures ----------------------------------------------------------------------------------------------------------


def _run_compare() -> None:
    from pseudograd_tasks.report.sources import run_tasks
    from pseudograd_tasks.report.write import write

    with tempfile.TemporaryDirectory() as folder:
        page = write(run_tasks(tuple(TASKS), jobs=2), Path(folder) / "report")
        which_rule.RUN.parent.mkdir(parents=True, exist_ok=True)
        for name, target in (("strip.png", STRIP), ("results.json", which_rule.RUN)):
            target.write_bytes((page.parent / name).read_bytes())


def _draw_three_gradients() -> None:
    """One forward, three gradients."""
    from matplotlib.figure import Figure

    rules = ["zero", "identity", "inward"]
    titles = [f'clamp(x, -1, 1, rule="{rule}")' for rule in rules]
    figure = Figure(figsize=(9, 4), layout="constrained", dpi=134)
    pg.plot(rules, -1, 1, panels="rules", title=titles, ax=figure.add_subplot())
    figure.savefig(DOCS / "three_gradients.png", metadata={"Software": None})


if __name__ == "__main__":
    sys.exit(main())
