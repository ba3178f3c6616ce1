"""Language models, recurrent nets, routing, pairs of texts and pictures."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis

from ..programs import clean
from ..trainers import Parts, steps

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
                q.mT.mT.transpose(1, 2), *(one.transpose(1, 2) for one in (k, v)), is_causal=True
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
            state = tuple(one.detach() for one in state)
            optimizer.zero_grad()
            functional.cross_entropy(net.head(h).flatten(0, 1), text[start + 1 : start + 11].flatten()).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.25)
            optimizer.step()
    return d


@clean()
def packed_sequences_of_several_lengths() -> Diagnosis:
    class Net(Parts):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            h, _ = nn.utils.rnn.pad_packed_sequence(self.cell(packed)[0], batch_first=True)
            is_real = torch.arange(h.shape[1]) < lengths[:, None]
            return self.head(h.masked_fill(~is_real[..., None], -1e4).amax(1))

    net, x, lengths, y = (
        Net(cell=nn.GRU(6, 12, batch_first=True, bidirectional=True), head=nn.Linear(24, 3)),
        torch.randn(6, 7, 6),
        torch.tensor([7, 3, 5, 2, 6, 7]),
        torch.randint(3, (6,)),
    )
    return steps(net, lambda: functional.cross_entropy(net(x, lengths), y))


@clean()
def a_translation_with_teacher_forcing() -> Diagnosis:
    class Net(Parts):
        def forward(self, source: Tensor, before: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(before.shape[1])
            return self.head(self.model(self.table(source), self.table(before), tgt_mask=mask))

    net, source, target = (
        Net(
            table=nn.Embedding(20, 16),
            model=nn.Transformer(16, 2, 1, 1, 32, batch_first=True, dropout=0.0),
            head=nn.Linear(16, 20),
        ),
        torch.randint(20, (4, 6)),
        torch.randint(20, (4, 5)),
    )
    return steps(
        net, lambda: functional.cross_entropy(net(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
    )


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


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(8, 6), nn.Linear(8, 6)
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = functional.normalize(self.image(x), dim=-1), functional.normalize(self.text(y), dim=-1)
        logits = self.log_scale.clamp(max=math.log(100)).exp() * a @ b.T
        labels = torch.arange(len(x))
        return (functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.T, labels)) / 2


@clean()
def pictures_and_texts_in_pairs() -> Diagnosis:
    net, x, y = TwoTowers(), torch.randn(16, 8), torch.randn(16, 8)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    with diagnose(net) as d:
        for _ in range(5):
            optimizer.zero_grad()
            net(x, y).backward()
            optimizer.step()
            with torch.no_grad():
                net.log_scale.clamp_(0, math.log(100))
    return d


@clean()
def preferences_against_a_reference() -> Diagnosis:
    """Direct preference optimisation: the reference is a frozen copy."""
    policy, reference = nn.Linear(8, 20), nn.Linear(8, 20)
    reference.load_state_dict(policy.state_dict())
    x, good, bad = torch.randn(16, 8), torch.randint(20, (16, 1)), torch.randint(20, (16, 1))
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)

    def difference(net: nn.Module) -> Tensor:
        log_p = net(x).log_softmax(-1)
        return log_p.gather(1, good) - log_p.gather(1, bad)

    def loss() -> Tensor:
        with torch.no_grad():
            before = difference(reference)
        return -functional.logsigmoid(0.5 * (difference(policy) - before)).mean()

    return steps(policy, loss, optimizer=optimizer)


@clean()
def a_sparse_autoencoder_keeps_the_largest() -> Diagnosis:
    class Net(Parts):
        def forward(self, x: Tensor) -> Tensor:
            best, at = functional.relu(self.encode(x - self.decode.bias)).topk(6, -1)
            code = torch.zeros(len(x), 32).scatter(-1, at, best)
            return functional.mse_loss(self.decode(code), x)

    net = Net(encode=nn.Linear(8, 32), decode=nn.Linear(32, 8))
    return steps(net, lambda: net(torch.randn(128, 8)))
