"""Every line of docs/coming_from.md: the code of the page, as it stands there, against the formula written apart."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg

from ..choices import folded
from .lines import LINES, ROWS, Line

GRADS = (1.0, -1.0, 0.5, -0.5, 2.0**-20, -(2.0**-20), 0.0, 1024.0, -1024.0)
CASES = {f"{project}: {line.before}": line for project, lines in LINES.items() for line in lines}
DTYPES = (torch.float64, torch.float32)

every_line = pytest.mark.parametrize("line", CASES.values(), ids=CASES.keys())
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def _inputs(line: Line, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x at, right beside, around and far from every number of the line; with every grad."""
    edges = {
        0.0,
        1.0,
        -1.0,
        *line.truth.points,
        *(v for v in line.truth.names.values() if isinstance(v, float) and abs(v) < 8),
    }
    at = torch.tensor(sorted(edges), dtype=dtype)
    beside = [torch.nextafter(at, torch.full_like(at, side * math.inf)) for side in (-1, 1)]
    around = [at + step for step in (-0.3125, 0.3125, -2.0, 2.0, -30.0, 30.0)]
    points = torch.cat([at, *beside, *around])
    x = points.repeat_interleave(len(GRADS))
    g = torch.tensor(GRADS, dtype=dtype).repeat(len(points))
    g = g * (1 + torch.arange(len(g)) % 7)  # or what a scale or bound gets would cancel in the sum
    return (x.repeat(line.truth.channels, 1), g.repeat(line.truth.channels, 1)) if line.truth.channels else (x, g)


def _names(line: Line, x: Tensor) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(what the code may name, the tensors of it that learn)."""
    learned = {
        key: torch.tensor(v if line.truth.channels else v[0], dtype=x.dtype, requires_grad=True)
        for key, v in line.truth.names.items()
        if isinstance(v, list)
    }
    values: dict[str, Any] = {}
    for key, value in line.truth.names.items():
        if key in learned:
            values[key] = learned[key]
        elif isinstance(value, Tensor):
            values[key] = value.to(x.dtype)
        else:
            values[key] = value(x) if callable(value) else value
    return values, learned


@folded
@every_line
@every_dtype
def test_the_line_of_the_page_gives_their_formula(line: Line, dtype: torch.dtype) -> None:
    x, g = _inputs(line, dtype)
    x.requires_grad_()
    names, learned = _names(line, x)
    y = eval(line.after, {"pg": pg, "torch": torch, "x": x, **names})
    found = torch.autograd.grad(y, [x, *learned.values()], g)
    plain = {key: v.detach().double() if isinstance(v, Tensor) else v for key, v in names.items()}
    expected, grads = line.truth.formula(x.detach().double(), g.double(), **plain)
    assert y.dtype is dtype
    _same(line, y.detach(), expected, "the value", 0.0)
    for name, ours in zip(("x", *learned), found, strict=True):
        # A gradient that is summed may be as wrong as its largest summand.
        slack = 64 * torch.finfo(dtype).eps * g.abs().max().item() if line.truth.subtracts else 0.0
        if ours.shape != x.shape:
            slack = 64 * torch.finfo(dtype).eps * x.abs().max().item() * g.abs().sum().item()
        _same(line, ours, grads[name], f"the gradient of {name}", slack)


@pytest.mark.parametrize("line", [line for line in CASES.values() if line.truth.apart], ids=lambda line: line.before)
def test_where_the_page_says_that_an_edge_differs_it_does(line: Line) -> None:
    x = torch.tensor(line.truth.apart, dtype=torch.float64)
    for at in x.split(1):
        at.requires_grad_()
        names, learned = _names(line, at)
        y = eval(line.after, {"pg": pg, "torch": torch, "x": at, **names})
        ours = torch.autograd.grad(y, [at, *learned.values()], torch.ones(1, dtype=torch.float64))
        plain = {key: v.detach() if isinstance(v, Tensor) else v for key, v in names.items()}
        _, theirs = line.truth.formula(at.detach(), torch.ones(1, dtype=torch.float64), **plain)
        assert any(grad.ne(theirs[name]).any() for name, grad in zip(("x", *learned), ours, strict=True))
        assert "xactly at" in line.differs or line.differs == "As above."


def _same(line: Line, ours: Tensor, theirs: Tensor, what: str, slack: float) -> None:
    theirs = theirs.to(ours.dtype)
    assert ours.shape == theirs.shape, what
    if line.truth.is_exact:
        wrong = ours != theirs
    else:
        info = torch.finfo(ours.dtype)
        wrong = ~((ours - theirs).abs() <= 64 * info.eps * theirs.abs() + 64 * info.tiny + slack)
    assert not wrong.any(), f"{what}: {ours[wrong].tolist()[:3]} instead of {theirs[wrong].tolist()[:3]}"


def test_every_line_of_the_page_has_a_formula_and_uses_us() -> None:
    assert {project: list(rows) for project, rows in ROWS.items()} == {
        project: [line.before for line in lines] for project, lines in LINES.items()
    }
    for line in CASES.values():
        assert "pg." in line.after
        assert not line.differs or line.differs.endswith(".")
