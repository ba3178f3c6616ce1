"""The page docs/playground.html: an op, one or two rules, an edge, bounds and a loss to choose, on curves that the library computed.

Each curve has the points of an even grid, and at every jump a point before, exactly there and after. To move the bounds, the page moves x:
a rule of clamp depends only on (x - min) / (max - min), or with one bound on x - bound. A test checks this.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import op_pages
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.look.curves import Curve, curve_of
from pseudograd.look.gradient import gradient
from pseudograd.look.palette import colour
from pseudograd.public_names import public_path
from pseudograd.rule import BOUNDED, OPS, Edge, Op

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "playground.html"
TEMPLATE = ROOT / "scripts" / "playground.html"
GRADS = (1.0, -1.0)
_FIXED = ("relu", "relu6")  # ops with fixed bounds
_POINTS = 65
_BESIDE = 1e-4  # the distance of a point before or after a jump, as a share of the range


def text() -> str:
    pages = {op.name: op_pages.page_of(name) for name, ops in op_pages.families().items() for op in ops}
    records = [{"page": f"ops/{pages[op.name]}.html", **_record(op)} for op in OPS.values()]
    data = json.dumps(records, separators=(",", ":"), ensure_ascii=False)
    return TEMPLATE.read_text(encoding="utf-8").replace("/* data */ []", data)


def _record(op: Op) -> dict[str, Any]:
    movable = op.inputs == BOUNDED and op.name not in _FIXED
    names = [name for name in op.rules if name != "custom"]  # it needs a function of the reader
    x = grid(op, [curve_of(name, op, op.picture, None, False, 0) for name in names])
    return {
        "name": op.name,
        "does": (inspect.getdoc(attrgetter(public_path(op.name))(pg)) or "").splitlines()[0].replace("`", ""),
        "bounds": list(op.picture.others) if movable else None,
        "x": _short(x),
        "y": _short(curve_of(names[0], op, op.picture, None, False, 0).f(x)),
        "edges": [str(edge) for edge in op.edges],
        "edge": str(op.default_edge) if op.edges else None,
        "rules": [_rule(op, name, x) for name in names],
        "rule": op.default_rule,
    }


def grid(op: Op, curves: list[Curve]) -> Tensor:
    picture = op.picture
    low, high = picture.low, picture.high
    jumps = {*picture.bounds, *picture.jumps, *(jump for curve in curves for jump in curve.jumps)}
    off = _BESIDE * (high - low)
    near = [at for jump in jumps for at in (jump - off, jump, jump + off) if low < at < high]
    even = [at for at in torch.linspace(low, high, _POINTS).tolist() if all(abs(at - jump) > off for jump in jumps)]
    return torch.tensor(sorted({*near, *even}), dtype=torch.float64)


def _rule(op: Op, name: str, x: Tensor) -> dict[str, Any]:
    rule = op.rules[name]
    return {
        "name": name,
        "formula": rule.formula,
        "colour": colour(name),
        "linear": rule.is_linear_at(op.default_edge) if op.edges else rule.is_linear,
        "scales": _scales(op, name, x),
        "slopes": dict(_slopes_by_edge(op, name, x)),
    }


def _slopes_by_edge(op: Op, name: str, x: Tensor) -> Iterator[tuple[str, Any]]:
    """For the default edge, the gradient at every x. For others, the points where it differs: [index, a gradient for each of GRADS]."""
    before = None
    for edge in sorted(op.edges or (None,), key=lambda edge: edge != op.default_edge):
        gradients = slopes(op, name, edge, x)
        if before is None:
            before = gradients
            # "null" is the key of a missing edge in JavaScript.
            yield str(edge) if op.edges else "null", [_short(row) for row in gradients]
        else:
            places = (gradients != before).any(0).nonzero().flatten().tolist()
            yield str(edge), [[place, *_short(gradients[:, place])] for place in places]


def slopes(op: Op, name: str, edge: Edge | None, x: Tensor) -> Tensor:
    f = curve_of(name, op, op.picture, edge, False, 0).f
    return torch.stack([gradient(f, x, grad) for grad in GRADS])


def _scales(op: Op, name: str, x: Tensor) -> bool:
    """Is the gradient twice as large if grad is? Only then can the page show a loss whose slope varies."""
    f = curve_of(name, op, op.picture, op.default_edge if op.edges else None, False, 0).f
    return all(torch.allclose(gradient(f, x, 2 * grad), 2 * gradient(f, x, grad)) for grad in GRADS)


def _short(values: Tensor) -> list[float]:
    return [round(value, 4) + 0.0 for value in values.tolist()]
