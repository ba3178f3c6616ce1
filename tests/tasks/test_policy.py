"""The strings: what is expected of a policy, that inward is PPO, and what a clip is worth when a batch is used again."""

from __future__ import annotations

import itertools
from statistics import fmean

import pytest
import torch

import pseudograd as pg
from pseudograd.comparison.statistics import BETTER, NO_DIFFERENCE, WORSE, difference
from pseudograd_tasks import policy
from pseudograd_tasks.policy import HIGH, LENGTH, LETTERS, LOW, POLICY, WORLDS

from .running import run


def test_the_expected_reward_is_that_of_all_strings_by_their_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "LENGTH", 4)
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(policy.SEEDS, 4, LETTERS, LETTERS, generator=generator)
    order, _ = policy._problem()
    for seed in (0, 7):
        table, total = logits[seed].double().softmax(-1), 0.0
        for string in itertools.product(range(LETTERS), repeat=4):
            before = (0, *string[:-1])
            probability = torch.stack(
                [table[t, b, s] for t, (b, s) in enumerate(zip(before, string, strict=True))]
            ).prod()
            right = sum(int(order[seed, b]) == s for b, s in zip(before, string, strict=True))
            total += float(probability) * right / 4
        assert policy.expected(logits)[seed].item() == pytest.approx(total)


def test_drawn_strings_have_the_expected_reward() -> None:
    logits = torch.randn(policy.SEEDS, LENGTH, LETTERS, LETTERS, generator=torch.Generator().manual_seed(3))
    generator, order = torch.Generator().manual_seed(5), policy._problem()[0]
    drawn = torch.cat([policy._draw_strings(logits, generator) for _ in range(60)], 1)
    found = policy._follows(drawn, order).double().mean((1, 2))
    torch.testing.assert_close(found, policy.expected(logits), rtol=0, atol=0.03)


def test_inward_is_ppo() -> None:
    dapo = fmean(policy.preset_rewards("many passes", "dapo"))
    assert (1 - pg.policy.presets["dapo"].low, pg.policy.presets["dapo"].high) == (1 - LOW, HIGH)
    assert run(POLICY, "many passes", "inward").numbers["reward"] == pytest.approx(dapo, abs=1e-6)


@pytest.mark.program
def test_a_clip_matters_where_a_batch_is_used_often_and_only_there() -> None:
    few, many = (
        {name: run(POLICY, world, name).seeds for name in ("inward", "zero/closed", "no clamp")} for world in WORLDS
    )
    how = {"better": "higher", "tie": policy.SCORE.tie}
    assert difference(few["inward"], few["no clamp"], **how).verdict == NO_DIFFERENCE
    assert difference(many["inward"], many["no clamp"], **how).verdict == BETTER
    assert difference(many["inward"], many["zero/closed"], **how).verdict == NO_DIFFERENCE


@pytest.mark.program
def test_where_ppo_is_silent_a_leak_does_harm_there() -> None:
    found = {name: policy.preset_rewards("many passes", name) for name in ("dapo", "cispo", "gppo", "ce_gppo")}
    how = {"better": "higher", "tie": policy.SCORE.tie}
    for name in ("cispo", "gppo", "ce_gppo"):
        assert difference(found[name], found["dapo"], **how).verdict == WORSE
