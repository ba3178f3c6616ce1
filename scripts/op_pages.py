"""The pages docs/ops/*.md and their pictures, from the table of ops: one page for the ops that share their rules.

docs/ops/examples.md and docs/ops/vector_quantize.md are written by hand.
"""

from __future__ import annotations

import inspect
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

import pseudograd as pg
from pseudograd.look.rule_table import what_is_saved
from pseudograd.public_names import public_path
from pseudograd.rule import OPS, Op

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "ops"
BY_HAND = ("examples.md", "vector_quantize.md", "vector_quantize.svg")
_EDGES = {
    "closed": ("grad", "torch ≤ 2.13, straight-through libraries"),
    "open": ("0", "torch ≥ 2.14 with numbers; relu, hardtanh"),
    "half": ("0.5 * grad", "torch ≥ 2.14 with tensors; maximum, minimum"),
    "inward": ("grad, or 0 where a descent step would move x further out", "the projected gradient of a box"),
}
# By set of rules: how to read the formulas.
_NOTES = {
    "step": "u = x / scale. `scale` is a width in the unit of x, `height` a factor. The picture shows `custom` with the slope of tanh.",
    "rounding": "step is 10^-decimals, the distance between two values of y. The last two rules are those of `round` alone.",
    "jumprelu": "The formula is the gradient of the threshold, with u = (x - threshold) / bandwidth, before it is summed to the shape of "
    "the threshold; the factor behind threshold is a density of u. x gets grad where x > threshold, else 0, and with window_to_x minus the "
    "formula besides.",
    "policy": "A is the advantage and r = exp(log_ratio); the clip is blocked where A > 0 and r > 1 + high, and where A < 0 and "
    'r < 1 - low. w is r; with `space="log"` it is the clipped r, and for rules that see the sign of A it is r where the clip is not '
    'blocked. `rule={"positive": ..., "negative": ...}` takes a rule for A > 0, and another rule elsewhere. The picture is over the log '
    "ratio, for an advantage of 1. Over the ratio, both signs and all objectives: [policy_clips.md](../policy_clips.md). At a bound the "
    "edge gives a share of -grad * A * w: `closed` all, `half` half of it, `open` nothing.",
    "abs": "`edge` is the slope at 0 itself: 0 (the default), 1 or -1; 1 and -1 are subgradients, too.",
    "replace_grad": "The picture shows `replace_grad(torch.sign(x), torch.tanh(x))`, the value of a step with the gradient of tanh.",
}


def families() -> dict[str, list[Op]]:
    """The ops of each page, by its name: that of the first op with these rules."""
    by_rules: dict[str, list[Op]] = {}
    for op in OPS.values():
        by_rules.setdefault(op.rule_set, []).append(op)
    return {ops[0].name: ops for ops in by_rules.values()}


def pages() -> dict[Path, str]:
    """The text of every page, by its path."""
    return {
        FOLDER / "README.md": _index(),
        **{FOLDER / f"{name}.md": _page(ops) for name, ops in families().items()},
    }


def pictures() -> list[Path]:
    return [FOLDER / f"{name}.svg" for name in families()]


def _index() -> str:
    rows = ["| op | what it does | rules | edges |", "|---|---|---|---|"]
    for page, ops in families().items():
        rules = ", ".join(f"`{name}`" for name in ops[0].rules)
        edges = ", ".join(f"`{edge}`" for edge in ops[0].edges) or "–"
        rows += [
            f"| [{op.name}]({page}.md) | {sentence_of(op)} | {rules if op is ops[0] else '″'} | {edges} |" for op in ops
        ]
    return (
        "# The ops\n\nA page for each set of rules: formulas and a picture of the backward. Written by `scripts/generate_docs.py`.\n\n"
        + "\n".join(rows)
        + "\n\n[vector_quantize](vector_quantize.md) and its losses, `clamp_`, `straight_through` and `@surrogate` are functions built on\n"
        "these; their docstrings describe them. `pseudograd.nn` has the modules. [Each op inside a network](examples.md).\n"
    )


def _page(ops: list[Op]) -> str:
    op, source = ops[0], Path(inspect.getsourcefile(_function(ops[0])) or "").resolve().relative_to(ROOT).as_posix()
    examples = ", ".join(f"[{each.name}](examples.md#{each.name})" for each in ops)
    parts = [
        f"# {', '.join(each.name for each in ops)}",
        *(f"`{_signature(each)}`\n\n{sentence_of(each)}" for each in ops),
        f"![{op.name}: forward and backward of each rule]({op.name}.svg)",
        f"Above: `{_call(op)}`. Below: the dL/dx of each rule for dL/dy = 1 and for dL/dy = -1.",
        "## Rules",
        _how_to_read(op),
        _rule_table(ops),
        *_edges(op),
        f"Inside a network: {examples}. Source: [{source}](../../{source}). Tests: `pytest -k {op.name}`. All ops: [README.md](README.md).",
    ]
    return "\n\n".join(parts) + "\n"


def _function(op: Op) -> Any:
    return attrgetter(public_path(op.name))(pg)


def _signature(op: Op) -> str:
    """The call with all arguments and their defaults. The types are in the reference."""
    signature = inspect.signature(_function(op))
    plain = [part.replace(annotation=inspect.Parameter.empty) for part in signature.parameters.values()]
    text = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return f"pg.{public_path(op.name)}{text}".replace("'", '"')


def sentence_of(op: Op) -> str:
    """The first line of its docstring."""
    return (inspect.getdoc(_function(op)) or "").splitlines()[0].replace("|x|", "\\|x\\|")


def _how_to_read(op: Op) -> str:
    lines = ["`grad` is dL/dy."]
    if op.has_outside:
        lines.append(
            "The formula is the gradient of x outside the bounds; inside x gets grad, and at a bound the edge decides."
        )
        two = ", ".join(f"`{rule.name}`" for rule in op.rules.values() if rule.requires)
        lines += [f"Only ops with two bounds have {two}."] if two else []
    lines += [_NOTES[op.rule_set]] if op.rule_set in _NOTES else []
    lines += [f"The default is `{op.default_rule}`."] if len(op.rules) > 1 else []
    return " ".join(lines)


def _rule_table(ops: list[Op]) -> str:
    rows = ["| rule | formula | saves | linear in grad | also called | source |", "|---|---|---|---|---|---|"]
    for rule in ops[0].rules.values():
        cells = (
            f"`{rule.called}`",
            rule.formula,
            what_is_saved(ops[0], rule),
            "yes" if rule.is_linear_at(ops[0].default_edge) else "no: no forward mode",
            rule.also_called or "–",
            rule.source,
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _call(op: Op) -> str:
    edge = [f'edge="{op.default_edge}"'] if "closed" in op.edges else [f"edge={edge}" for edge in op.edges[:1]]
    return f"{op.name}({', '.join(['x', *_inputs_of_picture(op), *edge])})"


def _inputs_of_picture(op: Op) -> list[str]:
    """The arguments behind x with which the picture is drawn."""
    names = inspect.signature(_function(op)).parameters
    pairs = () if op.picture.of else zip(op.inputs[1:], op.picture.others, strict=True)
    return [f"{name}={value!r}" for name, value in pairs if value is not None and name in names]


def _edges(op: Op) -> list[str]:
    if not set(op.edges) >= {*_EDGES}:
        return []
    ignoring = ", ".join(f"`{rule.name}`" for rule in op.rules.values() if rule.ignores_edge)
    rows = ["| edge | grad_x | as in |", "|---|---|---|"]
    for edge, (formula, same) in _EDGES.items():
        rows.append(f"| `{edge}`{' (default)' if edge == op.default_edge else ''} | {formula} | {same} |")
    return [
        "## Edges",
        f"The gradient of x exactly at a bound. These rules ignore the edge: {ignoring}.",
        "\n".join(rows),
    ]


# --- pictures ---------------------------------------------------------------------------------------------------------


def save_svg(figure: Any, path: Path) -> None:
    """The same file for the same figure: no date, and text is text."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "pseudograd", "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def draw() -> None:
    """The picture of each page."""
    import matplotlib

    with matplotlib.rc_context({"font.size": 10}):
        for ops in families().values():
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
