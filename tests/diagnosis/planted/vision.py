"""Convolutions, pixels that are parameters, renderers, boxes, quantised nets."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..programs import planted
from ..trainers import Parts, trains


def pictures(count: int = 8, size: int = 8) -> tuple[Tensor, Tensor]:
    return torch.rand(count, 3, size, size), torch.randint(3, (count,))


class Cnn(Parts):
    def __init__(self, **parts: object) -> None:
        super().__init__(**parts)
        self.stem, self.block, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3), nn.Linear(4, 3)

    def features(self, x: Tensor) -> Tensor:
        return self.block(self.stem(x)).mean((2, 3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.features(x)), y)


@planted("starved", "weight")
@trains(lambda: Cnn(weight=nn.Parameter(torch.randn(4, 4, 3, 3))), pictures, method="features")
def binary_weights_without_a_surrogate(net: Cnn, x: Tensor) -> Tensor:
    binary = net.weight.sign()  # fault: sign without a surrogate
    return net.block(functional.conv2d(net.stem(x), binary, padding=1)).mean((2, 3))


@planted("starved", "weight")
@trains(lambda: Cnn(weight=nn.Parameter(torch.randn(4, 4, 3, 3) * 0.1 + 0.5)), pictures, method="features")
def a_quantiser_with_a_scale_that_is_too_small(net: Cnn, x: Tensor) -> Tensor:
    low = torch.fake_quantize_per_tensor_affine(net.weight, 1e-4, 0, -8, 7)  # fault: fake_quantize scale wrong
    return net.block(functional.conv2d(net.stem(x), low, padding=1)).mean((2, 3))


def canvas(start: Tensor) -> Parts:
    return Parts(pixels=nn.Parameter(start))


@planted("starved", "centre", "size")
@trains(
    lambda: Parts(centre=nn.Parameter(torch.tensor([1.0, 1.0])), size=nn.Parameter(torch.tensor([1.0, 1.0]))),
    lambda: (torch.tensor([4.0, 4.0, 5.0, 5.0]),),
)
def boxes_that_do_not_overlap(net: Parts, target: Tensor) -> Tensor:
    low, high = net.centre - net.size / 2, net.centre + net.size / 2
    overlap = torch.minimum(high, target[2:]) - torch.maximum(low, target[:2])
    inter = overlap.clamp(min=0).prod()  # fault: overlap of boxes that do not meet
    return 1 - inter / (net.size.prod() + (target[2:] - target[:2]).prod() - inter)


@planted("starved", "locate.weight", "locate.bias")
@trains(lambda: Cnn(locate=nn.Linear(3, 6)), pictures, method="features")
def a_spatial_transformer_samples_the_nearest_pixel(net: Cnn, x: Tensor) -> Tensor:
    theta = net.locate(x.mean((2, 3))).view(-1, 2, 3) + torch.eye(2, 3)
    grid = functional.affine_grid(theta, list(x.shape), align_corners=False)
    moved = functional.grid_sample(x, grid, mode="nearest", align_corners=False)  # fault: nearest sampling
    return net.block(net.stem(moved)).mean((2, 3))


@planted("guard")
@trains(lambda: canvas(torch.rand(3, 8, 8)), lambda: (torch.rand(3, 8, 8),), count=1)
def a_similarity_that_can_be_negative(net: Parts, target: Tensor) -> Tensor:
    covariance = ((net.pixels - net.pixels.mean()) * (target - target.mean())).mean((1, 2))
    positive = torch.relu(covariance - covariance.detach().sort().values[1])  # fault: guard of a root at 0
    return -(positive**0.3).mean()
