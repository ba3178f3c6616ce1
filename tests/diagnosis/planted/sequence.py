"""Transformers, recurrent nets, routing, contrastive pairs."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pseudograd.diagnosis.context import Diagnosis

from ..programs import planted
from ..trainers import Parts, by_hand, steps, trains

WORDS = 11


def words(count: int = 4, length: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randint(WORDS, (count, length)), torch.randint(WORDS, (count, length))


class Attention(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)

    def weights(self, x: Tensor) -> Tensor:
        return (self.query(x) @ self.key(x).mT / math.sqrt(x.shape[-1])).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.weights(x) @ self.value(x)


class Transformer(Parts):
    def __init__(self, attention: type[Attention] = Attention, **parts: Any) -> None:
        super().__init__(**parts)
        self.table, self.attention, self.norm = nn.Embedding(WORDS, 16), attention(), nn.LayerNorm(16)
        self.head = nn.Linear(16, WORDS)

    def hidden(self, x: Tensor) -> Tensor:
        return self.norm(self.attention(self.table(x)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.hidden(x)).flatten(0, 1), y.flatten())


@planted("starved", "attention.query.weight", "attention.query.bias", "attention.key.weight", "attention.key.bias")
def attention_is_scaled_by_ten_thousand() -> Diagnosis:
    class Sharp(Attention):
        def weights(self, x: Tensor) -> Tensor:
            scores = self.query(x) @ self.key(x).mT * 1e5
            return scores.softmax(-1)  # fault: softmax saturated by its scale

    x = torch.stack([torch.randperm(WORDS)[:6] for _ in range(4)])  # no word twice: equal keys would share the weight
    return by_hand(Transformer(Sharp), x, x)


@planted("starved", "attention.query.weight", "attention.query.bias", "attention.key.weight", "attention.key.bias")
def attention_takes_the_best_key() -> Diagnosis:
    class Hard(Attention):
        def weights(self, x: Tensor) -> Tensor:
            best = super().weights(x).argmax(-1)  # fault: one_hot of argmax
            return functional.one_hot(best, x.shape[1]).float()

    return by_hand(Transformer(Hard), *words())


@planted("starved", "router.weight", "router.bias")
def a_router_uses_its_indices_alone() -> Diagnosis:
    class Net(Transformer):
        def hidden(self, x: Tensor) -> Tensor:
            h = super().hidden(x)
            chosen = self.router(h).topk(2, -1).indices  # fault: indices of topk
            each = torch.stack([expert(h) for expert in self.experts], -2)
            return each.gather(-2, chosen[..., None].expand(*chosen.shape, 16)).mean(-2)

    return by_hand(Net(router=nn.Linear(16, 4), experts=nn.ModuleList(nn.Linear(16, 16) for _ in range(4))), *words())


@planted("starved", "score.weight", "score.bias")
def tokens_are_sorted_by_a_learned_score() -> Diagnosis:
    class Net(Transformer):
        def hidden(self, x: Tensor) -> Tensor:
            h = super().hidden(x)
            order = self.score(h)[..., 0].sort(-1)[1]  # fault: indices of sort
            return h.gather(1, order[..., None].expand_as(h))

    return by_hand(Net(score=nn.Linear(16, 1)), *words())


@planted("starved", "place.weight", "place.bias")
@trains(lambda: Transformer(place=nn.Linear(16, 1), places=nn.Embedding(8, 16)), words, method="hidden")
def positions_are_looked_up_after_rounding(net: Transformer, x: Tensor) -> Tensor:
    h = net.table(x)
    at = (net.place(h)[..., 0].sigmoid() * 7).round().long()  # fault: embedding index from rounding
    return net.norm(net.attention(h + net.places(at)))


@planted("starved", "table.weight")
def every_token_is_the_padding() -> Diagnosis:
    class Net(Transformer):
        def hidden(self, x: Tensor) -> Tensor:
            h = self.table(x * 0)  # fault: every token is padding_idx
            return self.norm(self.attention(h + self.places))

    net = Net(places=nn.Parameter(torch.randn(6, 16)))
    net.table = nn.Embedding(WORDS, 16, padding_idx=0)
    return by_hand(net, *words())


@planted("starved", "first.weight", "first.bias")
@trains(
    lambda: Parts(first=nn.Linear(8, 16), head=nn.Linear(16, 3)), lambda: (torch.randn(32, 8), torch.randint(3, (32,)))
)
def a_block_is_checkpointed_with_an_input_that_needs_nothing(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    hidden = checkpoint(net.first, x, use_reentrant=True)  # fault: reentrant checkpoint of data
    return functional.cross_entropy(net.head(hidden), y)


class Recurrent(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.table, self.input, self.again = nn.Embedding(WORDS, 8), nn.Linear(8, 12), nn.Linear(12, 12)
        self.start, self.head = nn.Parameter(torch.zeros(12)), nn.Linear(12, WORDS)
        with torch.no_grad():
            for layer in (self.input, self.again):
                layer.weight *= scale

    def step(self, h: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.input(x) + self.again(h))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h, words = self.start.expand(len(x), -1), self.table(x)
        for at in range(x.shape[1]):
            h = self.step(h, words[:, at])
        return functional.cross_entropy(self.head(h), y[:, -1])


@planted("starved", "start")
@trains(lambda: Recurrent(12.0), words, method="step")
def a_recurrent_net_is_clipped_at_every_step(net: Recurrent, h: Tensor, x: Tensor) -> Tensor:
    return functional.hardtanh(net.input(x) + net.again(h))  # fault: saturated hardtanh in a recurrent net


@planted("starved", "start")
def a_recurrent_state_is_detached_at_every_step() -> Diagnosis:
    class Net(Recurrent):
        def step(self, h: Tensor, x: Tensor) -> Tensor:
            return super().step(h.detach(), x)  # fault: hidden state detached within the sequence

    return by_hand(Net(), *words())


@planted("starved", "cell.weight_ih", "cell.bias_ih", "cell.bias_hh", "cell.weight_hh", "head.weight")
@trains(
    lambda: Parts(cell=nn.GRUCell(8, 12), head=nn.Linear(12, 3)), lambda: (torch.randn(8, 4, 8), torch.randint(3, (8,)))
)
def a_gated_net_whose_update_is_masked_away(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    h, lengths = torch.zeros(len(y), 12), torch.zeros(len(y))  # meant: their real lengths
    for at in range(x.shape[1]):
        is_alive = (lengths > at).float()[:, None]
        h = h + (net.cell(x[:, at], h) - h) * is_alive  # fault: sequence mask of zeros
    return functional.cross_entropy(net.head(h), y)


@planted("starved", "predictor.weight", "predictor.bias")
@trains(lambda: Parts(encoder=nn.Linear(8, 6), predictor=nn.Linear(6, 6)), lambda: (torch.randn(32, 8),))
def the_wrong_branch_of_a_siamese_net_is_detached(net: Parts, x: Tensor) -> Tensor:
    one, two = net.encoder(x + 0.1 * torch.randn_like(x)), net.encoder(x + 0.1 * torch.randn_like(x))
    guess = net.predictor(one).detach()  # fault: detach of the wrong branch
    return -functional.cosine_similarity(guess, two).mean()


@planted("starved", "online.weight", "online.bias")
def a_student_that_learns_nothing_from_its_teacher() -> Diagnosis:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.online, self.predictor = nn.Linear(8, 6), nn.Linear(6, 6)
            self.teacher = copy.deepcopy(self.online).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                target = self.teacher(x)
                h = self.online(x)  # fault: student under the no_grad of its teacher
            return functional.mse_loss(self.predictor(h), target)

    net = Net()
    x = torch.randn(32, 8)
    optimizer = torch.optim.Adam([*net.online.parameters(), *net.predictor.parameters()], 1e-3)
    return steps(net, lambda: net(x), optimizer=optimizer)


@planted("starved", "log_scale")
@trains(
    lambda: Parts(image=nn.Linear(8, 6), text=nn.Linear(8, 6), log_scale=nn.Parameter(torch.tensor(4.7))),
    lambda: (torch.randn(16, 8), torch.randn(16, 8)),
)
def a_contrastive_scale_beyond_its_limit(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    a, b = functional.normalize(net.image(x), dim=-1), functional.normalize(net.text(y), dim=-1)
    scale = net.log_scale.clamp(max=math.log(100)).exp()  # fault: logit scale beyond its clamp
    return functional.cross_entropy(scale * a @ b.T, torch.arange(len(x)))


@planted("starved", "delay")
def a_delay_is_an_integer() -> Diagnosis:
    class Net(Parts):
        def forward(self, wave: Tensor, heard: Tensor) -> Tensor:
            shift = int(self.delay)  # fault: int() of a parameter
            return functional.mse_loss(self.gain * wave.roll(shift), heard)

    wave = torch.randn(64)
    return by_hand(Net(delay=nn.Parameter(torch.tensor(3.3)), gain=nn.Parameter(torch.tensor(1.0))), wave, wave.roll(5))
