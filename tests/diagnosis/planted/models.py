"""Autoencoders, adversaries, simulations, agents, transformers, recurrent nets, routing."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pseudograd.diagnosis.context import Diagnosis

from ..programs import planted
from ..trainers import Parts, steps, train_by_hand, trains


def rows(count: int = 32, width: int = 8) -> Tensor:
    return torch.rand(count, width)


@planted("starved", "encode.weight", "encode.bias")
@trains(lambda: Parts(encode=nn.Linear(8, 4), decode=nn.Linear(4, 8)), lambda: (rows(),))
def a_latent_is_sampled_without_reparametrisation(net: Parts, x: Tensor) -> Tensor:
    z = Normal(net.encode(x), 0.1).sample()  # fault: sample() instead of rsample()
    return functional.mse_loss(net.decode(z), x)


@planted("starved", "code", missed="the argmin one line before is blamed, and this line named beside it")
@trains(
    lambda: Parts(encode=nn.Linear(8, 4), decode=nn.Linear(4, 8), code=nn.Parameter(torch.randn(16, 4))),
    lambda: (rows(),),
)
def a_codebook_without_a_loss_of_its_own(net: Parts, x: Tensor) -> Tensor:
    z = net.encode(x)
    nearest = net.code[torch.cdist(z, net.code).argmin(-1)]
    q = z + (nearest - z).detach()  # fault: codebook without commitment
    return functional.mse_loss(net.decode(q), x)


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


@planted("cut")
@trains(
    lambda: Parts(stiffness=nn.Parameter(torch.tensor(5.0)), damping=nn.Parameter(torch.tensor(0.1))),
    lambda: (torch.cos(torch.arange(20) * 0.2),),
)
def a_spring_with_a_friction_cone(net: Parts, measured: Tensor) -> Tensor:
    x, v, path = torch.tensor(1.0), torch.tensor(0.0), []
    for _ in range(len(measured)):
        pull = -net.stiffness * x - net.damping * v
        force = torch.clamp(pull, -0.5, 0.5)  # fault: actuator limit in a simulation
        v = v + 0.1 * force
        x = x + 0.1 * v
        path.append(x)
    return functional.mse_loss(torch.stack(path), measured)


@planted("starved", "steps")
@trains(
    lambda: Parts(rate=nn.Parameter(torch.tensor(0.5)), steps=nn.Parameter(torch.tensor(4.6))),
    lambda: (torch.ones(4), torch.full((4,), 0.5)),
)
def a_number_of_steps_is_learned(net: Parts, x: Tensor, measured: Tensor) -> Tensor:
    for _ in range(int(net.steps.round())):  # fault: loop count from a parameter
        x = x - 0.1 * net.rate * x
    return functional.mse_loss(x, measured)


@planted("starved", "weight.weight", "weight.bias")
def a_fixed_point_is_found_without_gradients() -> Diagnosis:
    class Implicit(Parts):
        def solve(self, x: Tensor) -> Tensor:
            z = torch.zeros_like(x)
            with torch.no_grad():
                for _ in range(10):
                    z = torch.tanh(0.3 * self.weight(z) + x)  # fault: fixed point without its last step
            return z

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(self.head(self.solve(x)), y)

    return train_by_hand(
        Implicit(weight=nn.Linear(6, 6), head=nn.Linear(6, 2)), torch.randn(16, 6), torch.randint(2, (16,))
    )


@planted("starved", "0.weight", "0.bias", "2.weight", "2.bias")
def the_prediction_of_a_q_net_is_detached() -> Diagnosis:
    q = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    target = copy.deepcopy(q)
    s, a, r, later = torch.randn(32, 4), torch.randint(3, (32, 1)), torch.randn(32), torch.randn(32, 4)

    def loss() -> Tensor:
        now = q(s).gather(1, a)[:, 0].detach()  # fault: prediction detached instead of its target
        return functional.smooth_l1_loss(now, r + 0.99 * target(later).max(1).values)

    return steps(q, loss)


@planted("wind-up")
def the_logarithm_of_a_temperature_runs_away() -> Diagnosis:
    """Entropy stays above its target, so the temperature is pushed down for ever."""
    log_alpha = nn.Parameter(torch.tensor([-4.5]))
    optimizer = torch.optim.Adam([log_alpha], 0.1)

    def loss() -> Tensor:
        bounded = log_alpha + (log_alpha.clamp(-5, 2) - log_alpha).detach()  # fault: wind-up of a straight-through
        return (bounded.exp() * 3.0).sum()

    return steps(None, loss, 30, optimizer=optimizer)


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
    return train_by_hand(Transformer(Sharp), x, x)


@planted("starved", "router.weight", "router.bias")
def a_router_uses_its_indices_alone() -> Diagnosis:
    class Net(Transformer):
        def hidden(self, x: Tensor) -> Tensor:
            h = super().hidden(x)
            chosen = self.router(h).topk(2, -1).indices  # fault: indices of topk
            each = torch.stack([expert(h) for expert in self.experts], -2)
            return each.gather(-2, chosen[..., None].expand(*chosen.shape, 16)).mean(-2)

    return train_by_hand(
        Net(router=nn.Linear(16, 4), experts=nn.ModuleList(nn.Linear(16, 16) for _ in range(4))), *words()
    )


@planted("starved", "table.weight")
def every_token_is_the_padding() -> Diagnosis:
    class Net(Transformer):
        def hidden(self, x: Tensor) -> Tensor:
            h = self.table(x * 0)  # fault: every token is padding_idx
            return self.norm(self.attention(h + self.places))

    net = Net(places=nn.Parameter(torch.randn(6, 16)))
    net.table = nn.Embedding(WORDS, 16, padding_idx=0)
    return train_by_hand(net, *words())


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
def a_recurrent_state_is_detached_at_every_step() -> Diagnosis:
    class Net(Recurrent):
        def step(self, h: Tensor, x: Tensor) -> Tensor:
            return super().step(h.detach(), x)  # fault: hidden state detached within the sequence

    return train_by_hand(Net(), *words())
