"""Agents as in the textbooks."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.nn import functional

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis

from ..programs import clean
from ..trainers import steps


def net_of(*widths: int) -> nn.Sequential:
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def follow(slow: nn.Module, fast: nn.Module, share: float = 0.01) -> None:
    with torch.no_grad():
        for old, new in zip(slow.parameters(), fast.parameters(), strict=True):
            old.lerp_(new, share)


@clean()
def a_deep_q_network() -> Diagnosis:
    q = net_of(4, 32, 3)
    target, optimizer = copy.deepcopy(q), torch.optim.Adam(q.parameters(), 1e-3)
    with diagnose() as d:
        for step in range(6):
            s, later, r = torch.randn(32, 4), torch.randn(32, 4), torch.randn(32).clamp(-1, 1)
            with torch.no_grad():
                greedy = q(s).argmax(-1)
                a = torch.where(torch.rand(32) < 0.1, torch.randint(3, (32,)), greedy)
                best = q(later).argmax(-1, keepdim=True)
                value = r + 0.99 * target(later).gather(1, best)[:, 0]
            optimizer.zero_grad()
            functional.smooth_l1_loss(q(s).gather(1, a[:, None])[:, 0], value).backward()
            nn.utils.clip_grad_value_(q.parameters(), 100)
            optimizer.step()
            if step % 3 == 2:
                target.load_state_dict(q.state_dict())
    return d


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = (
            nn.Sequential(nn.Linear(4, 32), nn.Tanh()),
            nn.Linear(32, 3),
            nn.Linear(32, 1),
        )

    def forward(self, state: Tensor) -> tuple[Categorical, Tensor]:
        h = self.body(state)
        return Categorical(logits=self.actor(h)), self.critic(h)[:, 0]


@clean()
def the_likelihood_ratio_with_a_baseline() -> Diagnosis:
    net = ActorCritic()

    def loss() -> Tensor:
        policy, value = net(torch.randn(64, 4))
        action = policy.sample()
        advantage = (action == 1).float() - value
        chosen = policy.log_prob(action) * advantage.detach()
        return (-chosen + 0.5 * advantage.square() - 0.01 * policy.entropy()).mean()

    return steps(net, loss)


@clean()
def a_policy_with_clipped_ratios() -> Diagnosis:
    net = ActorCritic()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3, eps=1e-5)
    with diagnose(net) as d:
        state = torch.randn(128, 4)
        with torch.no_grad():
            policy, old_value = net(state)
            action = policy.sample()
            old = policy.log_prob(action)
            gain = (action == 1).float() + state[:, 0]
            advantage = gain - old_value
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(10):
            policy, value = net(state)
            ratio = (policy.log_prob(action) - old).exp()
            clipped = ratio.clamp(0.8, 1.2)
            near = old_value + (value - old_value).clamp(-0.2, 0.2)
            of_value = torch.max((value - gain).square(), (near - gain).square()).mean()
            gained = torch.min(ratio * advantage, clipped * advantage).mean()
            optimizer.zero_grad()
            (-gained + 0.5 * of_value - 0.01 * policy.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
    return d


class Gaussian(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = net_of(4, 32, 4)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.body(state).chunk(2, -1)
        normal = Normal(mean, log_std.clamp(-20, 2).exp())
        raw = normal.rsample()
        action = torch.tanh(raw)
        return action, (normal.log_prob(raw) - torch.log(1 - action.square() + 1e-6)).sum(-1)


@clean()
def soft_actor_critic() -> Diagnosis:
    actor, one, two, log_alpha = Gaussian(), net_of(6, 32, 1), net_of(6, 32, 1), nn.Parameter(torch.zeros(()))
    slow_one, slow_two = copy.deepcopy(one), copy.deepcopy(two)
    of_actor = torch.optim.Adam(actor.parameters(), 1e-3)
    of_critics = torch.optim.Adam([*one.parameters(), *two.parameters()], 1e-3)
    of_alpha = torch.optim.Adam([log_alpha], 1e-3)
    with diagnose() as d:
        for _ in range(4):
            s, a, r, later = torch.randn(32, 4), torch.rand(32, 2) * 2 - 1, torch.randn(32, 1), torch.randn(32, 4)
            alpha = log_alpha.exp().detach()
            with torch.no_grad():
                next_action, log_p = actor(later)
                pair = torch.cat([later, next_action], -1)
                value = r + 0.99 * (torch.min(slow_one(pair), slow_two(pair)) - alpha * log_p[:, None])
            pair = torch.cat([s, a], -1)
            of_critics.zero_grad()
            (functional.mse_loss(one(pair), value) + functional.mse_loss(two(pair), value)).backward()
            of_critics.step()
            action, log_p = actor(s)
            pair = torch.cat([s, action], -1)
            of_actor.zero_grad()
            (alpha * log_p[:, None] - torch.min(one(pair), two(pair))).mean().backward()
            of_actor.step()
            of_alpha.zero_grad()
            (-log_alpha * (log_p + -2.0).detach().mean()).backward()
            of_alpha.step()
            follow(slow_one, one)
            follow(slow_two, two)
    return d


@clean()
def twin_delayed_deterministic_gradients() -> Diagnosis:
    """The actor steps every second time; noise and clipping are of targets alone."""
    actor, critic = nn.Sequential(net_of(4, 32, 2), nn.Tanh()), net_of(6, 32, 1)
    slow_actor, slow_critic = copy.deepcopy(actor), copy.deepcopy(critic)
    of_actor, of_critic = torch.optim.Adam(actor.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)
    with diagnose() as d:
        for step in range(6):
            s, a, r, later = torch.randn(32, 4), torch.rand(32, 2) * 2 - 1, torch.randn(32, 1), torch.randn(32, 4)
            with torch.no_grad():
                noise = (torch.randn(32, 2) * 0.2).clamp(-0.5, 0.5)
                next_action = (slow_actor(later) + noise).clamp(-1, 1)
                value = r + 0.99 * slow_critic(torch.cat([later, next_action], -1))
            of_critic.zero_grad()
            functional.mse_loss(critic(torch.cat([s, a], -1)), value).backward()
            of_critic.step()
            if step % 2:
                of_actor.zero_grad()
                (-critic(torch.cat([s, actor(s)], -1)).mean()).backward()
                of_actor.step()
                follow(slow_actor, actor)
                follow(slow_critic, critic)
    return d


@clean()
def a_distribution_of_returns() -> Diagnosis:
    """C51: the target's atoms are projected without gradients."""
    net, atoms = net_of(4, 32, 3 * 11), torch.linspace(-5, 5, 11)
    slow, optimizer = copy.deepcopy(net), torch.optim.Adam(net.parameters(), 1e-3)

    def loss() -> Tensor:
        s, a, r, later = torch.randn(32, 4), torch.randint(3, (32,)), torch.randn(32, 1), torch.randn(32, 4)
        with torch.no_grad():
            p = slow(later).view(32, 3, 11).softmax(-1)
            best = (p * atoms).sum(-1).argmax(-1)
            p = p[torch.arange(32), best]
            at = ((r + 0.99 * atoms).clamp(-5, 5) + 5) / 1.0
            low, high = at.floor().long(), at.ceil().long()
            goal = (
                torch.zeros(32, 11)
                .scatter_add_(1, low, p * (high - at + (low == high)))
                .scatter_add_(1, high, p * (at - low))
            )
        log_p = net(s).view(32, 3, 11).log_softmax(-1)[torch.arange(32), a]
        return -(goal * log_p).sum(-1).mean()

    return steps(net, loss, 4, optimizer=optimizer)
