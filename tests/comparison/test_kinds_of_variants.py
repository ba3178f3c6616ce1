"""`compare(variants=...)` with each kind that docs/compare.md names: policy losses, roundings, straight-through functions, rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg


def bandit(loss: Callable[[Tensor, Tensor], Tensor], seed: int) -> float:
    """A policy over three actions learns which one is rewarded, with four steps for each batch: the reward that it has then."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, generator=generator, requires_grad=True)
    for _ in range(4):
        with torch.no_grad():
            actions = torch.multinomial(logits.softmax(-1), 16, replacement=True, generator=generator)
            old = logits.log_softmax(-1)[actions]
            advantage = (actions == 1).float() - 0.5
        for _ in range(4):
            step = loss(logits.log_softmax(-1)[actions] - old, advantage).mean()
            (slope,) = torch.autograd.grad(step, logits)
            logits = (logits - slope).detach().requires_grad_()
    return logits.softmax(-1)[1].item()


def rounded(rounding: Callable[[Tensor], Tensor], seed: int) -> float:
    """Weights learn what they are rounded to."""
    generator = torch.Generator().manual_seed(seed)
    weight, target = (2 * torch.randn(8, generator=generator) for _ in range(2))
    for _ in range(10):
        weight.requires_grad_()
        (slope,) = torch.autograd.grad((rounding(weight) - target).square().sum(), weight)
        weight = (weight - 0.1 * slope).detach()
    return (rounding(weight) - target).square().sum().item()


def own_rule(grad: Tensor, ratio: Tensor, advantage: Tensor, min: float, max: float) -> Tensor:
    return -grad * advantage * torch.where(ratio > max, max, ratio)


KINDS: dict[str, tuple[Callable[..., float], dict[str, Any]]] = {
    "policy losses": (
        bandit,
        {
            "ppo": pg.policy.presets["ppo"],
            "up_grpo": pg.policy.presets["up_grpo"],
            "by sign": partial(pg.policy.loss, rule={"positive": "identity", "negative": "inward"}),
            "own": partial(pg.policy.loss, rule="own_rule"),
        },
    ),
    "roundings": (rounded, {"torch": torch.round, "identity": pg.round, "fourier": partial(pg.round, rule="fourier")}),
    "straight-through": (
        rounded,
        {
            "tanh": pg.straight_through(torch.round, torch.tanh),
            "steps": pg.straight_through(torch.round, lambda x: x + 0.1 * torch.sin(x)),
        },
    ),
}


@pytest.mark.usefixtures("table_as_it_was")
@pytest.mark.parametrize("kind", KINDS)
def test_each_variant_has_the_numbers_of_its_own_run(kind: str) -> None:
    pg.register_rule("policy_loss", formula="f", source="s", is_linear=True)(own_rule)
    run, variants = KINDS[kind]
    first, *_ = variants
    found = pg.compare(run, variants=variants, baseline=first, seeds=3, better="higher")
    assert found.baseline == first
    values = {name: list(found.values["the number"][name]) for name in found.variants}
    assert values == {name: [run(variant, seed) for seed in range(3)] for name, variant in variants.items()}
    assert len({tuple(one) for one in values.values()}) == len(variants)
