"""Autoencoders, adversaries, simulations, agents, transformers, recurrent nets, routing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..programs import planted
from ..trainers import Parts, trains


def rows(count: int = 32, width: int = 8) -> Tensor:
    return torch.rand(count, width)


@planted("starved", "encode.weight", "encode.bias")
@trains(
    lambda: Parts(encode=nn.Linear(6, 12), head=nn.Linear(12, 3)), lambda: (torch.rand(16, 6), torch.randint(3, (16,)))
)
def spikes_without_a_surrogate(net: Parts, current: Tensor, y: Tensor) -> Tensor:
    voltage, total = torch.zeros(len(y), 12), torch.zeros(len(y), 3)
    for _ in range(4):
        voltage = 0.8 * voltage + net.encode(current)
        spikes = (voltage > 0.5).float()  # fault: spiking threshold without a surrogate
        voltage = voltage - spikes.detach()
        total = total + net.head(spikes)
    return functional.cross_entropy(total, y)


WORDS = 11


def words(count: int = 4, length: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randint(WORDS, (count, length)), torch.randint(WORDS, (count, length))


class Transformer(Parts):
    def __init__(self, **parts: object) -> None:
        super().__init__(**parts)
        self.table, self.norm, self.head = nn.Embedding(WORDS, 16), nn.LayerNorm(16), nn.Linear(16, WORDS)
        self.query, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def weights(self, x: Tensor) -> Tensor:
        return (self.query(x) @ self.key(x).mT / 4).softmax(-1)

    def hidden(self, x: Tensor) -> Tensor:
        h = self.table(x)
        return self.norm(h + self.weights(h) @ self.value(h))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.hidden(x)).flatten(0, 1), y.flatten())


def different_words() -> tuple[Tensor, Tensor]:
    """No word twice: equal keys would share the weight."""
    x = torch.stack([torch.randperm(WORDS)[:6] for _ in range(4)])
    return x, x


@planted("starved", "query.weight", "query.bias", "key.weight", "key.bias")
@trains(Transformer, different_words, method="weights")
def attention_is_scaled_by_ten_thousand(net: Transformer, x: Tensor) -> Tensor:
    scores = net.query(x) @ net.key(x).mT * 1e5
    return scores.softmax(-1)  # fault: softmax saturated by its scale


@planted("starved", "table.weight")
@trains(lambda: Parts(table=nn.Embedding(WORDS, 16, padding_idx=0), head=nn.Linear(16, WORDS)), words)
def every_token_is_the_padding(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    h = net.table(x * 0)  # fault: every token is padding_idx
    return functional.cross_entropy(net.head(h + 1).flatten(0, 1), y.flatten())


@planted("nonfinite")
@trains(
    lambda: Parts(project=nn.Linear(8, 24), head=nn.Linear(8, 2)),
    lambda: (torch.randn(4, 6, 8), torch.arange(6) >= torch.tensor([6, 4, 0, 5])[:, None]),
)
def attention_over_padding_alone(net: Parts, x: Tensor, padding: Tensor) -> Tensor:
    q, k, v = net.project(x).chunk(3, -1)
    scores = (q @ k.transpose(1, 2) / 8**0.5).masked_fill(padding[:, None], -torch.inf)
    attention = torch.softmax(scores, -1)  # fault: a row of -inf alone
    return net.head((attention @ v).masked_fill(padding[..., None], 0.0)).square().mean()
