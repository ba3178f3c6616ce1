"""The losses of 2025 and 2026 against the packages that have them: those that are rows, and those of docs/policy_clips.md that are none."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg

from .formulas import tokens
from .test_other_projects import mean_of_means, ragged, slope_of, trl_loss, verl_loss

ROUNDING = {"rtol": 1e-12, "atol": 1e-12}


def test_infinite_ratios_of_gpg_and_of_up_grpo_where_it_takes_no_ratio_are_finite() -> None:
    lr = torch.tensor([math.inf, 200.0, -math.inf])
    for name in ("gpg", "up_grpo"):
        slope = slope_of(lambda lr, n=name: pg.policy.presets[n](lr, torch.full((3,), 2.0)).sum(), lr)[1]
        assert slope.tolist() == [-2.0] * 3


def test_trl_luspo() -> None:
    lr, a = tokens()
    mask = ragged(lr)
    how: dict[str, Any] = {"loss_type": "luspo", "importance_sampling_level": "sequence"}
    theirs = slope_of(lambda lr: trl_loss(lr, a[:, 0], mask, **how, epsilon_low=2e-3, epsilon_high=2.5e-3), lr)
    ours = slope_of(lambda lr: pg.policy.presets["luspo"](lr, a, mask=mask).sum(-1).mean(), lr)
    torch.testing.assert_close(ours, theirs, **ROUNDING)


def test_verl_gpg_has_our_gradient_and_another_value() -> None:
    theirs = verl_loss("compute_policy_loss_gpg")
    lr, a = tokens()
    mask = ragged(lr)
    value, slope = slope_of(lambda lr: theirs(lr, a, mask, 0.2, 0.2), lr)
    ours = slope_of(lambda lr: mean_of_means(pg.policy.presets["gpg"](lr, a, mask=mask), mask), lr)
    torch.testing.assert_close(ours[1], slope, rtol=1e-7, atol=1e-7)
    assert (ours[0] - value).abs() > 0.01


def test_verl_dro_is_gpg_and_a_penalty_without_the_advantage() -> None:
    theirs = verl_loss("compute_policy_loss_dro", dro_beta=0.3)
    lr, a = tokens()
    mask = ragged(lr)
    slope = slope_of(lambda lr: theirs(lr, a, mask, 0.2, 0.2), lr)[1]

    def ours(lr: Tensor) -> Tensor:
        penalty = 0.5 * 0.3 * torch.where(mask, lr, 0.0).square()
        return mean_of_means(pg.policy.presets["gpg"](lr, a, mask=mask) + penalty, mask)

    torch.testing.assert_close(slope_of(ours, lr)[1], slope, rtol=1e-7, atol=1e-7)


def gamma(
    grad: Tensor, ratio: Tensor, advantage: Tensor, min: float, max: float, *, power: float = 2.0, decay: float = 3.0
) -> Tensor:
    """docs/your_own_rule.md: VESPO's weight."""
    near = torch.where(ratio < 100, ratio, 100.0)
    return -grad * advantage * near**power * torch.exp(decay * (1 - near))


@pytest.mark.usefixtures("table_as_it_was")
def test_trl_vespo_is_a_rule_of_your_own_for_each_sign() -> None:
    pg.register_rule("policy_loss", formula="f", source="s", is_linear=True)(gamma)
    rule = {"positive": pg.rules.gamma(power=2.0, decay=3.0), "negative": pg.rules.gamma(power=3.0, decay=2.0)}
    lr, a = (tensor[1:50] for tensor in tokens())  # the product of a sequence's ratios within theirs of ±20
    mask = ragged(lr)

    def theirs(lr: Tensor) -> Tensor:
        args = {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}
        return trl_loss(lr, a[:, 0], mask, loss_type="vespo", args=args) * mask.sum()

    def ours(lr: Tensor) -> Tensor:
        total = torch.where(mask, lr, 0.0).sum(-1, keepdim=True).expand_as(lr)
        return pg.policy.loss(pg.replace_grad(total, lr), a, low=None, high=None, rule=rule, mask=mask).sum()

    expected, slope = slope_of(theirs, lr)[1], slope_of(ours, lr)[1]
    apart = (torch.where(mask, lr, 0.0).sum(-1).abs() < 18) & (lr.abs().max(-1).values < 20)
    assert apart.sum() > 30
    assert expected[apart].abs().max() > 1
    torch.testing.assert_close(slope[apart], expected[apart], rtol=1e-10, atol=1e-12)
