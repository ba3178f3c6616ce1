"""Bounds that half precision cannot hold, under Inductor, which computes it in float32: "at the bound" is the rounded bound there too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg

from ..choices import slow_but

LOW, HIGH = -0.3, 0.7
Function = Callable[[Tensor], Tensor]


def _clamp(**how: Any) -> Function:
    return lambda x: pg.clamp(x, LOW, HIGH, **how)


EXACT: dict[str, Function] = {
    **{f"zero/{edge}": _clamp(rule="zero", edge=edge) for edge in ("closed", "open", "half", "inward")},
    **{f"inward/{edge}": _clamp(rule="inward", edge=edge) for edge in ("closed", "open")},
    "sign/half": _clamp(rule="sign", edge="half"),
    "leaky/open": _clamp(rule=pg.rules.leaky(0.7), edge="open"),
    "fused on both sides": lambda x: pg.clamp(x * 1, LOW, HIGH, rule="zero", edge="open") * 2,
    "lower_bound": lambda x: pg.lower_bound(x, LOW, rule="zero", edge="open"),
    "clip_grad": lambda x: pg.clip_grad(x, HIGH),
    "window": lambda x: pg.sign(x, rule=pg.rules.window(HIGH, 0.7)),
    "fake_quantize": lambda x: pg.fake_quantize(x, HIGH / 3, 0, -2, 3),
    "a tensor and a number": lambda x: pg.clamp(x, torch.full_like(x, LOW), HIGH, rule="zero"),
}
# Several roundings one after the other, which Inductor leaves out: two units in the last place.
NEAR: dict[str, Function] = {
    "elastic": _clamp(rule="elastic", edge="open"),
    "inverting": _clamp(rule="inverting"),
}


def _points(dtype: torch.dtype) -> Tensor:
    """Both rounded bounds, the numbers beside them, and others."""
    bounds = torch.tensor([LOW, HIGH, -HIGH], dtype=torch.float64).to(dtype)
    beside = [torch.nextafter(bounds, torch.full_like(bounds, side * torch.inf)) for side in (-1, 1)]
    return torch.cat([bounds, *beside, torch.tensor([-2.0, 0.0, 0.05, 2.0], dtype=dtype)])


SOME = ("zero/open", "fused on both sides", "window")


@pytest.mark.program
@pytest.mark.parametrize(
    ("dtype", "names"),
    slow_but(
        [(torch.bfloat16, SOME)],
        [(torch.bfloat16, SOME), *((dtype, (*EXACT, *NEAR)) for dtype in (torch.bfloat16, torch.float16))],
    ),
)
def test_gradients_at_rounded_bounds_are_those_of_the_eager_call(dtype: torch.dtype, names: tuple[str, ...]) -> None:
    functions = {name: {**EXACT, **NEAR}[name] for name in names}

    def all_of_them(x: Tensor) -> Tensor:
        return torch.stack([f(row) for f, row in zip(functions.values(), x)])  # noqa: B905  Dynamo on torch 2.8

    compiled = torch.compile(all_of_them, backend="inductor", fullgraph=True)
    points = _points(dtype)
    x = points.repeat(len(functions), 1)
    for size in (0.3, -0.3, 0.9, -0.9):
        results = []
        for f in (all_of_them, compiled):
            leaf = x.clone().requires_grad_()
            y = f(leaf)
            results.append((y.detach(), *torch.autograd.grad(y, leaf, torch.full_like(y, size))))
        for row, name in enumerate(functions):
            tolerance = 2 * torch.finfo(dtype).eps if name in NEAR else 0.0
            for eager, ours in zip(*results, strict=True):
                assert torch.allclose(ours[row], eager[row], tolerance, 0.0), (
                    name,
                    size,
                    points,
                    ours[row],
                    eager[row],
                )
