"""The second derivatives of policy losses: the derivative of the gradient that the first gives, on every torch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg

from ..choices import folded

WEIGHTS = torch.tensor([[1.0, 0.5, 2.0, 0.25, 3.0], [0.1, 1.0, 1.0, 0.0, 2.0]], dtype=torch.float64)
LOG_RATIO = torch.tensor([[0.1, -0.2, 0.9, 0.05, -0.7], [-0.3, 0.6, 0.01, -0.9, 0.2]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True, False, True], [True, False, True, True, True]])


def gradient(f: Any, x: Tensor, create: bool = False) -> Tensor:
    """Of a loss in which the tokens have weights of their own."""
    (found,) = torch.autograd.grad((f(x) * WEIGHTS).sum(), x, create_graph=create)
    return found


def measured(f: Any, x: Tensor, step: float = 1e-6) -> Tensor:
    """The differences of the gradient, column by column."""
    columns = []
    for k in range(x.numel()):
        move = torch.zeros(x.numel(), dtype=x.dtype)
        move[k] = step
        ahead, behind = ((x + sign * move.reshape(x.shape)).requires_grad_() for sign in (1, -1))
        columns.append((gradient(f, ahead) - gradient(f, behind)).reshape(-1) / (2 * step))
    return torch.stack(columns, 1)


@folded
@pytest.mark.parametrize("masked", [False, True], ids=["all tokens", "a mask"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    "name", [name for name, row in pg.policy.presets.items() if name != "gpg" and row.level != "sequence"]
)  # the gradient of gpg is -A
def test_the_second_derivative_is_that_of_the_first(name: str, sign: float, masked: bool) -> None:
    x = LOG_RATIO.clone().requires_grad_()
    a = sign * torch.tensor([[1.0], [0.5]], dtype=torch.float64)
    f = partial(pg.policy.presets[name], advantage=a, mask=MASK if masked else None)
    first = gradient(f, x, create=True)
    rows = [torch.autograd.grad(one, x, retain_graph=True)[0].reshape(-1) for one in first.reshape(-1)]
    expected = measured(f, x.detach())
    assert expected.any() == ((name, sign) != ("up_grpo", 1.0))  # whose gradient is -A
    torch.testing.assert_close(torch.stack(rows), expected, rtol=1e-5, atol=1e-7)


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

    x = (LOG_RATIO * 1e-3).requires_grad_()
    second = []
    for f in (token_form, partial(pg.policy.presets[name], advantage=a)):
        first = gradient(f, x, create=True)
        assert first.any()
        second.append([torch.autograd.grad(slope, x, retain_graph=True)[0] for slope in first.reshape(-1)])
    torch.testing.assert_close(*second)


@pytest.mark.parametrize("space", ["log", "ratio"])
@pytest.mark.parametrize("rule", ["inward", "zero", "leaky", "identity"])
def test_the_geometric_mean_has_the_gradient_of_its_value(rule: str, space: str) -> None:
    """Whatever the weights of the tokens: against the formula, with the slope of each token."""
    a = torch.tensor([[1.0], [-0.5]], dtype=torch.float64)
    x = LOG_RATIO.clone().requires_grad_()
    how: dict[str, Any] = {"low": 0.3, "high": 0.3, "space": space, "value": "clipped"}
    found = gradient(lambda x: pg.policy.loss(x, a, rule=rule, level="geometric", **how), x)
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
    value = pg.policy.loss(LOG_RATIO, a, rule=rule, level="geometric", **how)
    torch.testing.assert_close(value, (-a * mean).expand_as(value))
    torch.testing.assert_close(found, expected)


def test_a_ratio_that_underflows_spoils_no_geometric_mean() -> None:
    x = torch.tensor([[-200.0, 0.1]], requires_grad=True)
    y = pg.policy.presets["gmpo"](x, torch.ones(1, 1))
    (found,) = torch.autograd.grad(y.sum(), x)
    assert y.tolist() == [[0.0, 0.0]]
    assert found.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_largest_number_of_half_precision_passes_its_gradient_on(dtype: torch.dtype) -> None:
    """Exactly at it nothing is cut off yet. torch.clamp would say so up to 2.13 only."""
    most = torch.finfo(dtype).max
    log_ratio = torch.zeros(3, dtype=dtype, requires_grad=True)
    advantage = torch.tensor([-most, most, -1.0], dtype=dtype)
    grad = torch.tensor([1.0, 1.0, 2.0], requires_grad=True)
    (first,) = torch.autograd.grad(pg.policy.loss(log_ratio, advantage), log_ratio, grad, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), grad)
    assert first.tolist() == [most, -most, 2.0]
    assert second.tolist() == [most, -most, 1.0]
    (first,) = torch.autograd.grad(pg.policy.loss(log_ratio, advantage), log_ratio, 2 * grad, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), grad)
    assert first.tolist() == [most, -most, 4.0]
    assert second.tolist() == [0.0, 0.0, 2.0]
