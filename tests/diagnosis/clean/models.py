"""Autoencoders, adversaries, codebooks, simulations, agents, language models, recurrent nets, routing."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional

import pseudograd as pg
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


@clean()
def a_generator_and_its_critic_in_turn() -> Diagnosis:
    generator, critic = mlp(4, 32, 8), nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    for layer in (generator[0], generator[2], critic[0], critic[2]):
        nn.init.normal_(layer.weight, 0.0, 0.2)
    generator_optimizer, critic_optimizer = (torch.optim.Adam(net.parameters(), 2e-4) for net in (generator, critic))

    def loss() -> Tensor:
        real, fake = rows(), generator(torch.randn(64, 4))
        believed = functional.binary_cross_entropy_with_logits
        critic_optimizer.zero_grad()
        (believed(critic(real), torch.ones(64, 1)) + believed(critic(fake.detach()), torch.zeros(64, 1))).backward()
        critic_optimizer.step()
        return believed(critic(fake), torch.ones(64, 1))

    return steps(None, loss, 4, optimizer=generator_optimizer)


@clean()
def a_codebook_with_both_of_its_losses() -> Diagnosis:
    """Of 64 codes a batch uses some; the others wait."""

    class Net(Parts):
        def forward(self, x: Tensor) -> Tensor:
            z = self.encode(x)
            with torch.no_grad():
                nearest = torch.cdist(z, self.code.weight).argmin(-1)
            q = self.code(nearest)
            drawn = functional.mse_loss(q, z.detach()) + 0.25 * functional.mse_loss(z, q.detach())
            return functional.mse_loss(self.decode(z + (q - z).detach()), x) + drawn

    net = Net(encode=mlp(8, 16, 4), decode=mlp(4, 16, 8), code=nn.Embedding(64, 4))
    return steps(net, lambda: net(rows()))


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


@clean()
def spikes_with_a_surrogate() -> Diagnosis:
    class Net(Parts):
        def forward(self, x: Tensor) -> Tensor:
            voltage, total = torch.zeros(len(x), 32), torch.zeros(len(x), 3)
            for _ in range(6):
                voltage = torch.sigmoid(self.leak) * voltage + self.encode(x)
                spikes = pg.heaviside(voltage - 0.3, rule="arctan")
                voltage = voltage - 0.3 * spikes.detach()
                total = total + self.head(spikes)
            return total

    net, x, y = (
        Net(encode=nn.Linear(6, 32), head=nn.Linear(32, 3), leak=nn.Parameter(torch.tensor(2.0))),
        torch.rand(32, 6),
        torch.randint(3, (32,)),
    )
    return steps(net, lambda: functional.cross_entropy(net(x), y))


@clean()
def a_fixed_point_and_one_more_step() -> Diagnosis:
    """The iteration runs without gradients; its last step has one."""

    class Implicit(Parts):
        def step(self, z: Tensor, x: Tensor) -> Tensor:
            return torch.tanh(0.5 * self.again(z) + x)

        def forward(self, x: Tensor) -> Tensor:
            x = self.input(x)
            with torch.no_grad():
                z = torch.zeros_like(x)
                for _ in range(10):
                    z = self.step(z, x)
            return self.head(self.step(z, x))

    net, x, y = (
        Implicit(again=nn.Linear(8, 8), input=nn.Linear(6, 8), head=nn.Linear(8, 2)),
        torch.randn(16, 6),
        torch.randint(2, (16,)),
    )
    return steps(net, lambda: functional.cross_entropy(net(x), y))


@clean()
def a_deep_q_network() -> Diagnosis:
    q = mlp(4, 32, 3)
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
        self.body, self.actor, self.critic = nn.Linear(4, 32), nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, state: Tensor) -> tuple[Categorical, Tensor]:
        h = torch.tanh(self.body(state))
        return Categorical(logits=self.actor(h)), self.critic(h)[:, 0]


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
            value_loss = torch.max((value - gain).square(), (near - gain).square()).mean()
            gained = torch.min(ratio * advantage, clipped * advantage).mean()
            optimizer.zero_grad()
            (-gained + 0.5 * value_loss - 0.01 * policy.entropy().mean()).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
    return d


WORDS = 50  # most of which no batch has


class Language(nn.Module):
    """A causal transformer whose head is its embedding, and whose last positions may be padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(WORDS, 16, padding_idx=0), nn.Embedding(12, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        padding = torch.zeros(x.shape).masked_fill(x == 0, -torch.inf)
        h = self.table(x) + self.places(torch.arange(length))
        return self.head(self.layers(h, mask=mask, src_key_padding_mask=padding, is_causal=True))


@clean()
def a_language_model_with_padding() -> Diagnosis:
    net, x = Language(), torch.randint(1, 20, (4, 9))
    x[:2, 6:] = 0

    def loss() -> Tensor:
        return functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten(), ignore_index=0)

    return steps(net, loss)


@clean()
def attention_by_one_fused_call() -> Diagnosis:
    class Net(Parts):
        def forward(self, x: Tensor) -> Tensor:
            h = self.table(x)
            q, k, v = self.mixed(self.norm(h)).unflatten(-1, (3, 2, 8)).unbind(-3)
            mixed = functional.scaled_dot_product_attention(
                *(projection.transpose(1, 2) for projection in (q, k, v)), is_causal=True
            )
            return self.head(h + mixed.transpose(1, 2).flatten(-2))

    net, x = (
        Net(table=nn.Embedding(WORDS, 16), mixed=nn.Linear(16, 48), head=nn.Linear(16, WORDS), norm=nn.RMSNorm(16)),
        torch.randint(WORDS, (4, 8)),
    )
    return steps(net, lambda: functional.cross_entropy(net(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()))


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


@clean()
def guesses_are_fed_back_now_and_then() -> Diagnosis:
    """Scheduled sampling: the word that is fed back is a choice."""

    class Net(Parts):
        def forward(self, x: Tensor) -> Tensor:
            h, word, losses = torch.zeros(len(x), 16), x[:, 0], []
            for at in range(1, x.shape[1]):
                h = self.cell(self.table(word), h)
                logits = self.head(h)
                losses.append(functional.cross_entropy(logits, x[:, at]))
                word = logits.argmax(-1) if at % 2 else x[:, at]
            return torch.stack(losses).mean()

    net, x = Net(table=nn.Embedding(20, 8), cell=nn.GRUCell(8, 16), head=nn.Linear(16, 20)), torch.randint(20, (4, 7))
    return steps(net, lambda: net(x))


@clean()
def experts_of_which_some_are_idle() -> Diagnosis:
    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.head = nn.Linear(8, 6), nn.Linear(8, 3)
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(6))
            with torch.no_grad():
                self.router.bias[5] = -4.0  # this one waits for its turn

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            p = self.router(x).softmax(-1)
            weights, chosen = p.topk(2, -1)
            weights = weights / weights.sum(-1, keepdim=True)
            y = torch.zeros_like(x)
            for number, expert in enumerate(self.experts):
                row, slot = (chosen == number).nonzero(as_tuple=True)
                if len(row):
                    y = y.index_add(0, row, weights[row, slot, None] * expert(x[row]))
            load = functional.one_hot(chosen, 6).float().mean((0, 1))
            return self.head(x + y), 6 * (load * p.mean(0)).sum()

    net, x, y = Mixture(), torch.randn(32, 8), torch.randint(3, (32,))

    def loss() -> Tensor:
        logits, balance = net(x)
        return functional.cross_entropy(logits, y) + 0.01 * balance

    return steps(net, loss)


@clean()
def a_sparse_autoencoder_keeps_the_largest() -> Diagnosis:
    class Net(Parts):
        def forward(self, x: Tensor) -> Tensor:
            best, at = functional.relu(self.encode(x - self.decode.bias)).topk(6, -1)
            code = torch.zeros(len(x), 32).scatter(-1, at, best)
            return functional.mse_loss(self.decode(code), x)

    net = Net(encode=nn.Linear(8, 32), decode=nn.Linear(32, 8))
    return steps(net, lambda: net(torch.randn(128, 8)))
