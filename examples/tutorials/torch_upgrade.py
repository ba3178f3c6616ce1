# %% [markdown]
# # A torch upgrade, survived
#
# A ranking model trained well until torch was upgraded to 2.14. Now its loss does not move. Nothing in the code changed.
#
# This page runs on any torch: `pin_edge("torch>=2.14")` stands for the upgrade.

# %%
import torch
from torch import nn

import pseudograd as pg


def train(steps=100):
    """Scores for 256 pairs; at the end the share of pairs that stand in the right order."""
    torch.manual_seed(0)
    scorer = nn.Linear(8, 1)
    nn.init.zeros_(scorer.weight)  # as reward heads start
    nn.init.zeros_(scorer.bias)
    first, second = torch.randn(256, 8), torch.randn(256, 8)
    better = torch.sign(first.sum(1) - second.sum(1))
    optimizer = torch.optim.Adam(scorer.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.margin_ranking_loss(scorer(first)[:, 0], scorer(second)[:, 0], better).backward()
        optimizer.step()
    return (((scorer(first) - scorer(second))[:, 0] * better) > 0).double().mean().item()


with pg.pin_edge("torch<=2.13"):
    print(f"before the upgrade: {train():.3f} of the pairs in the right order")
with pg.pin_edge("torch>=2.14"):
    print(f"after it:           {train():.3f}")

# %% [markdown]
# ## Which line cuts the gradient?
#
# `pseudograd diagnose train.py` says it without an edit. In code it is a context around a few steps:

# %%
with pg.pin_edge("torch>=2.14"), pg.diagnose() as found:
    train(steps=3)
for finding in found.findings:
    print(finding.code, "--", finding.expression)
    print("  ", finding.evidence)
    print("   next:", finding.next_step)

# %% [markdown]
# Every pair stands exactly at the bound of a clamp that the loss hides: the scores are equal, and the margin is 0. Until torch 2.13 the
# bound passed the gradient, and the scorer could leave; since 2.14 it passes nothing. (The next step speaks of the pin because a pin stands
# for the upgrade here. On a torch from 2.14 on, without one, it is `with pseudograd.pin_edge('torch<=2.13'): ...`.)
#
# ## Is it only that?
#
# The pin changes nothing but gradients at kinks. If the old result comes back under it, the upgrade changed nothing else that matters:

# %%
with pg.pin_edge("torch<=2.13"):
    pinned = train()
assert pinned > 0.95
print(f"pinned to the old era, on any torch: {pinned:.3f}")

# %% [markdown]
# From outside: `pseudograd run --pin "torch<=2.13" train.py`. With many lines, `pseudograd bisect --pin "torch<=2.13" train.py` finds
# those that decide. A lasting remedy here is one argument, on any torch: a margin that is not 0, or a last layer that does not start at 0.
