# %% [markdown]
# # Two-bit training: many weights are exactly at a bound
#
# A quantiser rounds weights to a few levels and clamps them to the first and the last level. Two bits have four
# levels. After rounding, many weights are *exactly* at the first or the last level. The gradient at the bound of the
# clamp decides this training.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import pseudograd as pg

digits = load_digits()
images = torch.tensor(digits.data[:512], dtype=torch.float32) / 16
labels = torch.tensor(digits.target[:512])


def quantised(weight, clamp, bits=2):
    """The weight on 2 ** bits levels, with the gradient of the unrounded weight. `clamp` decides the gradient at the bounds and outside."""
    top = 2 ** (bits - 1)
    scale = weight.detach().abs().max() / (top - 0.5) / 1.5
    return clamp(pg.round(weight / scale), -top, top - 1) * scale


def train(clamp, seed=0, steps=120):
    torch.manual_seed(seed)
    first, last = nn.Linear(64, 32), nn.Linear(32, 10)
    optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()], 1e-2)
    losses = []
    for _ in range(steps):
        hidden = functional.gelu(functional.linear(images, quantised(first.weight, clamp), first.bias))
        loss = functional.cross_entropy(functional.linear(hidden, quantised(last.weight, clamp), last.bias), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


clamps = {
    "torch <= 2.13 (zero/closed)": lambda *x: pg.clamp(*x, rule="zero", edge="closed"),
    "torch >= 2.14 (zero/open)": lambda *x: pg.clamp(*x, rule="zero", edge="open"),
    "inward": pg.clamp,
}
losses = {name: train(clamp) for name, clamp in clamps.items()}
for name, curve in losses.items():
    print(f"{name:28} final loss {curve[-1]:.3f}")
assert losses["torch <= 2.13 (zero/closed)"][-1] < 0.5 * losses["torch >= 2.14 (zero/open)"][-1]

# %% [markdown]
# The three clamps return the same values, bit for bit. The first two differ only in the gradient exactly at a bound;
# `inward` also passes gradients outside.

# %%
figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
for (name, curve), colour in zip(losses.items(), ("#D55E00", "#8C2D04", "#0072B2"), strict=True):
    axes.plot(curve, label=name, color=colour)
axes.set(xlabel="step", ylabel="loss", yscale="log", title="Two bits: the same forward, another gradient at the bound")
axes.legend()
plt.show()

# %% [markdown]
# ## How many weights stand at a bound?

# %%
with pg.diagnose() as diagnosis:
    train(torch.clamp, steps=5)
site = max((site for site in diagnosis.sites if site.op == "clamp"), key=lambda site: site.at_bound)
print(f"{site.at_bound} of {site.elements} weights stood exactly at a bound, over five steps")
assert site.at_bound > 0.1 * site.elements
