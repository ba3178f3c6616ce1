"""The policy losses as their papers have them, written apart: the value of each token and its gradient, without autograd and pseudograd.

Each takes the log ratio and the advantage, both of shape (sequences, tokens), and the bounds of the ratio as the papers' numbers.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

Formula = Callable[..., tuple[Tensor, Tensor]]


def ppo(lr: Tensor, a: Tensor, lo: float = 0.8, hi: float = 1.2) -> tuple[Tensor, Tensor]:
    r = lr.exp()
    value, slope = torch.empty_like(r), torch.empty_like(r)
    for i in range(r.numel()):
        ratio, adv = r.view(-1)[i].item(), a.reshape(-1)[i].item()
        clipped = min(max(ratio, lo), hi)
        value.view(-1)[i] = -min(ratio * adv, clipped * adv)
        is_silent = (adv > 0 and ratio > hi) or (adv < 0 and ratio < lo)
        slope.view(-1)[i] = 0.0 if is_silent else -adv * ratio
    return value, slope


def dual_clip(lr: Tensor, a: Tensor, lo: float = 0.8, hi: float = 1.2, most: float = 3.0) -> tuple[Tensor, Tensor]:
    value, slope = ppo(lr, a, lo, hi)
    dead = (a < 0) & (lr.exp() > most)
    return torch.where(dead, -a * most, value), torch.where(dead, torch.zeros_like(slope), slope)


def cispo(lr: Tensor, a: Tensor, hi: float = 5.0) -> tuple[Tensor, Tensor]:
    """-sg(clip(r)) A log_prob has this gradient; the value that is tested is -A clip(r)."""
    weight = lr.exp().minimum(torch.tensor(hi, dtype=lr.dtype))
    return -a * weight, -a * weight


def gmpo(lr: Tensor, a: Tensor, width: float = 0.4) -> tuple[Tensor, Tensor]:
    """Of the sequence -A exp(mean of the clipped lr), each clipped on the side that the sign of A says; times the tokens, per token."""
    z, passes = lr.clone(), torch.ones_like(lr)
    up, down = (a > 0) & (lr > width), (a < 0) & (lr < -width)
    z[up], z[down] = width, -width
    passes[up | down] = 0
    loss = -a * z.mean(-1, keepdim=True).exp()
    return loss, loss * passes


def gppo(lr: Tensor, a: Tensor, beta_low: float = 1.0, beta_high: float = 1.0) -> tuple[Tensor, Tensor]:
    value, slope = ppo(lr, a)
    r = lr.exp()
    slope = torch.where((a < 0) & (r < 0.8), -beta_low * 0.8 * a, slope)
    return value, torch.where((a > 0) & (r > 1.2), -beta_high * 1.2 * a, slope)


def gspo(lr: Tensor, a: Tensor, low: float = 3e-4, high: float = 4e-4) -> tuple[Tensor, Tensor]:
    return ppo(lr.mean(-1, keepdim=True).expand_as(lr).clone(), a, 1 - low, 1 + high)


def gpg(lr: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """-A log_prob has this gradient; the value that is tested is -A r."""
    return -a * lr.exp(), -a


def up_grpo(lr: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """-A log_prob where A > 0, else the dual clip; the value that is tested is GRPO's for both signs."""
    value, slope = dual_clip(lr, a)
    return value, torch.where(a > 0, -a, slope)


FORMULAS: dict[str, Formula] = {
    "ppo": ppo,
    "grpo": ppo,
    "dapo": partial(ppo, hi=1.28),
    "dual_clip": dual_clip,
    "cispo": cispo,
    "truncated_is": partial(cispo, hi=2.0),
    "gmpo": gmpo,
    "gppo": gppo,
    "ce_gppo": partial(gppo, beta_low=0.75),
    "gspo": gspo,
    "luspo": partial(gspo, low=2e-3, high=2.5e-3),
    "gpg": gpg,
    "up_grpo": up_grpo,
}


def usual_form(lr: Tensor, a: Tensor, lo: float | None = 0.8, hi: float | None = 1.2) -> Tensor:
    """The form that all the projects write; its gradient at a tie is the era's."""
    r = torch.exp(lr)
    return -torch.min(r * a, torch.clamp(r, lo, hi) * a)


def tokens(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """(60, 24) log ratios, from far below to far above every bound, and an advantage for each sequence: both signs and 0."""
    generator = torch.Generator().manual_seed(7)
    lr = torch.randn(60, 24, generator=generator, dtype=torch.float64)
    lr *= torch.tensor([1e-3, 0.05, 0.3, 1.0, 3.0], dtype=torch.float64).repeat(12).unsqueeze(1)
    a = torch.randn(60, 1, generator=generator, dtype=torch.float64)
    a[::15] = 0.0
    return lr.to(dtype), a.expand(60, 24).clone().to(dtype)


HALF_LOW, TWICE = math.log(0.5), math.log(2.0)  # exp of them is exact, so bounds 0.5 and 2 are met exactly
