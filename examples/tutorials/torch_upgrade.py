# %% [markdown]
# # A torch upgrade, survived
#
# A ranking model trained well. After an upgrade to torch 2.14 its loss does not change any more. Nobody edited the code.
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
# `pseudograd diagnose train.py` answers this without an edit. In code, put a context around a few steps:

# %%
with pg.pin_edge("torch>=2.14"), pg.diagnose() as diagnosis:
    train(steps=3)
for finding in diagnosis.findings:
    print(finding.code, "--", finding.expression)
    print("  ", finding.evidence)
    print("   next:", finding.next_step)

# %% [markdown]
# The loss contains a clamp. All scores are equal and the margin is 0, so every pair stands exactly at the bound of this clamp. Up to torch
# 2.13 the gradient passed at the bound and the scorer could move. Since 2.14 no gradient passes. (The next step names the pin because a pin
# replaces the upgrade on this page. With torch 2.14 and no pin, the next step is `with pseudograd.pin_edge('torch<=2.13'): ...`.)
#
# ## Is this the only cause?
#
# The pin changes gradients at kinks and nothing else. If the old result returns under the pin, no other change of the upgrade matters here:

# %%
with pg.pin_edge("torch<=2.13"):
    pinned = train()
assert pinned > 0.95
print(f"pinned to the old era, on any torch: {pinned:.3f}")

# %% [markdown]
# `pseudograd run --pin "torch<=2.13" train.py` does the same for a whole program. In a program with many clamps,
# `pseudograd bisect --pin "torch<=2.13" train.py` finds the lines that decide. A lasting remedy needs no pin: use a margin that is not 0,
# or a last layer that does not start at 0.
