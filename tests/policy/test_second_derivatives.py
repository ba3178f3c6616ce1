"""The second derivatives of policy losses: the derivative of the gradient that the first gives, on every torch."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import pseudograd as pg

from ..choices import folded

WEIGHTS = torch.tensor([[1.0, 0.5, 2.0, 0.25, 3.0], [0.1, 1.0, 1.0, 0.0, 2.0]], dtype=torch.float64)
LOG_RATIO = torch.tensor([[0.1, -0.2, 0.9, 0.05, -0.7], [-0.3, 0.6, 0.01, -0.9, 0.2]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True, False, True], [True, False, True, True, True]])


Loss = Callable[[Tensor], Tensor]


def gradient(f: Loss, x: Tensor, create_graph: bool = False) -> Tensor:
    """Of a loss in which the tokens have weights of their own."""
    return torch.autograd.grad((f(x) * WEIGHTS).sum(), x, create_graph=create_graph)[0]


def second(f: Loss, x: Tensor) -> Tensor:
    """Row by row, by double backward."""
    leaf = x.clone().requires_grad_()
    first = gradient(f, leaf, create_graph=True).reshape(-1)
    return torch.stack([torch.autograd.grad(slope, leaf, retain_graph=True)[0].reshape(-1) for slope in first])


def quotient(f: Loss, x: Tensor, step: float = 1e-6) -> Tensor:
    """The differences of the gradient, column by column."""
    moves = step * torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape)
    pairs = [[gradient(f, (x + sign * move).requires_grad_()).reshape(-1) for sign in (1, -1)] for move in moves]
    return torch.stack([(ahead - behind) / (2 * step) for ahead, behind in pairs], 1)


@folded
@pytest.mark.parametrize("masked", [False, True], ids=["all tokens", "a mask"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", ["ce_gppo", "gmpo", "up_grpo"])  # tests/contract has the rules that all tokens share
def test_the_second_derivative_is_that_of_the_first(name: str, sign: float, masked: bool) -> None:
    a = sign * torch.tensor([[1.0], [0.5]], dtype=torch.float64)
    f = partial(pg.policy.presets[name], advantage=a, mask=MASK if masked else None)
    expected = quotient(f, LOG_RATIO)
    assert expected.any() == ((name, sign) != ("up_grpo", 1.0))  # whose gradient is -A
    torch.testing.assert_close(second(f, LOG_RATIO), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["gspo", "luspo"])
def test_the_second_derivative_of_a_sequence_is_that_of_the_token_form(name: str) -> None:
    """The form of the paper: the mean as a constant, plus the log_ratio of the token minus the same as a constant."""
    settings = pg.policy.presets[name].settings
    bounds = 1 - settings["low"], 1 + settings["high"]
    a = torch.tensor([[1.0], [-0.5]], dtype=torch.float64)

    def token_form(x: Tensor) -> Tensor:
        ratio = torch.exp(x.mean(-1, keepdim=True).detach() + x - x.detach())
        clipped = torch.where(ratio < bounds[0], bounds[0], torch.where(ratio > bounds[1], bounds[1], ratio))
        return -torch.where(ratio * a <= clipped * a, ratio * a, clipped * a)

    expected = second(token_form, LOG_RATIO * 1e-3)
    assert expected.any()
    torch.testing.assert_close(second(partial(pg.policy.presets[name], advantage=a), LOG_RATIO * 1e-3), expected)


@pytest.mark.parametrize("space", ["log", "ratio"])
@pytest.mark.parametrize("rule", ["inward", "zero", "leaky", "identity"])
def test_the_geometric_mean_has_the_gradient_of_its_value(rule: str, space: str) -> None:
    """Whatever the weights of the tokens: against the formula, with the slope of each token."""
    a = torch.tensor([[1.0], [-0.5]], dtype=torch.float64)
    how = {"low": 0.3, "high": 0.3, "space": space, "value": "clipped", "rule": rule, "level": "geometric"}
    loss = partial(pg.policy.loss, advantage=a, **how)
    ratio = LOG_RATIO.exp().clamp(0.7, 1.3)
    outside = ratio != LOG_RATIO.exp()
    blocked = ((LOG_RATIO.exp() > 1.3) & (a > 0)) | ((LOG_RATIO.exp() < 0.7) & (a < 0))
    slope = {
        "zero": torch.where(outside, 0.0, 1.0),
        "leaky": torch.where(outside, 0.1, 1.0),
        "inward": torch.where(blocked, 0.0, 1.0),
        "identity": torch.ones_like(LOG_RATIO),
    }[rule].double()
    own = slope if space == "log" else slope * LOG_RATIO.exp() / ratio
    if space == "log" and rule == "inward":  # w is c(r) only where the clip is blocked
        own = slope * torch.where(blocked, ratio, LOG_RATIO.exp()) / ratio
    mean = ratio.log().mean(-1, keepdim=True).exp()
    expected = (-a * mean * WEIGHTS).sum(-1, keepdim=True) / 5 * own
    torch.testing.assert_close(loss(LOG_RATIO), (-a * mean).expand_as(LOG_RATIO))
    torch.testing.assert_close(gradient(loss, LOG_RATIO.clone().requires_grad_()), expected)


def test_a_ratio_that_underflows_spoils_no_geometric_mean() -> None:
    x = torch.tensor([[-200.0, 0.1]], requires_grad=True)
    y = pg.policy.presets["gmpo"](x, torch.ones(1, 1))
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert y.tolist() == slope.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_largest_number_of_half_precision_passes_its_gradient_on(dtype: torch.dtype) -> None:
    """Exactly at it nothing is cut off yet. torch.clamp would say so up to 2.13 only."""
    most = torch.finfo(dtype).max
    log_ratio = torch.zeros(3, dtype=dtype, requires_grad=True)
    advantage = torch.tensor([-most, most, -1.0], dtype=dtype)
    grad = torch.tensor([1.0, 1.0, 2.0], requires_grad=True)
    for factor, last, seconds in ((1, 2.0, [most, -most, 1.0]), (2, 4.0, [0.0, 0.0, 2.0])):
        y = pg.policy.loss(log_ratio, advantage)
        (first,) = torch.autograd.grad(y, log_ratio, factor * grad, create_graph=True)
        assert first.tolist() == [most, -most, last]
        assert torch.autograd.grad(first.sum(), grad)[0].tolist() == seconds
