"""One fault in each way to train: by packages, in low precision, compiled, checkpointed, on two ranks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd.diagnosis.context import Diagnosis

from .. import trainers
from ..programs import planted
from ..trainers import Parts, trains


def batch(count: int = 32) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 8), torch.randint(3, (count,))


class Net(Parts):
    def __init__(self, **parts: object) -> None:
        super().__init__(**parts)
        self.first, self.second, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.scale = nn.Parameter(torch.tensor(5.0))

    def hidden(self, x: Tensor) -> Tensor:
        return functional.silu(self.second(functional.silu(self.first(x)))) * self.scale

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.hidden(x)), y)


@planted("starved", "first.weight", "first.bias", needs="accelerate")
@trains(Net, batch, trainers.accelerated, method="hidden")
def accelerated_with_rounded_activations(net: Net, x: Tensor) -> Tensor:
    h = torch.round(net.first(x) * 8) / 8  # fault: rounded activations, accelerate
    return functional.silu(net.second(h)) * net.scale


@planted("starved", "scale")
@trains(Net, batch, trainers.checkpointed, method="hidden")
def checkpointed_with_a_scale_beyond_its_clamp(net: Net, x: Tensor) -> Tensor:
    bounded = net.scale.clamp(0.1, 2.0)  # fault: scale beyond its clamp, checkpoint
    return functional.silu(net.second(functional.silu(net.first(x)))) * bounded


@planted("cut")
@trains(Net, batch, trainers.checkpointed, method="hidden", use_reentrant=True)
def checkpointed_the_old_way_with_clipped_activations(net: Net, x: Tensor) -> Tensor:
    h = torch.clamp(net.first(x), -0.3, 0.3)  # fault: clipped activations, reentrant checkpoint
    return functional.silu(net.second(h)) * net.scale


@planted("starved", "first.weight", "first.bias")
@trains(lambda: Net(table=nn.Embedding(16, 16)), batch, trainers.bfloat16, method="hidden")
def in_bfloat16_with_an_index_of_max(net: Net, x: Tensor) -> Tensor:
    best = net.first(x).max(-1)[1]  # fault: index of max, bfloat16
    return functional.silu(net.second(net.table(best))) * net.scale


@planted("starved", "first.weight", "first.bias", "second.weight", "second.bias", "scale", "head.weight", "head.bias")
@trains(Net, batch)
def half_precision_without_a_scaler(net: Net, x: Tensor, y: Tensor) -> Tensor:
    """A mean over many: what arrives at the half precision layer is below its smallest number."""

    with torch.autocast("cpu", torch.float16):
        logits = net.head(net.hidden(x))
    wide = logits.float()  # fault: half precision gradients underflow
    return functional.cross_entropy(wide, y) * 1e-8


@planted("starved", "scale", ranks=2)
@trains(Net, batch, trainers.distributed, method="hidden")
def on_two_ranks_with_a_scale_beyond_its_clamp(net: Net, x: Tensor) -> Tensor:
    bounded = net.scale.clamp(0.1, 2.0)  # fault: scale beyond its clamp, DDP
    return functional.silu(net.second(functional.silu(net.first(x)))) * bounded


@planted("cut", ranks=2)
def sharded_with_clipped_activations() -> Diagnosis:
    class Faulty(Net):
        def hidden(self, x: Tensor) -> Tensor:
            h = torch.clamp(self.first(x), -0.3, 0.3)  # fault: clipped activations, FSDP2
            return functional.silu(self.second(h)) * self.scale.sum()

    net = Faulty()
    net.scale = nn.Parameter(torch.tensor([5.0]))
    return trainers.sharded(net, *batch())
