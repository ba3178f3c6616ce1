"""Agents: actors and critics, values of a target net, rewards of a model."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis

from ..programs import planted
from ..trainers import Parts, steps


class Actor(nn.Module):
    """A squashed Gaussian."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.mean, self.spread = nn.Linear(4, 16), nn.Linear(16, 2), nn.Linear(16, 2)

    def log_std(self, h: Tensor) -> Tensor:
        return -20 + 11 * (torch.tanh(self.spread(h)) + 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(self.body(state))
        normal = torch.distributions.Normal(self.mean(h), self.log_std(h).exp())
        raw = normal.rsample()
        action = torch.tanh(raw)
        return action, (normal.log_prob(raw) - torch.log(1 - action.square() + 1e-6)).sum(-1)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 1)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(torch.cat([state, action], -1))))[:, 0]


def soft_actor_critic(actor: Actor, count: int = 3) -> Diagnosis:
    """The actor alone is meant: its critic is trained besides, its target net follows."""
    critic = Critic()
    target = copy.deepcopy(critic)
    of_actor, of_critic = torch.optim.Adam(actor.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)
    with diagnose(actor) as d:
        for _ in range(count):
            state, reward, later = torch.randn(32, 4), torch.randn(32), torch.randn(32, 4)
            with torch.no_grad():
                action, log_p = actor(later)
                value = reward + 0.99 * (target(later, action) - 0.2 * log_p)
            of_critic.zero_grad()
            functional.mse_loss(critic(state, torch.rand(32, 2) * 2 - 1), value).backward()
            of_critic.step()
            of_actor.zero_grad()
            action, log_p = actor(state)
            (0.2 * log_p - critic(state, action)).mean().backward()
            of_actor.step()
            with torch.no_grad():
                for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                    old.lerp_(new, 0.01)
    return d


@planted("starved", "spread.weight", "spread.bias")
def a_log_std_starts_beyond_its_clamp() -> Diagnosis:
    class Clamped(Actor):
        def __init__(self) -> None:
            super().__init__()
            nn.init.constant_(self.spread.bias, 6.0)

        def log_std(self, h: Tensor) -> Tensor:
            return self.spread(h).clamp(-20, 2)  # fault: log_std clamp

    return soft_actor_critic(Clamped())


@planted("starved", "body.weight", "body.bias", "mean.weight", "mean.bias")
def an_actor_acts_by_argmax() -> Diagnosis:
    class Net(Parts):
        def forward(self, state: Tensor) -> Tensor:
            chosen = self.mean(torch.tanh(self.body(state))).argmax(-1)  # fault: greedy action in a loss
            return -self.values(state).gather(-1, chosen[:, None]).mean()

    net = Net(body=nn.Linear(4, 16), mean=nn.Linear(16, 3), values=nn.Linear(4, 3))
    state = torch.randn(32, 4)
    return steps(net, lambda: net(state))


@planted("starved", "0.weight", "0.bias", "2.weight", "2.bias")
def the_prediction_of_a_q_net_is_detached() -> Diagnosis:
    q = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    target = copy.deepcopy(q)
    s, a, r, later = torch.randn(32, 4), torch.randint(3, (32, 1)), torch.randn(32), torch.randn(32, 4)

    def loss() -> Tensor:
        now = q(s).gather(1, a)[:, 0].detach()  # fault: prediction detached instead of its target
        return functional.smooth_l1_loss(now, r + 0.99 * target(later).max(1).values)

    return steps(q, loss)


@planted("starved", "actor.weight", "actor.bias")
def the_log_probability_is_taken_without_gradients() -> Diagnosis:
    net = Parts(actor=nn.Linear(4, 3), value=nn.Linear(4, 1))
    state, reward = torch.randn(32, 4), torch.randn(32)

    def loss() -> Tensor:
        with torch.no_grad():
            log_p = net.actor(state).log_softmax(-1)  # fault: log probabilities of the rollout
        action = torch.distributions.Categorical(logits=log_p).sample()
        advantage = reward - net.value(state)[:, 0]
        return (-log_p.gather(1, action[:, None])[:, 0] * advantage.detach() + advantage.square()).mean()

    return steps(net, loss)


@planted("starved", "policy.weight", "policy.bias")
def every_reward_of_a_model_is_clipped() -> Diagnosis:
    model = nn.Linear(6, 1).requires_grad_(False)

    net, state = Parts(policy=nn.Linear(4, 2)), torch.randn(32, 4)

    def loss() -> Tensor:
        raw = 100 + model(torch.cat([state, torch.tanh(net.policy(state))], -1))
        reward = raw.clamp(-1.0, 1.0)  # fault: clipped reward of a differentiable model
        return -reward.mean()

    return steps(net, loss)


@planted("cut")
def an_action_is_clipped_to_its_box() -> Diagnosis:
    net, critic = Parts(policy=nn.Linear(4, 2)), Critic().requires_grad_(False)
    state = torch.randn(32, 4) * 3

    def loss() -> Tensor:
        action = net.policy(state).clamp(-1.0, 1.0)  # fault: deterministic action clipped to its box
        return -critic(state, action).mean()

    return steps(net, loss)


@planted("wind-up")
def the_logarithm_of_a_temperature_runs_away() -> Diagnosis:
    """Entropy stays above its target, so the temperature is pushed down for ever."""
    log_alpha = nn.Parameter(torch.tensor([-4.5]))
    optimizer = torch.optim.Adam([log_alpha], 0.1)

    def loss() -> Tensor:
        bounded = log_alpha + (log_alpha.clamp(-5, 2) - log_alpha).detach()  # fault: wind-up of a straight-through
        return (bounded.exp() * 3.0).sum()

    return steps(None, loss, 30, optimizer=optimizer)
