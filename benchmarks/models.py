"""Small models whose training steps the benchmarks time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """Two layers of width 256 with ReLU, clamped logits."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return torch.clamp(self.head(self.body(x).mean(1)), -8.0, 8.0)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2)]
        norms = [nn.BatchNorm2d(width) for _ in range(2)]
        self.body = nn.Sequential(convolutions[0], norms[0], nn.ReLU(inplace=True), convolutions[1], norms[1])
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x + self.body(x))


def resnet() -> nn.Module:
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10), nn.Hardtanh()
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *(Block(32) for _ in range(4)), *ends)


def mlp() -> nn.Module:
    """A step of a quarter of a millisecond, which shows the cost of each call of torch."""
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


def models() -> dict[str, tuple[nn.Module, Callable[[], None]]]:
    """Each model with its training step: forward, backward and SGD."""
    torch.manual_seed(0)
    inputs = {
        "transformer": (Encoder(), torch.randn(8, 64, 256)),
        "resnet": (resnet(), torch.randn(16, 3, 32, 32)),
        "mlp": (mlp(), torch.randn(32, 16)),
    }
    return {name: (model, step_of(model, x)) for name, (model, x) in inputs.items()}


def step_of(model: nn.Module, x: Tensor) -> Callable[[], None]:
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    target = torch.randn(x.shape[0], 10)

    def step() -> None:
        loss = (model(x) - target).pow(2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step
