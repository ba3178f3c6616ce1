"""Convolutions, pictures that are parameters, quantisation-aware training, renderers."""

import torch
from torch import Tensor, nn
from torch.nn import functional

import pseudograd as pg
from pseudograd.diagnosis.context import Diagnosis

from ..programs import clean
from ..trainers import Parts, steps, trains


def pictures(count: int = 8, size: int = 8) -> tuple[Tensor, Tensor]:
    return torch.rand(count, 3, size, size), torch.randint(3, (count,))


class Block(nn.Module):
    """A residual block whose last normalisation starts at 0."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.last(self.two(functional.relu(self.norm(self.one(x))))))


def resnet() -> nn.Sequential:
    stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(stem, Block(), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))


@clean()
@trains(lambda: Parts(body=resnet()), pictures)
def a_residual_net_with_augmented_pictures(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    x = (x * (0.5 + torch.rand(len(x), 1, 1, 1)) + 0.1 * torch.randn_like(x)).clamp(0, 1).flip(-1)
    return functional.cross_entropy(net.body(x), y)


@clean()
def a_small_net_with_bounded_activations() -> Diagnosis:
    convolutions = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 8, 3, groups=8), nn.Hardswish()
    net = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Hardtanh(), nn.Linear(8, 3))
    x, y = pictures()
    return steps(net, lambda: functional.cross_entropy(net(x), y))


class Quantised(Parts):
    def __init__(self) -> None:
        super().__init__(conv=nn.Conv2d(3, 8, 3), head=nn.Linear(8, 3))
        self.scale = nn.Parameter(self.conv.weight.detach().abs().amax() / 7)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = functional.conv2d(x, self.weight(), self.conv.bias) * (1 + self.scale)
        return functional.cross_entropy(self.head(functional.relu(h).mean((2, 3))), y)


@clean()
@trains(Quantised, pictures, method="weight")
def weights_are_quantised_by_hand(net: Quantised) -> Tensor:
    w = net.conv.weight
    scale = w.detach().abs().amax() / 127
    return w + ((w / scale).round().clamp(-127, 127) * scale - w).detach()


@clean()
@trains(Quantised, pictures, method="weight")
def weights_are_quantised_with_a_learned_scale(net: Quantised) -> Tensor:
    return pg.fake_quantize(net.conv.weight, net.scale, 0, -8, 7)
