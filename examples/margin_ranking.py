"""The loss that does not train since torch 2.14: a scorer whose last layer starts with zeros, as reward heads do.

It knows nothing of pseudograd.

python examples/margin_ranking.py                                        1.000 of the pairs on torch 2.13, 0.000 since 2.14
pseudograd run --pin "torch<=2.13" examples/margin_ranking.py            1.000 on both

At the start every two scores are equal, so that every pair stands exactly at the bound of the clamp in F.margin_ranking_loss, whose
margin is 0 unless one says otherwise. Until torch 2.13 that bound passed the gradient; since then it passes nothing, and nothing moves.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def ordered(steps: int = 200) -> float:
    """The share of pairs that the trained scorer puts in the right order."""
    torch.manual_seed(0)
    scorer = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    nn.init.zeros_(scorer[2].weight)
    nn.init.zeros_(scorer[2].bias)
    first, second = torch.randn(256, 8), torch.randn(256, 8)
    better = torch.sign(first.sum(1) - second.sum(1))
    optimiser = torch.optim.Adam(scorer.parameters(), 1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        functional.margin_ranking_loss(scorer(first)[:, 0], scorer(second)[:, 0], better).backward()
        optimiser.step()
    return ((scorer(first) - scorer(second))[:, 0] * better > 0).double().mean().item()


if __name__ == "__main__":
    print(f"torch {torch.__version__}: {ordered():.3f} of the pairs in the right order")
