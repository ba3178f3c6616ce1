"""The pages docs/ops/*.md and their pictures, derived from the rule table. `generate_docs.py` writes and checks them."""

from __future__ import annotations

import inspect
import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import mathematics
import op_examples
import short_svg
import torch
import vector_page

import pseudograd as pg
from pseudograd.look.rule_table import what_is_saved
from pseudograd.public_names import public_path
from pseudograd.rule import OPS, Op

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "ops"
_EDGE_TEXT = {
    "closed": ("grad", "torch ≤ 2.13, straight-through libraries"),
    "open": ("0", "torch ≥ 2.14 with numbers; relu, hardtanh"),
    "half": ("0.5 * grad", "torch ≥ 2.14 with tensors; maximum, minimum"),
    "inward": ("grad, or 0 where grad points strictly outward", "the projected gradient of a box"),
}
_DRAWN = {
    "replace_grad": "`replace_grad(torch.sign(x), torch.tanh(x))`, the value of a step with the gradient of tanh.",
    "policy_loss": "`policy_loss(x, 1, low=0.2, high=0.28)` over the log ratio x, for an advantage of 1. Over the ratio, both signs and "
    "all objectives: [policy_clips.md](../policy_clips.md).",
}


def slope_of_tanh(x: torch.Tensor) -> torch.Tensor:
    """What the picture of `custom` shows."""
    return 1 - torch.tanh(x) ** 2


def pages() -> dict[Path, str]:
    """The text of every page, by the path it belongs to."""
    own = {FOLDER / "README.md": _index(), FOLDER / f"{vector_page.NAME}.md": vector_page.text()}
    return own | {FOLDER / f"{op.name}.md": _page(op) for op in OPS.values()}


def pictures() -> list[Path]:
    return [FOLDER / f"{name}.svg" for name in (*OPS, vector_page.NAME)]


# --- text -------------------------------------------------------------------------------------------------------------


def _index() -> str:
    rows = ["| op | what it does | rules | edges |", "|---|---|---|---|"]
    for op in OPS.values():
        rules = ", ".join(f"`{name}`" for name in op.rules)
        edges = ", ".join(f"`{edge}`" for edge in op.edges) or "–"
        rows.append(f"| [{op.name}]({op.name}.md) | {_sentence(op)} | {rules} | {edges} |")
    return "\n".join(
        [
            "# The ops",
            "",
            "One page for each op of the rule table: formulas, picture of the backward, tests. Written by `scripts/generate_docs.py`.",
            "",
            *rows,
            "",
            "[vector_quantize](vector_quantize.md) and its losses, `clamp_`, `straight_through` and `@surrogate` are functions built on",
            "these; their docstrings describe them. `pseudograd.nn` has the modules.",
            "",
        ]
    )


def _page(op: Op) -> str:
    parts = [
        f"# {op.name}",
        _sentence(op),
        f"```python\n{_signature(op)}\n```",
        "## Rules",
        _how_to_read(op),
        _rule_table(op),
        *_mathematics(op),
        f"![{op.name}: forward and backward of each rule]({op.name}.svg)",
        f"Drawn: {_drawn(op)}",
        *_edges(op),
        *op_examples.section(op.name),
        "## Tests",
        f"```sh\npytest -k {op.name}\n```",
        "Values, gradients against a scalar reference written apart, derivatives and transforms of every row: `tests/contract/`.",
        f"Source: [{_source(op)}](../../{_source(op)}). All ops: [README.md](README.md).",
    ]
    return "\n\n".join(parts) + "\n"


def _function(op: Op) -> Any:
    return attrgetter(public_path(op.name))(pg)


def _signature(op: Op) -> str:
    """As it is written: annotations come as strings, and need no quotes of their own."""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(_function(op))))
    return f"pseudograd.{public_path(op.name)}{text}".replace("'", '"')


def _sentence(op: Op) -> str:
    return (inspect.getdoc(_function(op)) or "").splitlines()[0].replace("|x|", "\\|x\\|")


def _source(op: Op) -> str:
    return Path(inspect.getsourcefile(_function(op)) or "").resolve().relative_to(ROOT).as_posix()


def _how_to_read(op: Op) -> str:
    lines = ["`grad` is dL/dy."]
    if op.has_outside:
        lines.append(
            "The formula is what x gets outside the bounds; inside it gets grad, and at a bound the edge decides."
        )
    if op.rule_set == "step":
        lines.append("u = x / scale. `scale` is a width in the unit of x, `height` a factor.")
    if op.name == "round":
        lines.append("step is 10^-decimals, the distance between two values of y.")
    if op.name == "jumprelu":
        lines.append(
            "The formula is what the threshold gets, with u = (x - threshold) / bandwidth, before it is summed to the shape of the "
            "threshold; what stands behind threshold is a density of u. x gets grad where x > threshold, else 0, and with window_to_x "
            "minus the formula besides."
        )
    if op.rule_set == "policy":
        lines.append(
            "A is the advantage and r = exp(log_ratio); the clip is blocked where A > 0 and r > 1 + high, and where A < 0 and r < 1 - low. "
            'w is r; with `space="log"` it is the clipped r, and for `inward` and `leaky_inward` r where the clip is not blocked. '
            '`rule={"positive": ..., "negative": ...}` takes one of these where A > 0, and one elsewhere.'
        )
    if len(op.rules) > 1:
        lines.append(f"The default is `{op.default_rule}`.")
    return " ".join(lines)


def _rule_table(op: Op) -> str:
    rows = ["| rule | formula | saves | linear in grad | also called | source |", "|---|---|---|---|---|---|"]
    for rule in op.rules.values():
        cells = (
            f"`{rule.called}`",
            rule.formula,
            what_is_saved(op, rule),
            "yes" if rule.is_linear_at(op.default_edge) else "no: no forward mode",
            rule.also_called or "–",
            rule.source,
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _mathematics(op: Op) -> list[str]:
    """The column of formulas once more, for who reads fractions."""
    names = [rule.name.replace("_", r"\_") for rule in op.rules.values()]
    formulas = [mathematics.of_rule(rule.formula) for rule in op.rules.values()]
    rows = [rf"\texttt{{{name}}} \quad & {formula}" for name, formula in zip(names, formulas, strict=True)]
    told = "As mathematics, with g for grad"
    told += (
        " and x with an index for the bounds; each line is dL/dx outside them:"
        if op.has_outside
        else f"; each line is dL/d{op.formula_of}:"
    )
    block = " \\\\[4pt]\n".join(rows)
    return [
        told,
        f"```math\n\\begin{{aligned}}\n{block}\n\\end{{aligned}}\n```",
    ]


def _drawn(op: Op) -> str:
    picture = op.picture
    if picture.of is not None:
        return _DRAWN[op.name]
    edge = [f"edge={op.default_edge!r}"] if op.edges else []
    call = ", ".join(["x", *_given(op), *edge]).replace("'", '"')
    custom = " `custom` is drawn with the slope of tanh." if "custom" in op.rules else ""
    return f"`{op.name}({call})` above, and what each rule makes of dL/dy = 1 and -1 below.{custom}"


def _given(op: Op) -> list[str]:
    """The arguments behind x that the picture is drawn with."""
    return [
        f"{name}={value!r}"
        for name, value in zip(op.inputs[1:], op.picture.others, strict=True)
        if value is not None and name in inspect.signature(_function(op)).parameters
    ]


def _listed(names: list[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)


def _edges_of_policy_loss() -> list[str]:
    return [
        "## Edges",
        "What passes where the ratio is exactly on a bound. `identity` and `reinforce` ignore the edge, and a rule of your own decides "
        "there itself.",
        "\n".join(
            [
                "| edge | grad_x | as in |",
                "|---|---|---|",
                "| `closed` (default) | -grad * A * w | min(r A, clamp(r) A) on torch ≤ 2.13 |",
                "| `open` | 0 | – |",
                "| `half` | -0.5 * grad * A * w | min(r A, clamp(r) A) on torch ≥ 2.14 |",
            ]
        ),
    ]


def _edges(op: Op) -> list[str]:
    if not op.edges:
        return []
    if op.name == "abs":
        return [
            "## Edges",
            "`edge` is the slope at 0 itself: 0 (the default), 1 or -1; 1 and -1 are subgradients, too.",
        ]
    if op.name == "policy_loss":
        return _edges_of_policy_loss()
    where = "where the code is `quant_min` or `quant_max`" if op.name == "fake_quantize" else "exactly at a bound"
    ignoring = _listed([rule.name for rule in op.rules.values() if rule.ignores_edge])
    rows = ["| edge | grad_x | as in |", "|---|---|---|"]
    for edge in op.edges:
        formula, same = _EDGE_TEXT[str(edge)]
        rows.append(f"| `{edge}`{' (default)' if edge == op.default_edge else ''} | {formula} | {same} |")
    return [
        "## Edges",
        f"What x gets {where}. {ignoring} ignore{'s' if ' and ' not in ignoring else ''} the edge.",
        "\n".join(rows),
    ]


# --- pictures ---------------------------------------------------------------------------------------------------------


def draw() -> None:
    import matplotlib

    FOLDER.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"font.size": 10}):
        for op in OPS.values():
            _draw(op)
        vector_page.draw(FOLDER)


def _draw(op: Op) -> None:
    """A column for each rule, in rows of at most four."""
    from matplotlib import pyplot

    rules: list[Any] = []
    titles = []
    for rule in op.rules.values():
        is_custom = None in rule.parameters.values()
        rules.append(pg.rules.custom(slope_of_tanh) if is_custom else rule.name)
        titles.append("custom(slope of tanh)" if is_custom else rule.called if len(rule.parameters) == 1 else rule.name)
    if len(rules) == 1 and op.picture.of is None and (given := _given(op)):
        titles = [f"{op.name}(x, {', '.join(given)})"]  # what dL/dx depends on: the one rule is told by the op's name
    drawn = pg.plot(rules, op=op.name, panels="rules", title=titles)
    short_svg.save(drawn.figure, FOLDER / f"{op.name}.svg")
    pyplot.close(drawn.figure)
