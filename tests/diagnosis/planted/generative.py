"""Autoencoders, adversaries, denoisers, codebooks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal, kl_divergence
from torch.nn import functional

from pseudograd.diagnosis.context import Diagnosis

from ..programs import planted
from ..trainers import Parts, by_hand, steps, trains


def rows(count: int = 32, width: int = 8) -> Tensor:
    return torch.rand(count, width)


class Autoencoder(Parts):
    """The encoder gives the mean and the logarithm of the deviation."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.encode, self.mean, self.spread = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.decode = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 8))

    def posterior(self, x: Tensor) -> Normal:
        h = functional.silu(self.encode(x))
        return Normal(self.mean(h), self.spread(h).exp())

    def forward(self, x: Tensor) -> Tensor:
        latent = self.posterior(x)
        z = latent.rsample()
        unit = Normal(torch.zeros(4), torch.ones(4))
        return functional.mse_loss(self.decode(z), x) + 1e-3 * kl_divergence(latent, unit).mean()


@planted("starved", "encode.weight", "encode.bias", "mean.weight", "mean.bias", "spread.weight", "spread.bias")
@trains(Autoencoder, lambda: (rows(),))
def a_latent_is_sampled_without_reparametrisation(net: Autoencoder, x: Tensor) -> Tensor:
    z = net.posterior(x).sample()  # fault: sample() instead of rsample()
    return functional.mse_loss(net.decode(z), x)


@planted("starved", "spread.weight", "spread.bias")
def a_log_variance_is_clamped_where_it_starts() -> Diagnosis:
    class Net(Autoencoder):
        def __init__(self) -> None:
            super().__init__()
            nn.init.constant_(self.spread.bias, 12.0)

        def posterior(self, x: Tensor) -> Normal:
            h = functional.silu(self.encode(x))
            log_var = self.spread(h).clamp(-10.0, 4.0)  # fault: log variance outside its clamp
            return Normal(self.mean(h), (0.5 * log_var).exp())

    return by_hand(Net(), rows())


@planted("starved", "encode.weight", "encode.bias")
@trains(lambda: Parts(encode=nn.Linear(8, 6), decode=nn.Linear(6, 8)), lambda: (rows(),))
def a_code_is_a_class_of_hard_choice(net: Parts, x: Tensor) -> Tensor:
    kind = Categorical(logits=net.encode(x)).sample()  # fault: categorical sample as a code
    return functional.mse_loss(net.decode(functional.one_hot(kind, 6).float()), x)


@planted("starved", "encode.weight", "encode.bias")
@trains(lambda: Parts(encode=nn.Linear(8, 6), table=nn.Embedding(6, 4), decode=nn.Linear(4, 8)), lambda: (rows(),))
def gumbel_noise_without_a_straight_through(net: Parts, x: Tensor) -> Tensor:
    soft = functional.gumbel_softmax(net.encode(x), tau=0.5)
    code = net.table(soft.max(-1).indices)  # fault: hard gumbel without a surrogate
    return functional.mse_loss(net.decode(code), x)


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
@trains(lambda: Parts(encode=nn.Linear(8, 4), decode=nn.Linear(4, 8), code=nn.Embedding(16, 4)), lambda: (rows(),))
def a_codebook_without_a_straight_through(net: Parts, x: Tensor) -> Tensor:
    nearest = torch.cdist(net.encode(x), net.code.weight).argmin(-1)  # fault: codebook index of argmin
    return functional.mse_loss(net.decode(net.code(nearest)), x)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 8))
        self.critic = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 1))


GENERATOR = tuple(f"generator.{name}" for name in ("0.weight", "0.bias", "2.weight", "2.bias"))


@planted("starved", *GENERATOR)
def a_generator_learns_from_a_detached_picture() -> Diagnosis:
    nets, real = Pair(), rows()
    of_generator = torch.optim.Adam(nets.generator.parameters(), 1e-3)
    of_critic = torch.optim.Adam(nets.critic.parameters(), 1e-3)

    def loss() -> Tensor:
        fake = nets.generator(torch.randn(32, 4)).detach()  # fault: detached fake in the generator's step
        of_critic.zero_grad()
        (nets.critic(fake).mean() - nets.critic(real).mean()).backward()
        of_critic.step()
        return -nets.critic(fake).mean()

    return steps(nets, loss, 4, optimizer=of_generator)


@planted("starved", *GENERATOR)
def a_generator_meets_a_critic_that_is_too_sure() -> Diagnosis:
    nets, real = Pair(), rows()
    nn.init.constant_(nets.critic[2].bias, -120.0)
    of_generator = torch.optim.Adam(nets.generator.parameters(), 1e-3)
    of_critic = torch.optim.Adam(nets.critic.parameters(), 1e-3)

    def loss() -> Tensor:
        fake = nets.generator(torch.randn(32, 4))
        of_generator.zero_grad()
        believed = torch.sigmoid(nets.critic(fake))  # fault: sigmoid saturated by a critic that is too sure
        torch.log(1 - believed).mean().backward()
        of_generator.step()
        return nets.critic(fake.detach()).square().mean() + (nets.critic(real) - 1).square().mean()

    return steps(nets, loss, 4, optimizer=of_critic)


class Denoiser(Parts):
    """A U-Net of two levels that predicts noise."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.time = nn.Linear(1, 8)
        self.down, self.middle = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.last = nn.Conv2d(16, 8, 3, padding=1), nn.Conv2d(8, 1, 3, padding=1)

    def noise(self, x: Tensor, t: Tensor) -> Tensor:
        skip = functional.silu(self.down(x) + self.time(t)[:, :, None, None])
        deep = functional.silu(self.middle(functional.avg_pool2d(skip, 2)))
        wide = functional.interpolate(deep, scale_factor=2, mode="nearest")
        return self.last(functional.silu(self.up(torch.cat([skip, wide], 1))))

    def forward(self, x: Tensor) -> Tensor:
        t, noise = torch.rand(len(x), 1), torch.randn_like(x)
        level = t[:, :, None, None]
        return functional.mse_loss(self.noise((1 - level) * x + level * noise, t), noise)


@planted("starved", "time.weight", "time.bias")
def a_denoiser_embeds_whole_numbers_of_time() -> Diagnosis:
    class Net(Denoiser):
        def noise(self, x: Tensor, t: Tensor) -> Tensor:
            at = self.times(self.time(t).mean(-1).floor().clamp(0, 9).to(torch.int64))  # fault: int cast of a time
            skip = functional.silu(self.down(x) + at[:, :, None, None])
            wide = functional.silu(self.middle(skip))
            return self.last(functional.silu(self.up(torch.cat([skip, wide], 1))))

    return by_hand(Net(times=nn.Embedding(10, 8)), torch.randn(4, 1, 8, 8))


@planted("starved", "down.weight", "down.bias", "time.weight", "time.bias", "middle.weight", "middle.bias")
def a_denoiser_whose_skip_and_depth_are_both_data() -> Diagnosis:
    class Net(Denoiser):
        def noise(self, x: Tensor, t: Tensor) -> Tensor:
            skip = functional.silu(self.down(x) + self.time(t)[:, :, None, None])
            deep = functional.silu(self.middle(skip))
            both = torch.cat([skip, deep], 1).clone().detach().requires_grad_()  # fault: detach().requires_grad_()
            return self.last(functional.silu(self.up(both)))

    return by_hand(Net(), torch.randn(4, 1, 8, 8))


@planted("cut")
@trains(Denoiser, lambda: (torch.rand(4, 1, 8, 8) * 2 - 1,))
def a_denoised_picture_is_clamped_before_its_loss(net: Denoiser, x: Tensor) -> Tensor:
    t, noise = torch.full((len(x), 1), 0.9), torch.randn_like(x)
    mixed = 0.1 * x + 0.9 * noise
    clean = (mixed - 0.9 * net.noise(mixed, t)) / 0.1
    clean = clean.clamp(-1, 1)  # fault: clamp of the predicted picture
    return functional.mse_loss(clean, x)
