"""Plain networks, bounded parameters, losses rebuilt by hand."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..programs import planted
from ..trainers import Parts, mlp, trains


def classes(count: int = 32, width: int = 8, kinds: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(count, width), torch.randint(kinds, (count,))


class Classifier(Parts):
    def __init__(self, **parts: object) -> None:
        super().__init__(**parts)
        self.body, self.head = mlp(8, 16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.body(x)), y)


@planted("cut")
@trains(Classifier, classes)
def probabilities_are_clamped_before_the_log(net: Classifier, x: Tensor, y: Tensor) -> Tensor:
    p = (net.head(net.body(x)) * 30).softmax(-1)
    safe = p.clamp(min=1e-2)  # fault: clamp before log
    return -safe.log().gather(1, y[:, None]).mean()


@planted("vanish")
@trains(lambda: Parts(first=nn.Linear(8, 1), norm=nn.LayerNorm(1), head=nn.Linear(1, 3)), classes)
def a_layer_norm_over_one_feature(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    hidden = net.norm(net.first(x))  # fault: normalisation of one number
    return functional.cross_entropy(net.head(hidden), y)


@planted("starved", "gain")
@trains(lambda: Classifier(gain=nn.Parameter(torch.ones(16))), classes)
def a_parameter_is_copied_with_torch_tensor(net: Classifier, x: Tensor, y: Tensor) -> Tensor:
    gain = torch.tensor(net.gain)  # fault: torch.tensor(x)
    return functional.cross_entropy(net.head(net.body(x) * gain), y)


@planted("starved", "down", "up")
@trains(lambda: Classifier(down=nn.Parameter(torch.zeros(8, 2)), up=nn.Parameter(torch.zeros(2, 16))), classes)
def an_adapter_starts_with_two_zeros(net: Classifier, x: Tensor, y: Tensor) -> Tensor:
    hidden = net.body(x) + x @ net.down @ net.up  # fault: both factors of an adapter start at 0
    return functional.cross_entropy(net.head(hidden), y)


@planted("starved", "centres", "head.weight")
@trains(lambda: Parts(centres=nn.Parameter(torch.randn(16, 8)), head=nn.Linear(16, 3)), classes)
def a_kernel_is_far_too_narrow(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    distances = (x[:, None] - net.centres).square().sum(-1)
    near = torch.exp(-distances / 1e-6)  # fault: exp that underflows
    return functional.cross_entropy(net.head(near), y)
