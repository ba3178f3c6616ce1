"""Autoencoders, adversaries, codebooks, simulations, agents, language models, recurrent nets, routing."""

import torch
from torch import Tensor, nn
from torch.nn import functional

import pseudograd as pg
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
