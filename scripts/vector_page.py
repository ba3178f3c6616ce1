"""The page of `vector_quantize`, which is no row of the rule table: it returns two things, and its gradients are vectors."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import op_examples
import short_svg
import torch

import pseudograd as pg

NAME = "vector_quantize"
RULES = {
    "identity": ("grad", "van den Oord, Vinyals & Kavukcuoglu (2017)"),
    "rotation": (
        "\\|q\\| / \\|x\\| * R^T grad, where R turns the direction of x into that of its code q",
        "Fifty et al. (2024)",
    ),
}


def text() -> str:
    sentence = (inspect.getdoc(pg.codebook.vector_quantize) or "").splitlines()[0]
    rows = [f"| `{name}` | {formula} | yes | {source} |" for name, (formula, source) in RULES.items()]
    return "\n".join(
        [
            "# vector_quantize",
            "",
            sentence,
            "",
            "```python",
            'codes, indices = pseudograd.codebook.vector_quantize(x, codebook, rule="identity")  # or "rotation"',
            "loss = task(codes) + pseudograd.codebook.codebook_loss(x, codebook, indices)",
            "loss = loss + 0.25 * pseudograd.codebook.commitment_loss(x, codes)",
            "```",
            "",
            "## Rules",
            "",
            "`grad` is dL/dcode, a vector. The codebook gets no gradient from the codes.",
            "",
            "| rule | grad_x | linear in grad | source |",
            "|---|---|---|---|",
            *rows,
            "",
            "![vector_quantize: what each vector gets under both rules](vector_quantize.svg)",
            "",
            "Drawn: five vectors, the code each is nearest to, and the gradient each gets when its code gets (1, 0). `rotation` keeps the",
            "angle that grad makes with the code, and scales it by how much longer the code is than the vector.",
            "",
            *"\n\n".join(op_examples.section(NAME)).split("\n"),
            "",
            "## Tests",
            "",
            "```sh",
            "pytest -k vector_quantize",
            "```",
            "",
            "Source: [src/pseudograd/ops/codebook.py](../../src/pseudograd/ops/codebook.py). All ops: [README.md](README.md).",
            "",
        ]
    )


def draw(folder: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for panel, rule in zip(panels, RULES, strict=True):
        _draw_panel(panel, rule)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    short_svg.save(figure, folder / f"{NAME}.svg")


def _draw_panel(panel: Any, rule: str) -> None:
    codebook = torch.tensor([[2.0, 0.3], [-1.2, 1.5], [-1.5, -1.6]])
    x = torch.tensor([[1.3, 1.2], [2.6, -0.9], [-0.4, 1.9], [-2.5, 0.9], [-0.5, -0.9]], requires_grad=True)
    codes, _ = pg.codebook.vector_quantize(x, codebook, rule=rule)
    codes[:, 0].sum().backward()
    start, end, grad = x.detach(), codes.detach(), x.grad
    assert grad is not None
    for a, b in zip(start.tolist(), end.tolist(), strict=True):
        panel.plot([a[0], b[0]], [a[1], b[1]], color="#8a8a8a", linewidth=1, linestyle=":")
    arrows = {"angles": "xy", "scale_units": "xy", "scale": 1.0, "width": 0.008}
    panel.quiver(*codebook.T.tolist(), [1.0] * 3, [0.0] * 3, color="#8a8a8a", label="grad of the code", **arrows)
    panel.quiver(*start.T.tolist(), *grad.T.tolist(), color="#0072B2", label="grad_x", **arrows)
    panel.plot(*start.T.tolist(), "o", color="#0072B2", markersize=6, label="x")
    panel.plot(*codebook.T.tolist(), "s", color="#555555", markersize=8, label="code")
    panel.axhline(0, color="#dddddd", linewidth=0.8, zorder=0)
    panel.axvline(0, color="#dddddd", linewidth=0.8, zorder=0)
    panel.set(title=rule, xlabel="first element", xlim=(-3.2, 4.2), ylim=(-2.6, 2.8), aspect="equal")
    if rule == "identity":
        panel.set_ylabel("second element")
