"""Autoencoders, adversaries, codebooks, simulations, agents, language models, recurrent nets, routing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional

import pseudograd as pg
from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis

from ..programs import clean
from ..trainers import Parts, mlp, steps, trains


def rows() -> tuple[Tensor]:
    return (torch.rand(64, 8),)


@clean()
@trains(lambda: Parts(encode=mlp(8, 16, 8), decode=mlp(4, 16, 8)), rows)
def a_variational_autoencoder(net: Parts, x: Tensor) -> Tensor:
    """Its log variance has limits that nothing meets."""
    mean, log_var = net.encode(x).chunk(2, -1)
    log_var = log_var.clamp(-30, 20)
    z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
    kl = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(-1)
    free_bits = kl.clamp(min=0.05)
    return (functional.binary_cross_entropy_with_logits(net.decode(z), x, reduction="none").sum(-1) + free_bits).mean()


@clean()
@trains(lambda: Parts(encode=mlp(8, 16, 4), decode=mlp(4, 16, 8), code=nn.Embedding(64, 4)), rows)
def a_codebook_with_both_of_its_losses(net: Parts, x: Tensor) -> Tensor:
    """A batch uses some of the 64 codes."""
    z = net.encode(x)
    with torch.no_grad():
        nearest = torch.cdist(z, net.code.weight).argmin(-1)
    q = net.code(nearest)
    codes_loss = functional.mse_loss(q, z.detach()) + 0.25 * functional.mse_loss(z, q.detach())
    return functional.mse_loss(net.decode(z + (q - z).detach()), x) + codes_loss


@clean()
def scores_are_matched_by_a_second_derivative() -> Diagnosis:
    energy = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 1, bias=False))  # a constant would have no score

    def loss() -> Tensor:
        x = torch.randn(64, 2, requires_grad=True)
        (score,) = torch.autograd.grad(-energy(x).sum(), x, create_graph=True)
        trace = sum(torch.autograd.grad(score[:, at].sum(), x, create_graph=True)[0][:, at] for at in range(2))
        return (trace + 0.5 * score.square().sum(-1)).mean()

    return steps(energy, loss)


@clean()
@trains(
    lambda: Parts(encode=nn.Linear(6, 32), head=nn.Linear(32, 3), leak=nn.Parameter(torch.tensor(2.0))),
    lambda: (torch.rand(32, 6), torch.randint(3, (32,))),
)
def spikes_with_a_surrogate(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    voltage, total = torch.zeros(len(x), 32), torch.zeros(len(x), 3)
    for _ in range(6):
        voltage = torch.sigmoid(net.leak) * voltage + net.encode(x)
        spikes = pg.heaviside(voltage - 0.3, rule="arctan")
        voltage = voltage - 0.3 * spikes.detach()
        total = total + net.head(spikes)
    return functional.cross_entropy(total, y)


@clean()
def a_policy_with_clipped_ratios() -> Diagnosis:
    """As in PPO: the ratio and the value are clipped."""
    net = Parts(body=nn.Linear(4, 32), actor=nn.Linear(32, 3), critic=nn.Linear(32, 1))

    def act() -> tuple[Categorical, Tensor]:
        h = torch.tanh(net.body(state))
        return Categorical(logits=net.actor(h)), net.critic(h)[:, 0]

    state = torch.randn(128, 4)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3, eps=1e-5)
    with diagnose(net) as d:
        with torch.no_grad():
            policy, old_value = act()
            action = policy.sample()
            old = policy.log_prob(action)
            gain = (action == 1).float() + state[:, 0]
            advantage = gain - old_value
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(10):
            policy, value = act()
            ratio = (policy.log_prob(action) - old).exp()
            clipped = ratio.clamp(0.8, 1.2)
            near = old_value + (value - old_value).clamp(-0.2, 0.2)
            value_loss = torch.max((value - gain).square(), (near - gain).square()).mean()
            gained = torch.min(ratio * advantage, clipped * advantage).mean()
            optimizer.zero_grad()
            (-gained + 0.5 * value_loss - 0.01 * policy.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
    return d


WORDS = 50  # most of which no batch has


def language() -> Parts:
    table, head = nn.Embedding(WORDS, 16, padding_idx=0), nn.Linear(16, WORDS, bias=False)
    head.weight = table.weight
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
    layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return Parts(table=table, positions=nn.Embedding(12, 16), layers=layers, head=head)


def padded_words() -> tuple[Tensor]:
    x = torch.randint(1, 20, (4, 9))
    x[:2, 6:] = 0
    return (x,)


@clean()
@trains(language, padded_words)
def a_language_model_with_padding(net: Parts, x: Tensor) -> Tensor:
    """A causal transformer whose head is its embedding."""
    before, after = x[:, :-1], x[:, 1:]
    mask = nn.Transformer.generate_square_subsequent_mask(8)
    padding = torch.zeros(before.shape).masked_fill(before == 0, -torch.inf)
    h = net.table(before) + net.positions(torch.arange(8))
    logits = net.head(net.layers(h, mask=mask, src_key_padding_mask=padding, is_causal=True))
    return functional.cross_entropy(logits.flatten(0, 1), after.flatten(), ignore_index=0)


@clean()
def a_recurrent_net_over_windows_of_a_long_text() -> Diagnosis:
    """The state goes on from window to window, as data."""

    net, text, state = (
        Parts(table=nn.Embedding(20, 8), cell=nn.LSTM(8, 16, 2, dropout=0.1), head=nn.Linear(16, 20)),
        torch.randint(20, (60, 4)),
        None,
    )
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    with diagnose(net) as d:
        for start in range(0, 50, 10):
            window = text[start : start + 10]
            h, state = net.cell(net.table(window), state)
            state = tuple(tensor.detach() for tensor in state)
            optimizer.zero_grad()
            functional.cross_entropy(net.head(h).flatten(0, 1), text[start + 1 : start + 11].flatten()).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.25)
            optimizer.step()
    return d
