"""Autoencoders, adversaries, denoisers, flows, codebooks."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis

from ..programs import clean
from ..trainers import Parts, steps


def rows(count: int = 64, width: int = 8) -> Tensor:
    return torch.rand(count, width)


def mlp(*widths: int) -> nn.Sequential:
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), nn.SiLU())]
    return nn.Sequential(*layers[:-1])


@clean()
def a_variational_autoencoder() -> Diagnosis:
    """Its log variance has limits that nothing meets."""

    class Net(Parts):
        def forward(self, x: Tensor) -> Tensor:
            mean, log_var = self.encode(x).chunk(2, -1)
            log_var = log_var.clamp(-30, 20)
            z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
            kl = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(-1)
            bits = kl.clamp(min=0.05)  # free bits
            shown = functional.binary_cross_entropy_with_logits(self.decode(z), x, reduction="none").sum(-1)
            return (shown + bits).mean()

    net = Net(encode=mlp(8, 16, 8), decode=mlp(4, 16, 8))
    return steps(net, lambda: net(rows()))


def adversaries() -> tuple[nn.Module, nn.Module, torch.optim.Optimizer, torch.optim.Optimizer]:
    generator = mlp(4, 32, 8)
    critic = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    rates = {"lr": 2e-4, "betas": (0.5, 0.999)}
    return (
        generator,
        critic,
        torch.optim.Adam(generator.parameters(), **rates),
        torch.optim.Adam(critic.parameters(), **rates),
    )


@clean()
def a_generator_and_its_critic_in_turn() -> Diagnosis:
    generator, critic, of_generator, of_critic = adversaries()
    for net in (generator, critic):
        for layer in net:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, 0.0, 0.2)

    def loss() -> Tensor:
        real, fake = rows(), generator(torch.randn(64, 4))
        believed = functional.binary_cross_entropy_with_logits
        of_critic.zero_grad()
        (believed(critic(real), torch.ones(64, 1)) + believed(critic(fake.detach()), torch.zeros(64, 1))).backward()
        of_critic.step()
        return believed(critic(fake), torch.ones(64, 1))

    return steps(None, loss, 4, optimizer=of_generator)


@clean()
def a_critic_with_a_gradient_penalty() -> Diagnosis:
    """Five steps of the critic for one of the generator."""
    generator, critic, of_generator, of_critic = adversaries()
    with diagnose() as d:
        for step in range(6):
            real = rows()
            fake = generator(torch.randn(64, 4)).detach()
            share = torch.rand(64, 1)
            between = (share * real + (1 - share) * fake).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            of_critic.zero_grad()
            (critic(fake).mean() - critic(real).mean() + 10 * (slope.norm(dim=-1) - 1).square().mean()).backward()
            of_critic.step()
            if step % 5 == 4:
                of_generator.zero_grad()
                (-critic(generator(torch.randn(64, 4))).mean()).backward()
                of_generator.step()
    return d


class UNet(nn.Module):
    """Two levels; its last layer starts at 0, as usual."""

    def __init__(self) -> None:
        super().__init__()
        self.time = mlp(8, 16, 8)
        self.down, self.middle = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.up = nn.GroupNorm(2, 8), nn.Conv2d(16, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 1, 3, padding=1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(-math.log(1e3) * torch.arange(4) / 4)
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))[:, :, None, None]
        skip = functional.silu(self.norm(self.down(x)) + time)
        deep = functional.silu(self.middle(functional.avg_pool2d(skip, 2)))
        wide = functional.interpolate(deep, scale_factor=2, mode="nearest")
        return self.last(functional.silu(self.up(torch.cat([skip, wide], 1))))


@clean()
def a_denoiser_with_an_average_of_its_weights() -> Diagnosis:
    net = UNet()
    slow, levels = copy.deepcopy(net).requires_grad_(False), torch.linspace(1.0, 0.01, 20).cumprod(0)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    with diagnose(net) as d:
        for _ in range(5):
            x, t = torch.rand(8, 1, 8, 8) * 2 - 1, torch.randint(20, (8,))
            noise, level = torch.randn_like(x), levels[t][:, None, None, None]
            optimizer.zero_grad()
            functional.mse_loss(net(level.sqrt() * x + (1 - level).sqrt() * noise, t), noise).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            for old, new in zip(slow.parameters(), net.parameters(), strict=True):
                old.data.lerp_(new.data, 0.1)
        with torch.no_grad():
            x = torch.randn(2, 1, 8, 8)
            guess = (x - slow(x, torch.tensor([3, 3]))).clamp(-1, 1)
            (guess * 127.5 + 128).clamp(0, 255).to(torch.uint8)
    return d


@clean()
def flow_matching() -> Diagnosis:
    net = mlp(9, 32, 8)

    def loss() -> Tensor:
        x, noise, t = rows(), torch.randn(64, 8), torch.rand(64, 1)
        return functional.mse_loss(net(torch.cat([(1 - t) * noise + t * x, t], -1)), x - noise)

    return steps(net, loss)


@clean()
def a_flow_of_couplings() -> Diagnosis:
    class Flow(Parts):
        def forward(self, x: Tensor) -> Tensor:
            total: Tensor | float = 0.0
            for number, net in enumerate(self.nets):
                a, b = x.chunk(2, -1) if number % 2 else x.chunk(2, -1)[::-1]
                scale, shift = net(a).chunk(2, -1)
                scale = torch.tanh(scale)
                x, total = torch.cat([b * scale.exp() + shift, a], -1), total + scale.sum(-1)
            return (0.5 * x.square().sum(-1) - total).mean()

    net = Flow(nets=nn.ModuleList(mlp(4, 16, 8) for _ in range(4)))
    return steps(net, lambda: net(torch.randn(64, 8)))


class Codes(Parts):
    """Of 64 codes a batch uses some; the others wait."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.encode, self.decode = mlp(8, 16, 4), mlp(4, 16, 8)
        self.code = nn.Embedding(64, 4)

    def nearest(self, z: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cdist(z, self.code.weight).argmin(-1)


@clean()
def a_codebook_with_both_of_its_losses() -> Diagnosis:
    class Net(Codes):
        def forward(self, x: Tensor) -> Tensor:
            z = self.encode(x)
            q = self.code(self.nearest(z))
            drawn = functional.mse_loss(q, z.detach()) + 0.25 * functional.mse_loss(z, q.detach())
            return functional.mse_loss(self.decode(z + (q - z).detach()), x) + drawn

    net = Net()
    return steps(net, lambda: net(rows()))


@clean()
def a_codebook_that_is_an_average() -> Diagnosis:
    """The codes are a buffer, moved without gradients."""

    class Net(Codes):
        def __init__(self) -> None:
            super().__init__()
            self.code.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            z = self.encode(x)
            at = self.nearest(z)
            q = self.code(at)
            with torch.no_grad():
                chosen = functional.one_hot(at, 64).float()
                sums, counts = chosen.T @ z, chosen.sum(0)[:, None]
                self.code.weight.copy_(
                    torch.where(
                        counts > 0,
                        0.9 * q.new_tensor(self.code.weight) + 0.1 * sums / counts.clamp(min=1),
                        self.code.weight,
                    )
                )
            return functional.mse_loss(self.decode(z + (q - z).detach()), x) + 0.25 * functional.mse_loss(z, q.detach())

    net = Net()
    return steps(
        net, lambda: net(rows()), optimizer=torch.optim.Adam([*net.encode.parameters(), *net.decode.parameters()], 1e-3)
    )


@clean()
def a_hard_choice_with_a_soft_gradient() -> Diagnosis:
    class Net(Parts):
        def forward(self, x: Tensor) -> Tensor:
            return functional.mse_loss(self.decode(functional.gumbel_softmax(self.encode(x), 1.0, hard=True)), x)

    net = Net(encode=mlp(8, 16, 6), decode=mlp(6, 16, 8))
    return steps(net, lambda: net(rows()))


@clean()
def scores_are_matched_by_a_second_derivative() -> Diagnosis:
    energy = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 1, bias=False))  # a constant would have no score

    def loss() -> Tensor:
        x = torch.randn(64, 2, requires_grad=True)
        (score,) = torch.autograd.grad(-energy(x).sum(), x, create_graph=True)
        trace = sum(torch.autograd.grad(score[:, at].sum(), x, create_graph=True)[0][:, at] for at in range(2))
        return (trace + 0.5 * score.square().sum(-1)).mean()

    return steps(energy, loss)
