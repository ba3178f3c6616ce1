"""`policy`: strings of tokens that must follow a hidden order, learned by a clipped policy gradient; the clamp clips the ratio."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from pseudograd.comparison.statistics import NO_DIFFERENCE, NOT_TOLD, difference, holm
from pseudograd.ops.policy_rows import policies
from pseudograd.wording import listed

from . import sentences
from .base import Context, Outcome, Score, Settings, Task, Variant, World

SEEDS, LETTERS, LENGTH, STRINGS = 20, 6, 8, 16
LOW, HIGH, NOISE = 0.2, 0.28, 0.3
LossOfTokens = Callable[[Tensor, Tensor], Tensor]  # (log_ratio, advantage) -> of each token


class Schedule(NamedTuple):
    """How far a batch is used: its passes, and the rate of Adam."""

    batches: int
    passes: int
    rate: float


WORLDS = {"few passes": Schedule(60, 2, 0.1), "many passes": Schedule(15, 16, 0.2)}
SCORE = Score("reward", "reward {}", ".3f", better="higher", tie=0.005)
NAMED = ("dapo", "dual_clip", "cispo", "gppo", "ce_gppo")
_SETTING = (
    "Strings of {length} of {letters} letters; the reward is the share of letters that follow a hidden order, seen with noise of "
    "standard deviation {noise:g} and compared with the mean of {strings} strings. A table of probabilities learns it with the "
    "loss -A * clamp(r, {low:g}, {high:g}); two schedules of Adam: {few_passes} passes over each of {few_batches} batches at rate "
    "{few_rate:g}, and {many_passes} over each of {many_batches} at {many_rate:g}. The reward that is reported is the expectation, "
    "computed exactly; guessing has {chance:.3f}. This tells what a clip is worth when a batch is used again, on a problem of "
    "{table} numbers; nothing about language models, whose ratios come from a network that all tokens share. {test}"
)


def trained(schedule: Schedule, loss: LossOfTokens) -> Tensor:
    """(seeds, positions, letter before, letter): the logits after training, every seed on draws of its own, the same for every loss."""
    order, draws = _problem()
    logits = torch.zeros(SEEDS, LENGTH, LETTERS, LETTERS, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=schedule.rate)
    generator = torch.Generator().manual_seed(draws)
    for _ in range(schedule.batches):
        with torch.no_grad():
            strings = _draw_strings(logits, generator)
            reward = _follows(strings, order).double().mean(-1)
            reward = reward + NOISE * torch.randn(reward.shape, generator=generator, dtype=torch.float64)
            advantage = (reward - reward.mean(1, keepdim=True)) / reward.std(1, keepdim=True)
            advantage = advantage.float().unsqueeze(-1).expand(SEEDS, STRINGS, LENGTH)
            old = _log_prob(logits, strings)
        for _ in range(schedule.passes):
            optimizer.zero_grad()
            loss(_log_prob(logits, strings) - old, advantage).mean((1, 2)).sum().backward()
            optimizer.step()
    return logits.detach()


def _problem() -> tuple[Tensor, int]:
    """For each seed which letter follows which; and a seed for the draws."""
    generator = torch.Generator().manual_seed(0)
    return torch.stack([torch.randperm(LETTERS, generator=generator) for _ in range(SEEDS)]), 1


def _draw_strings(logits: Tensor, generator: torch.Generator) -> Tensor:
    """(seeds, strings, length + 1): strings that start with letter 0."""
    strings = torch.zeros(SEEDS, STRINGS, LENGTH + 1, dtype=torch.long)
    rows = torch.arange(SEEDS).unsqueeze(1)
    for t in range(LENGTH):
        cumulated = logits[rows, t, strings[..., t]].softmax(-1).cumsum(-1)
        uniform = torch.rand(SEEDS, STRINGS, 1, generator=generator)
        strings[..., t + 1] = (uniform > cumulated).sum(-1).clamp(max=LETTERS - 1)
    return strings


def _follows(strings: Tensor, order: Tensor) -> Tensor:
    return strings[..., 1:] == order.gather(1, strings[..., :-1].flatten(1)).view(strings[..., :-1].shape)


def _log_prob(logits: Tensor, strings: Tensor) -> Tensor:
    """(seeds, strings, length)."""
    rows, places = torch.arange(SEEDS).view(-1, 1, 1), torch.arange(LENGTH)
    return logits.log_softmax(-1)[rows, places, strings[..., :-1], strings[..., 1:]]


def expected(logits: Tensor) -> Tensor:
    """(seeds,), float64: the expected reward, by the probability of each letter at each place."""
    order, _ = _problem()
    steps = logits.double().softmax(-1)
    letters = torch.zeros(SEEDS, LETTERS, dtype=torch.float64)
    letters[:, 0] = 1
    right = torch.zeros(SEEDS, dtype=torch.float64)
    for t in range(LENGTH):
        right += (letters * steps[:, t].gather(-1, order.unsqueeze(-1))[..., 0]).sum(-1)
        letters = (letters.unsqueeze(-1) * steps[:, t]).sum(1)
    return right / LENGTH


def _run(world: str, variant: Variant, settings: Settings) -> Outcome:
    def loss(log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return -advantage * variant.clamp(log_ratio.exp(), 1 - LOW, 1 + HIGH)

    logits = trained(WORLDS[world], loss)
    reward = expected(logits)
    return Outcome(numbers={"reward": float(reward.mean()), "worst": float(reward.min())}, seeds=tuple(reward.tolist()))


@cache
def preset_rewards(world: str, name: str) -> tuple[float, ...]:
    """The reward of each seed with a loss of `pseudograd.policy.presets`."""
    return tuple(expected(trained(WORLDS[world], policies[name])).tolist())


def _context(settings: Settings) -> dict[str, object]:
    schedules = zip(("few", "many"), WORLDS.values(), strict=True)
    return {
        **{"length": LENGTH, "letters": LETTERS, "strings": STRINGS, "noise": NOISE, "low": 1 - LOW, "high": 1 + HIGH},
        **{f"{few}_{key}": value for few, schedule in schedules for key, value in schedule._asdict().items()},
        **{"chance": 1 / LETTERS, "table": LENGTH * LETTERS**2},
        "test": sentences.test_of(f"{SEEDS} seeds"),
    }


def _compare_presets(world: str, rows: World, context: Context) -> Iterator[str]:
    ppo = preset_rewards(world, NAMED[0])
    gaps = {
        name: difference(preset_rewards(world, name), ppo, better=SCORE.better, tie=SCORE.tie) for name in NAMED[1:]
    }
    others = [
        f"{name} {fmean(preset_rewards(world, name)):.3f} ({NOT_TOLD if row.verdict == NO_DIFFERENCE else row.verdict})"
        for name, row in holm(gaps).items()
    ]
    yield f"losses of pseudograd.policy.presets against {NAMED[0]} ({fmean(ppo):.3f}): {listed(others)}."


POLICY = Task(
    name="policy",
    title="A policy learns from strings, and a clip holds it back",
    worlds=lambda settings: tuple(WORLDS),
    run=_run,
    columns={"reward": "expected reward", "worst": "of the worst seed"},
    score=SCORE,
    headline=("reward", "reward"),
    has_leaves=False,
    setting=_SETTING,
    context=_context,
    each=_compare_presets,
    order=190,
)
