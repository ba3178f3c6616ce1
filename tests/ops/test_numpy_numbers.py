"""Bounds as NumPy's scalars, and rule objects made by hand."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

import pseudograd as pg
from pseudograd.rule import RuleObject


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64])
def test_numpy_scalars_are_numbers(kind: type) -> None:
    x = torch.tensor([-2.0, 0.5, 2.0], requires_grad=True)
    y = pg.clamp(x, kind(-1), kind(1), rule="zero")
    y.sum().backward()
    assert y.tolist() == [-1, 0.5, 1]
    assert x.grad.tolist() == [0, 1, 0]
    with pytest.raises(ValueError, match="clamp: min must not be NaN, got nan"):
        pg.clamp(torch.zeros(2), np.float32("nan"), 1)
    assert pg.clamp(torch.tensor([-3, 3]), np.int64(-1), np.int64(1)).dtype == torch.int64  # integers stay integers


@pytest.mark.parametrize("slope", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rule_object_made_by_hand_is_checked(slope: float) -> None:
    with pytest.raises(ValueError, match="leaky: slope must be finite and above 0"):
        pg.clamp(torch.zeros(2), -1, 1, rule=RuleObject("leaky", (("slope", slope),)))


CALLS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "clamp": lambda x, s: pg.clamp(x, -s, s),
    "in place": lambda x, s: pg.clamp_(x * 1, -s, s),
    "clip_grad": lambda x, s: pg.clip_grad(x, s),
    "at_zero": lambda x, s: pg.sign(x, at_zero=s),
    "leaky": lambda x, s: pg.clamp(x, -0.25, 0.25, rule=pg.rules.leaky(s)),
    "fake_quantize": lambda x, s: pg.fake_quantize(x, s, quant_min=-2, quant_max=2),
}


@pytest.mark.program
@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [
        *((name, np.float32, torch.float16) for name in ("clamp", "clip_grad", "leaky")),
        *((name, np.int64, torch.float32) for name in ("in place", "at_zero", "fake_quantize")),
    ],
)
def test_numpy_scalars_mean_the_same_in_compiled_code(name: str, kind: type, dtype: torch.dtype) -> None:
    number = kind(1 if kind is np.int64 else 0.375)
    weight = torch.tensor([1.0, -2.0, 3.0, -1.0, 1.0, 2.0, -1.0], dtype=dtype)

    def ask(f: Callable[..., torch.Tensor], number: float) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tensor([-2.0, -0.5, -0.375, 0.0, 0.1, 0.375, 1.0], dtype=dtype, requires_grad=True)
        y = f(x, number)
        return y.detach(), torch.autograd.grad(y, x, weight.to(y.dtype))[0]

    expected = ask(CALLS[name], number.item())
    for f in (CALLS[name], torch.compile(CALLS[name], backend="aot_eager")):
        for ours, theirs in zip(ask(f, number), expected, strict=True):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)


@pytest.mark.program
@pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10), reason="torch 2.8 compiles no float of .item()"
)
@pytest.mark.parametrize(
    "f",
    [
        lambda x, s: pg.clamp(x, -s, s, rule="zero"),
        lambda x, s: pg.upper_bound(x, s, edge="half"),
        lambda x, s: pg.clamp(x, -0.25, 0.25, rule=pg.rules.leaky(s)),
        lambda x, s: pg.clip_grad(x, s),
    ],
)
def test_numbers_that_only_the_graph_knows(f: Callable[..., torch.Tensor]) -> None:
    """torch.clamp compiles with such bounds, and so do we, without the checks that need their values."""
    x = torch.tensor([-2.0, 0.1, 2.0], requires_grad=True)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(lambda x, s: f(x, s.item()), backend="aot_eager", fullgraph=True)
        for s in (0.5, 0.25):
            gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (compiled(x, torch.tensor(s)), f(x, s))]
            assert torch.equal(*gradients)
