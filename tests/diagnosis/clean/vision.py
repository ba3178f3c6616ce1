"""Convolutions, pictures that are parameters, quantisation-aware training, renderers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import pseudograd as pg
from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis

from ..programs import clean
from ..trainers import Parts, steps


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


def augmented(x: Tensor) -> Tensor:
    """Of data alone: brightness, noise and back into the range."""
    return (x * (0.5 + torch.rand(len(x), 1, 1, 1)) + 0.1 * torch.randn_like(x)).clamp(0, 1).flip(-1)


@clean()
def a_residual_net_with_augmented_pictures() -> Diagnosis:
    net, (x, y) = resnet(), pictures()
    return steps(net, lambda: functional.cross_entropy(net(augmented(x)), y), 6)


@clean()
def a_small_net_with_bounded_activations() -> Diagnosis:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU6(),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.BatchNorm2d(8),
        nn.Hardswish(),
        nn.Dropout2d(0.2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 8),
        nn.Hardtanh(),
        nn.Linear(8, 3),
    )
    x, y = pictures()
    return steps(net, lambda: functional.cross_entropy(net(x), y))


@clean()
def a_segmentation_with_unlabelled_pixels() -> Diagnosis:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU(), nn.Conv2d(8, 4, 1))
    x = torch.rand(4, 3, 8, 8)
    y = torch.randint(4, (4, 8, 8)).masked_fill(torch.rand(4, 8, 8) < 0.3, 255)

    def loss() -> Tensor:
        logits = net(x)
        p, is_known = logits.softmax(1), (y != 255)[:, None]
        wanted = functional.one_hot(y.clamp(max=3), 4).movedim(-1, 1) * is_known
        dice = 1 - (2 * (p * wanted).sum() + 1) / ((p * is_known).sum() + wanted.sum() + 1)
        return functional.cross_entropy(logits, y, ignore_index=255) + dice

    return steps(net, loss)


@clean()
def boxes_that_overlap() -> Diagnosis:
    net, target = (
        Parts(corners=nn.Parameter(torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 1.0, 4.0, 3.0]]))),
        torch.tensor([[0.5, 0.5, 2.5, 2.5], [1.5, 0.5, 3.5, 3.5]]),
    )

    def loss() -> Tensor:
        a, b = net.corners, target
        inter = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(-1)
        areas = (a[:, 2:] - a[:, :2]).prod(-1) + (b[:, 2:] - b[:, :2]).prod(-1)
        return (1 - inter / (areas - inter)).mean()

    return steps(net, loss)


@clean()
def pixels_are_drawn_inside_a_clamp() -> Diagnosis:
    canvas, target = Parts(pixels=nn.Parameter(torch.rand(3, 8, 8) * 0.6 + 0.2)), torch.rand(3, 8, 8)

    def loss() -> Tensor:
        shown = canvas.pixels.clamp(0, 1)
        rough = (shown[:, 1:] - shown[:, :-1]).abs().mean()
        return functional.mse_loss(shown, target) + 0.01 * rough

    return steps(canvas, loss, optimizer=torch.optim.Adam(canvas.parameters(), 0.01))


@clean()
def pixels_are_projected_after_each_step() -> Diagnosis:
    pixels, target = nn.Parameter(torch.rand(3, 8, 8)), torch.rand(3, 8, 8) * 1.5
    optimizer = torch.optim.Adam([pixels], 0.05)
    with diagnose() as d:
        for _ in range(12):
            optimizer.zero_grad()
            functional.mse_loss(pixels, target).backward()
            optimizer.step()
            with torch.no_grad():
                pixels.clamp_(0, 1)
    return d


@clean()
def an_attack_by_projected_steps() -> Diagnosis:
    victim, (x, y) = resnet().eval(), pictures()
    for block in victim[1:3]:
        nn.init.ones_(block.last.weight)  # as after its training
    delta = torch.zeros_like(x, requires_grad=True)
    with diagnose() as d:
        for _ in range(5):
            (grad,) = torch.autograd.grad(functional.cross_entropy(victim(x + delta), y), delta)
            with torch.no_grad():
                delta += 0.01 * grad.sign()
                delta.clamp_(-0.03, 0.03)
                delta.copy_((x + delta).clamp(0, 1) - x)
    return d


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 3)

    def weight(self) -> Tensor:
        return self.conv.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.relu(functional.conv2d(x, self.weight(), self.conv.bias)).mean((2, 3)))


@clean()
def weights_are_quantised_by_hand() -> Diagnosis:
    class Net(Quantised):
        def weight(self) -> Tensor:
            w = self.conv.weight
            scale = w.detach().abs().amax() / 127
            return w + ((w / scale).round().clamp(-127, 127) * scale - w).detach()

    net, (x, y) = Net(), pictures()
    return steps(net, lambda: functional.cross_entropy(net(x), y))


@clean()
def weights_are_quantised_with_a_learned_scale() -> Diagnosis:
    class Net(Quantised):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(self.conv.weight.detach().abs().amax() / 7)

        def weight(self) -> Tensor:
            return pg.fake_quantize(self.conv.weight, self.scale, 0, -8, 7)

    net, (x, y) = Net(), pictures()
    return steps(net, lambda: functional.cross_entropy(net(x), y))


@clean()
def binary_weights_with_a_surrogate() -> Diagnosis:
    class Net(Quantised):
        def weight(self) -> Tensor:
            return pg.sign(self.conv.weight, rule="window")

    net, (x, y) = Net(), pictures()
    return steps(net, lambda: functional.cross_entropy(net(x), y))


@clean()
def two_views_attract() -> Diagnosis:
    """SimSiam: the other side's projection is data."""

    net, (x, _) = (
        Parts(
            encoder=nn.Sequential(*list(resnet())[:-1], nn.Linear(8, 16)),
            predictor=nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 16)),
        ),
        pictures(),
    )

    def loss() -> Tensor:
        a, b = net.encoder(augmented(x)), net.encoder(augmented(x))
        towards = functional.cosine_similarity
        return -(towards(net.predictor(a), b.detach()) + towards(net.predictor(b), a.detach())).mean() / 2

    return steps(net, loss)
