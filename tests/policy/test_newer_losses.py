"""The losses of 2025 and 2026: those that are rows, and those of docs/policy_clips.md that are none, against formulas written apart and
the packages that have them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg

from ..choices import folded
from .formulas import tokens
from .test_other_projects import EDGE, mean_of_means, of_trl, of_verl, ragged, slope_of

ROUNDING = {"rtol": 1e-12, "atol": 1e-12}
NEW = ("luspo", "gpg", "up_grpo")


# --- as they are published --------------------------------------------------------------------------------------------
# Each as the scalar loss of (sequences, tokens) that its code computes, differentiated by torch. Bounds stand as numbers of the ratio.


def clipped(r: Tensor, a: Tensor, lo: float, hi: float) -> Tensor:
    return torch.max(-a * r, -a * torch.clamp(r, lo, hi))


def luspo(lr: Tensor, a: Tensor) -> Tensor:
    """A sequence's loss times its length: the sum over its tokens of the loss of its mean log ratio."""
    r = lr.mean(-1, keepdim=True).exp()
    return (clipped(r, a[:, :1], 1 - 2e-3, 1 + 2.5e-3) * torch.ones_like(lr)).sum()


def gpg(lr: Tensor, a: Tensor) -> Tensor:
    return -(a * lr).sum()


def up_grpo(lr: Tensor, a: Tensor) -> Tensor:
    """lr is log_prob minus a constant. The ratio of what is not taken is replaced first: 0 times infinity would be NaN."""
    r = torch.where(a > 0, 0.0, lr).exp()
    below = torch.where(a < 0, torch.min(-3.0 * a, clipped(r, a, 0.8, 1.2)), clipped(r, a, 0.8, 1.2))
    return torch.where(a > 0, -a * lr, below).sum()


PUBLISHED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"luspo": luspo, "gpg": gpg, "up_grpo": up_grpo}


def placed(name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sequences of one token: inside, just within and just outside each bound, far outside, infinite; with A of both signs."""
    near = [
        math.log(b) + d
        for b in {"luspo": (0.998, 1.0025), "gpg": (), "up_grpo": (0.8, 1.2, 3.0)}[name]
        for d in (-1e-4, 1e-4)
    ]
    at = [0.0, 1e-5, *near, -3.0, 0.5, 3.0, -20.0, 8.0, -math.inf]
    lr = torch.tensor(at, dtype=torch.float64).to(dtype).repeat(2)
    a = torch.tensor([1.25, -0.75], dtype=dtype).repeat_interleave(len(at))
    return lr.unsqueeze(1), a.unsqueeze(1)


@folded
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NEW)
def test_the_gradient_is_that_of_the_published_loss_in_every_dtype(name: str, dtype: torch.dtype) -> None:
    """Half precision and float32 as float64 has it of the same numbers, rounded; off the ties, where no rounding decides."""
    lr, a = placed(name, dtype)
    expected = slope_of(lambda lr: PUBLISHED[name](lr, a.double()), lr.double())[1]
    found = slope_of(lambda lr: pg.policy.presets[name](lr, a).sum(), lr)[1]
    assert found.dtype is dtype
    apart = (lr.double().exp() - torch.tensor([0.998, 1.0025, 0.8, 1.2, 3.0])).abs().min(-1).values > 1e-6
    eps = max(torch.finfo(dtype).eps, 1e-12)
    torch.testing.assert_close(found[apart].double(), expected[apart], rtol=4 * eps, atol=1e-7 if eps > 1e-3 else eps)
    assert found.isfinite().all()


@pytest.mark.parametrize("name", NEW)
def test_the_gradient_is_that_of_the_published_loss_for_many_tokens(name: str) -> None:
    lr, a = tokens()
    expected = slope_of(lambda lr: PUBLISHED[name](lr, a), lr)[1]
    found = slope_of(lambda lr: pg.policy.presets[name](lr, a).sum(), lr)[1]
    torch.testing.assert_close(found, expected, **ROUNDING)


def test_at_the_lower_bound_up_grpo_passes_what_the_edge_says_and_upward_all() -> None:
    lr = torch.tensor([math.log(0.5)] * 2, dtype=torch.float64)
    a = torch.tensor([1.0, -1.0], dtype=torch.float64)
    for edge, share in (("closed", 1.0), ("half", 0.5), ("open", 0.0)):
        found = slope_of(lambda lr, e=edge: pg.policy.presets["up_grpo"](lr, a, low=0.5, edge=e).sum(), lr)[1]  # type: ignore[misc]
        assert found.tolist() == [-1.0, 0.5 * share]


def test_infinite_ratios_of_gpg_and_of_what_up_grpo_takes_without_a_ratio_are_finite() -> None:
    lr = torch.tensor([math.inf, 200.0, -math.inf])
    for name in ("gpg", "up_grpo"):
        found = slope_of(lambda lr, n=name: pg.policy.presets[n](lr, torch.full((3,), 2.0)).sum(), lr)[1]  # type: ignore[misc]
        assert found.tolist() == [-2.0] * 3


# --- against the packages ---------------------------------------------------------------------------------------------


def test_trl_luspo() -> None:
    lr, a = tokens()
    mask = ragged(lr)
    how: dict[str, Any] = {"loss_type": "luspo", "importance_sampling_level": "sequence"}
    theirs = slope_of(lambda lr: of_trl(lr, a[:, 0], mask, **how, epsilon_low=2e-3, epsilon_high=2.5e-3), lr)
    ours = slope_of(lambda lr: pg.policy.presets["luspo"](lr, a, mask=mask).sum(-1).mean(), lr)
    torch.testing.assert_close(ours, theirs, **ROUNDING)


def test_verl_gpg_has_our_gradient_and_another_value() -> None:
    theirs = of_verl("compute_policy_loss_gpg")
    lr, a = tokens()
    mask = ragged(lr)
    value, slope = slope_of(lambda lr: theirs(lr, a, mask, 0.2, 0.2), lr)
    ours = slope_of(lambda lr: mean_of_means(pg.policy.presets["gpg"](lr, a, mask=mask), mask), lr)
    torch.testing.assert_close(ours[1], slope, rtol=1e-7, atol=1e-7)
    assert (ours[0] - value).abs() > 0.01


def test_verl_dro_is_gpg_and_a_penalty_without_the_advantage() -> None:
    theirs = of_verl("compute_policy_loss_dro", dro_beta=0.3)
    lr, a = tokens()
    mask = ragged(lr)
    slope = slope_of(lambda lr: theirs(lr, a, mask, 0.2, 0.2), lr)[1]

    def ours(lr: Tensor) -> Tensor:
        penalty = 0.5 * 0.3 * torch.where(mask, lr, 0.0).square()
        return mean_of_means(pg.policy.presets["gpg"](lr, a, mask=mask) + penalty, mask)

    torch.testing.assert_close(slope_of(ours, lr)[1], slope, rtol=1e-7, atol=1e-7)


# --- as rules of one's own, and with bounds of the batch --------------------------------------------------------------


def gamma(
    grad: Tensor, ratio: Tensor, advantage: Tensor, min: float, max: float, *, power: float = 2.0, decay: float = 3.0
) -> Tensor:
    """docs/your_own_rule.md: VESPO's weight."""
    near = torch.where(ratio < 100, ratio, 100.0)
    return -grad * advantage * near**power * torch.exp(decay * (1 - near))


@pytest.mark.usefixtures("table_as_it_was")
def test_trl_vespo_is_a_rule_of_ones_own_for_each_sign() -> None:
    pg.register_rule("policy_loss", formula="f", source="s", is_linear=True)(gamma)
    rule = {"positive": pg.rules.gamma(power=2.0, decay=3.0), "negative": pg.rules.gamma(power=3.0, decay=2.0)}
    lr, a = (one[1:50] for one in tokens())  # the product of a sequence's ratios within theirs of ±20
    mask = ragged(lr)

    def theirs(lr: Tensor) -> Tensor:
        args = {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}
        return of_trl(lr, a[:, 0], mask, loss_type="vespo", args=args) * mask.sum()

    def ours(lr: Tensor) -> Tensor:
        total = torch.where(mask, lr, 0.0).sum(-1, keepdim=True).expand_as(lr)
        found = pg.policy.loss(pg.replace_grad(total, lr), a, low=None, high=None, rule=rule, mask=mask)
        return torch.where(mask, found, 0.0).sum()

    expected, found = slope_of(theirs, lr)[1], slope_of(ours, lr)[1]
    apart = (torch.where(mask, lr, 0.0).sum(-1).abs() < 18) & (lr.abs().max(-1).values < 20)
    assert apart.sum() > 30
    assert expected[apart].abs().max() > 1
    torch.testing.assert_close(found[apart], expected[apart], rtol=1e-10, atol=1e-12)


def bounds_of_the_batch(lr: Tensor, a: Tensor, budget: float) -> tuple[float, float]:
    """M2PO's: the mean of lr^2 over what moves outward, each at most tau^2, is at most the budget; at least 0.3 and 0.5."""
    squares = sorted(s * s for s, adv in zip(lr.flatten().tolist(), a.flatten().tolist(), strict=True) if s * adv > 0)
    if sum(squares) <= budget * len(squares):
        return 1.0, 1e5
    taken = [t for k, t in enumerate(squares) if sum(squares[:k]) + t * (len(squares) - k) <= budget * len(squares)]
    tau = math.sqrt(taken[-1]) if taken else 0.0
    return max(1 - math.exp(-tau), 0.3), max(math.exp(tau) - 1, 0.5)


@pytest.mark.parametrize("budget", [0.04, 0.5, 2.0])
def test_m2po_is_ppo_with_the_bounds_of_its_batch(budget: float) -> None:
    """Its authors' code: what is silent is what lies further outward than tau, whose own token is a tie."""
    lr, a = tokens()
    low, high = bounds_of_the_batch(lr, a, budget)
    expected = slope_of(lambda lr: clipped(lr.exp(), a, 1 - low, 1 + high).sum(), lr)[1]
    found = slope_of(lambda lr: pg.policy.presets["ppo"](lr, a, low=low, high=high, edge=EDGE).sum(), lr)[1]
    torch.testing.assert_close(found, expected, **ROUNDING)
    outward = (lr * a > 0) & ((lr > math.log1p(high)) | (lr < math.log1p(-low)))
    assert torch.equal(found == 0, outward | (a == 0))
