"""The page docs/gallery.md: a card with a picture for each set of rules. A reader can filter the cards by field and by property."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import op_pages

import pseudograd as pg
from pseudograd.rule import Op

PAGE = Path(__file__).resolve().parent.parent / "docs" / "gallery.md"

# The fields that use an op. A test checks that each op has one.
FIELDS = {
    "images": ("Images and rendering", "clamp lower_bound upper_bound replace_grad hardtanh"),
    "quantisation": ("Quantisation", "fake_quantize round floor ceil trunc clamp"),
    "spiking": ("Spiking and binary networks", "heaviside sign hardtanh"),
    "compression": ("Learned compression", "lower_bound round vector_quantize"),
    "codes": ("Vector quantisation, sparse codes", "vector_quantize jumprelu replace_grad"),
    "policies": ("Reinforcement learning, control", "policy_loss clamp clip_grad"),
    "networks": ("Activations with less memory", "gelu silu leaky_relu hardsigmoid relu relu6 abs"),
    "gradients": ("Gradients alone", "scale_grad reverse_grad clip_grad replace_grad"),
}
PROPERTIES = {
    "linear": "gradients add up by default",
    "bits": "keeps bits instead of x",
    "edges": "choice of edge",
    "rules": "choice of rule",
}


def text() -> str:
    families = op_pages.families()
    by_width = sorted(families.values(), key=lambda ops: (ops[0].name != "clamp", not _is_wide(ops[0])))
    cards = [_card_of(ops) for ops in by_width]
    cards.append(
        _card(
            "vector_quantize",
            ["vector_quantize"],
            (inspect.getdoc(pg.codebook.vector_quantize) or "").splitlines()[0],
            ["linear", "rules"],
        )
    )
    return (
        "\n\n".join(
            [
                "# Gallery",
                "Every set of rules: the value of an op in grey, and below it the gradient that each rule passes on. "
                "Choose fields or properties; a picture leads to formulas, sources and an example.",
                _buttons(),
                "::::{grid} 1 1 2 2\n:gutter: 3\n:class-container: gallery\n\n" + "\n\n".join(cards) + "\n\n::::",
                "```{toctree}\n:hidden:\n:glob:\nops/*\n```",
            ]
        )
        + "\n"
    )


def _card_of(ops: list[Op]) -> str:
    first, names = ops[0], [op.name for op in ops]
    sentence = op_pages.sentence_of(first)
    return _card(op_pages.page_of(first.name), names, sentence, _properties(first), is_wide=_is_wide(first))


def _is_wide(op: Op) -> bool:
    """A picture with a panel for each of several rules takes the whole width."""
    return len(op.rules) > 1


def _properties(op: Op) -> list[str]:
    rule = op.rules[op.default_rule]
    said = {
        "linear": rule.is_linear_at(op.default_edge),
        "bits": any(rule.sides is not None or rule.steps is not None for rule in op.rules.values()),
        "edges": bool(op.edges),
        "rules": len(op.rules) > 1,
    }
    return [name for name, holds in said.items() if holds]


def _card(page: str, names: list[str], sentence: str, properties: list[str], *, is_wide: bool = False) -> str:
    fields = [field for field, (_, members) in FIELDS.items() if {*names} & {*members.split()}]
    options = {
        "link": f"ops/{page}",
        "link-type": "doc",
        "img-top": f"ops/{names[0]}.svg",
        **({"columns": "12"} if is_wide else {}),
        "class-item": " ".join(f"is-{name}" for name in [*fields, *properties]),
    }
    lines = "\n".join(f":{option}: {value}" for option, value in options.items())
    return f":::{{grid-item-card}} {', '.join(names)}\n{lines}\n\n{sentence}\n:::"


def _buttons() -> str:
    """The names and titles of the buttons, which gallery.js makes."""
    rows = []
    for group, names in (("field", {field: title for field, (title, _) in FIELDS.items()}), ("property", PROPERTIES)):
        buttons = json.dumps(names, separators=(",", ":"))
        rows.append(
            f"<p class='gallery-filter' role='group' aria-label='Filter by {group}' data-buttons='{buttons}'></p>"
        )
    return "```{raw} html\n" + "\n".join(rows) + '\n<script src="_static/gallery.js" defer></script>\n```'
