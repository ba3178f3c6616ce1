"""One healthy network in each way to train: by packages, in low precision, compiled, checkpointed, on two ranks."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd.diagnosis.context import Diagnosis

from .. import trainers
from ..programs import clean


class Net(nn.Module):
    """Its scale has bounds that it stays within."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(8, 32), nn.LayerNorm(32), nn.Linear(32, 3)
        self.scale = nn.Parameter(torch.full((32,), scale))

    def bounded(self) -> Tensor:
        return self.scale.clamp(0.1, 10.0)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = functional.dropout(functional.relu(self.norm(self.first(x))), 0.1, self.training)
        return functional.cross_entropy(self.head(h * self.bounded()), y)


def batch(count: int = 32) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 8)
    return x, x[:, :3].argmax(-1)


for way, (trainer, needs, ranks) in trainers.WAYS.items():

    def healthy(trainer: trainers.Trainer = trainer) -> Diagnosis:
        return trainer(Net(), *batch())

    healthy.__name__ = way
    clean(needs, ranks)(healthy)
