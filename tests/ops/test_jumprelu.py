"""jumprelu: every window, special values, and the threshold in training. tests/contract compares values and gradients with formulas."""

import math

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.ops.steps import SLOPES
from pseudograd.rule import OPS


def _inputs() -> tuple[Tensor, Tensor, Tensor]:
    """x on both sides of each threshold, exactly at it and at both edges of the window; thresholds of both signs; grads of both."""
    generator = torch.Generator().manual_seed(0)
    threshold = torch.tensor([0.5, 1.25, 0.0, -0.75], dtype=torch.float64)
    x = torch.randn(40, 4, generator=generator, dtype=torch.float64) + threshold
    x[0], x[1], x[2] = threshold, threshold + 0.1875, threshold - 0.1875
    return x, threshold, torch.randn(40, 4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("rule", SLOPES)
def test_every_window_has_the_area_one_and_the_slope_of_its_step(rule: str) -> None:
    """A penalty on the number of features needs the step: divided by the threshold, the gradients are equal."""
    slope = SLOPES[rule]
    for bandwidth in (0.25, 3.0):  # over a range that leaves little of the longest tails
        step = bandwidth / 100
        x = (torch.arange(-200_000, 200_000, dtype=torch.float64) + 0.5) * step
        assert slope.slope(x, *slope.unit_area(bandwidth)).sum().item() * step == pytest.approx(1, abs=2e-3)
    for scale, height in ((0.5, 3.0), (2.0, 0.25)):
        at_zero = slope.slope(torch.zeros(1, dtype=torch.float64), scale, height).item()
        assert at_zero == pytest.approx(slope.peak(scale, height))
    x, threshold, grad = _inputs()
    x, threshold, grad = x[:, :2], threshold[:2].requires_grad_(), grad[:, :2]
    scale, height = slope.unit_area(0.375)
    step_y = pg.heaviside(x - threshold, at_zero=0, rule=getattr(pg.rules, rule)(scale=scale, height=height))
    jump_y = pg.jumprelu(x, threshold, bandwidth=0.375, rule=rule)
    ours, theirs = (torch.autograd.grad(y, threshold, grad)[0] for y in (jump_y, step_y))
    torch.testing.assert_close(ours, theirs * threshold.detach(), rtol=1e-12, atol=1e-12)


def test_a_number_is_torchs_own_threshold() -> None:
    """Rounded as torch rounds it: 0.3 in bfloat16 is 0.30078125, so x of that value is at the threshold."""
    x = torch.tensor([-math.inf, -1.0, -0.0, 0.5, 0.75, math.inf, math.nan])
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        ours = pg.jumprelu(x.to(dtype), 0.5, bandwidth=1.0)
        theirs = torch.nn.functional.threshold(x.to(dtype), 0.5, 0.0)
        assert torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))
    x = torch.tensor([0.3], dtype=torch.bfloat16, requires_grad=True)
    y = pg.jumprelu(x, 0.3, bandwidth=1.0)
    y.backward()
    assert (y.item(), x.grad) == (0.0, torch.zeros(1, dtype=torch.bfloat16))


def test_infinite_and_nan_inputs_move_no_threshold() -> None:
    """An infinite threshold switches its feature off; an infinite gradient meets no zero."""
    x = torch.tensor([math.inf, -math.inf, math.nan, 0.5], requires_grad=True)
    off = torch.tensor([0.5, math.inf], requires_grad=True)
    for rule in OPS["jumprelu"].rules:
        threshold = torch.full((4,), 0.5, requires_grad=True)
        y = pg.jumprelu(x, threshold, bandwidth=1.0, rule=rule)
        to_x, to_threshold = torch.autograd.grad(y, (x, threshold), torch.ones(4))
        assert to_threshold[:3].tolist() == [0.0, 0.0, 0.0]
        assert rule == "zero" or to_threshold[3] < 0
        assert to_x.tolist() == [1.0, 0.0, 1.0, 0.0]
        pair = torch.tensor([[0.5, 2.0]], requires_grad=True)
        y = pg.jumprelu(pair, off, bandwidth=1.0, window_to_x=True, rule=rule)
        to_x, to_threshold = torch.autograd.grad(y.sum(), (pair, off))
        assert (y[0, 1].item(), to_x[0, 1].item(), to_threshold[1].item()) == (0.0, 0.0, 0.0)
    x, threshold = torch.tensor([0.0, 9.0], requires_grad=True), torch.zeros(2, requires_grad=True)
    y = pg.jumprelu(x, threshold, bandwidth=1.0)
    to_x, first = torch.autograd.grad(y, (x, threshold), torch.full((2,), math.inf), create_graph=True)
    assert (to_x.tolist(), first.tolist()) == ([0.0, math.inf], [0.0, 0.0])
    assert torch.autograd.grad(first.sum(), threshold)[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_threshold_that_is_wider_than_x_keeps_its_precision(dtype: torch.dtype) -> None:
    """A float32 threshold is compared in float32, and its gradient is summed in float32: a sum in bfloat16 would stop growing."""
    x = torch.full((300, 1), 1.0, dtype=dtype, requires_grad=True)
    above, below = (torch.tensor([1.0 + side * 2.0**-20], requires_grad=True) for side in (1, -1))
    y = pg.jumprelu(x, above, bandwidth=1.0)
    assert (y.dtype, y.sum().item()) == (dtype, 0.0)
    y.backward(torch.full_like(x, 2.0**-8))
    assert above.grad.dtype is torch.float32
    torch.testing.assert_close(above.grad, torch.tensor([-300 * 2.0**-8]), rtol=1e-5, atol=0)
    passed = pg.jumprelu(x, below, bandwidth=1.0)
    assert passed.sum().item() == 300
    assert torch.autograd.grad(passed.sum(), x)[0].tolist() == [[1.0]] * 300
