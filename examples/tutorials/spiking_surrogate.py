# %% [markdown]
# # Which surrogate for a spiking network?
#
# A spike is a step of the membrane potential. Its slope is 0, or infinite at the threshold. Training replaces this slope by a *surrogate*.
# There are many surrogates. `pg.compare` trains with each one over several seeds and reports which differ by more than chance.

# %%
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import pseudograd as pg

digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)


def run(spike, seed):
    """A hidden layer of leaky integrate-and-fire neurons for six steps of time; the error on the second half of the digits."""
    hidden, last = nn.Linear(64, 48), nn.Linear(48, 10)
    optimizer = torch.optim.Adam([*hidden.parameters(), *last.parameters()], 1e-2)

    def scores(batch):
        potential, total = torch.zeros(len(batch), 48), 0
        for _ in range(6):
            potential = 0.8 * potential + hidden(batch)
            spikes = spike(potential - 1)
            potential = potential - spikes
            total = total + last(spikes)
        return total

    for _ in range(20):
        optimizer.zero_grad()
        functional.cross_entropy(scores(images[:400]), labels[:400]).backward()
        optimizer.step()
    with torch.no_grad():
        return (scores(images[900:]).argmax(1) != labels[900:]).double().mean().item()


surrogates = {
    "no surrogate": lambda x: pg.heaviside(x, rule="zero"),
    "window": lambda x: pg.heaviside(x, rule="window"),
    "triangle": lambda x: pg.heaviside(x, rule="triangle"),
    "sharp arctan": lambda x: pg.heaviside(x, rule=pg.rules.arctan(scale=0.05)),
}
comparison = pg.compare(run, variants=surrogates, baseline="no surrogate", seeds=9)
print(comparison)
assert comparison.verdict("triangle").verdict == "better"

# %% [markdown]
# Without a surrogate only the last layer trains. The report also compares the surrogates with each other. If nine
# seeds cannot show a difference, it says "not told apart".
