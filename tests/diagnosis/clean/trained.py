"""One healthy network in each way to train: by packages, in low precision, compiled, checkpointed, on two ranks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd.diagnosis.context import Diagnosis

from .. import trainers
from ..programs import clean


class Net(nn.Module):
    """Its scale has bounds that it stays within."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(8, 32), nn.LayerNorm(32), nn.Linear(32, 3)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = functional.dropout(functional.relu(self.norm(self.first(x))), 0.1, self.training)
        return functional.cross_entropy(self.head(h * self.scale.clamp(0.1, 10.0)), y)


def batch(count: int = 32) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 8)
    return x, x[:, :3].argmax(-1)


@clean(needs="transformers.trainer")
def a_published_language_model() -> Diagnosis:
    from transformers import GPT2Config, GPT2LMHeadModel

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            small = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2)
            self.model = GPT2LMHeadModel(small)

        def forward(self, x: Tensor) -> Tensor:
            return self.model(input_ids=x, labels=x).loss

    return trainers.train_by_hugging_face(Loss(), torch.randint(50, (8, 16)))


@clean(needs="lightning")
def lightning_trains() -> Diagnosis:
    return trainers.train_by_lightning(Net(), *batch())


@clean(needs="accelerate")
def accelerated() -> Diagnosis:
    return trainers.accelerated(Net(), *batch())


@clean()
def in_bfloat16() -> Diagnosis:
    return trainers.bfloat16(Net(), *batch())


@clean()
def half_precision_with_a_scaler() -> Diagnosis:
    return trainers.scaled_half_precision(Net(), *batch())


@clean()
def compiled() -> Diagnosis:
    return trainers.compiled(Net(), *batch())


@clean()
def checkpointed() -> Diagnosis:
    return trainers.checkpointed(Net(), *batch())


@clean()
def checkpointed_the_old_way() -> Diagnosis:
    return trainers.checkpointed(Net(), *batch(), use_reentrant=True)


@clean(ranks=2)
def on_two_ranks() -> Diagnosis:
    return trainers.distributed(Net(), *batch())


@clean(ranks=2)
def sharded() -> Diagnosis:
    return trainers.sharded(Net(), *batch())
