"""The generated parts of docs/ops/*.md: tables of rules, lists of docstrings, and the pictures."""

from __future__ import annotations

import inspect
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

import pseudograd as pg
from pseudograd.look.rule_table import what_is_saved
from pseudograd.public_names import public_path
from pseudograd.rule import OPS, Op, Rule

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "ops"


def families() -> dict[str, list[Op]]:
    """The ops that share their rules, by the name of the first one."""
    by_rules: dict[str, list[Op]] = {}
    for op in OPS.values():
        by_rules.setdefault(op.rule_set, []).append(op)
    return {ops[0].name: ops for ops in by_rules.values()}


def pages() -> list[Path]:
    return sorted(FOLDER.glob("*.md"))


def page_of(family: str) -> str:
    """The page that shows the picture of these ops."""
    (page,) = (page.stem for page in pages() if f"]({family}.svg)" in page.read_text(encoding="utf-8"))
    return page


def pictures() -> list[Path]:
    return [FOLDER / f"{name}.svg" for name in families()]


def docstrings(*names: str) -> str:
    """Directives by which Sphinx inserts the docstring of every op of these families."""
    ops = [op for name in names for op in families()[name]]
    lines = [f".. autofunction:: pseudograd.{public_path(op.name)}" for op in ops]
    return "\n".join(["```{eval-rst}", *lines, "```"])


def sentence_of(op: Op) -> str:
    """The first line of its docstring."""
    function: Any = attrgetter(public_path(op.name))(pg)
    return (inspect.getdoc(function) or "").splitlines()[0].replace("|x|", "\\|x\\|")


def rule_table(*names: str) -> str:
    """The rules of one family; or of several families, with a column for the op."""
    first = "rule" if len(names) == 1 else "op | rule"
    rows = [
        f"| {first} | formula | saves | linear in grad | also called | source |",
        f"|{'---|' * (first.count('|') + 6)}",
    ]
    for name in names:
        op = OPS[name]
        start = [] if len(names) == 1 else [f"`{name}`"]
        rows += [_row(start, op, rule) for rule in op.rules.values()]
    return "\n".join(rows)


def _row(start: list[str], op: Op, rule: Rule) -> str:
    is_default = rule.name == op.default_rule and len(op.rules) > 1
    cells = (
        *start,
        f"`{rule.called}`" + (", the default" if is_default else ""),
        rule.formula,
        what_is_saved(op, rule),
        "yes" if rule.is_linear_at(op.default_edge) else "no",
        rule.also_called or "–",
        rule.source,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# --- pictures ---------------------------------------------------------------------------------------------------------


def save_svg(figure: Any, path: Path) -> None:
    """Store a figure so that the same figure gives the same file, without a date. Its text stays text."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "pseudograd", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def draw() -> None:
    """The picture of each page."""
    import matplotlib

    for ops in families().values():
        is_wide = len(ops[0].rules) in (4, 7, 8)  # four columns, which a page shows at two thirds of their size
        with matplotlib.rc_context({"font.size": 12 if is_wide else 10}):
            _draw(ops[0])


def _draw(op: Op) -> None:
    """A column for each rule, in rows of at most four."""
    from matplotlib import pyplot

    rules: list[Any] = []
    titles = []
    for rule in op.rules.values():
        is_custom = None in rule.parameters.values()
        rules.append(pg.rules.custom(lambda x: 1 - torch.tanh(x) ** 2) if is_custom else rule.name)
        titles.append("custom(slope of tanh)" if is_custom else rule.called if len(rule.parameters) == 1 else rule.name)
    if len(rules) == 1 and (inputs := _inputs_of_picture(op)):
        titles = [f"{op.name}(x, {', '.join(inputs)})"]  # the gradient depends on these
    drawn = pg.plot(rules, op=op.name, panels="rules", title=titles)
    save_svg(drawn.figure, FOLDER / f"{op.name}.svg")
    pyplot.close(drawn.figure)


def _inputs_of_picture(op: Op) -> list[str]:
    """The arguments after x with which the picture is drawn."""
    names = inspect.signature(attrgetter(public_path(op.name))(pg)).parameters
    pairs = () if op.picture.inputs_of else zip(op.inputs[1:], op.picture.others, strict=True)
    return [f"{name}={value!r}" for name, value in pairs if value is not None and name in names]
