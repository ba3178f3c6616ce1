"""One fault in each way to train: by packages, in low precision, compiled, checkpointed, on two ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pseudograd.diagnosis.context import Diagnosis

from .. import trainers
from ..programs import planted
from ..trainers import Parts


def batch(count: int = 32) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 8), torch.randint(3, (count,))


class Net(Parts):
    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.first, self.second, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.scale = nn.Parameter(torch.tensor(5.0))

    def hidden(self, x: Tensor) -> Tensor:
        return functional.silu(self.second(functional.silu(self.first(x)))) * self.scale

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(self.head(self.hidden(x)), y)


@planted("starved", "scale", needs="transformers.trainer")
def by_hugging_face_with_a_scale_beyond_its_clamp() -> Diagnosis:
    class Faulty(Net):
        def hidden(self, x: Tensor) -> Tensor:
            bounded = self.scale.clamp(0.1, 2.0)  # fault: scale beyond its clamp, Hugging Face
            return functional.silu(self.second(self.first(x))) * bounded

    return trainers.by_hugging_face(Faulty(), *batch())


@planted("starved", "first.weight", "first.bias", needs="lightning")
def by_lightning_with_a_frozen_looking_backbone() -> Diagnosis:
    class Faulty(Net):
        def hidden(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                h = self.first(x)  # fault: no_grad around a trained layer, Lightning
            return functional.silu(self.second(functional.silu(h))) * self.scale

    return trainers.by_lightning(Faulty(), *batch())


@planted("starved", "first.weight", "first.bias", needs="accelerate")
def accelerated_with_rounded_activations() -> Diagnosis:
    class Faulty(Net):
        def hidden(self, x: Tensor) -> Tensor:
            h = torch.round(self.first(x) * 8) / 8  # fault: rounded activations, accelerate
            return functional.silu(self.second(h)) * self.scale

    return trainers.accelerated(Faulty(), *batch())


@planted("starved", "first.weight", "first.bias")
def compiled_with_a_hard_gate() -> Diagnosis:
    class Faulty(Net):
        def hidden(self, x: Tensor) -> Tensor:
            gate = (self.first(x) > 0).to(x.dtype)  # fault: comparison as a gate, compiled
            return functional.silu(self.second(gate)) * self.scale

    return trainers.compiled(Faulty(), *batch())


@planted("cut")
def compiled_ahead_of_time_with_clipped_logits() -> Diagnosis:
    class Faulty(Net):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            logits = self.head(self.hidden(x) * 10)
            bounded = torch.clamp(logits, -1.0, 1.0)  # fault: clipped logits, compiled ahead of time
            return functional.cross_entropy(bounded, y)

    return trainers.compiled(Faulty(), *batch(), backend="aot_eager")


@planted("starved", "scale")
def checkpointed_with_a_scale_beyond_its_clamp() -> Diagnosis:
    class Faulty(Net):
        def hidden(self, x: Tensor) -> Tensor:
            bounded = self.scale.clamp(0.1, 2.0)  # fault: scale beyond its clamp, checkpoint
            return functional.silu(self.second(functional.silu(self.first(x)))) * bounded

    return trainers.checkpointed(Faulty(), *batch())


@planted("cut")
def checkpointed_the_old_way_with_clipped_activations() -> Diagnosis:
    class Faulty(Net):
        def hidden(self, x: Tensor) -> Tensor:
            h = torch.clamp(self.first(x), -0.3, 0.3)  # fault: clipped activations, reentrant checkpoint
            return functional.silu(self.second(h)) * self.scale

    return trainers.checkpointed(Faulty(), *batch(), use_reentrant=True)


@planted("starved", "first.weight", "first.bias")
def a_checkpointed_block_detaches_its_input() -> Diagnosis:
    class Faulty(Net):
        def block(self, h: Tensor) -> Tensor:
            return functional.silu(self.second(h.detach()))  # fault: detach inside a checkpointed block

        def hidden(self, x: Tensor) -> Tensor:
            return checkpoint(self.block, self.first(x), use_reentrant=False) * self.scale

    return trainers.by_hand(Faulty(), *batch())


@planted("starved", "first.weight", "first.bias")
def in_bfloat16_with_an_index_of_max() -> Diagnosis:
    class Faulty(Net):
        def hidden(self, x: Tensor) -> Tensor:
            best = self.first(x).max(-1)[1]  # fault: index of max, bfloat16
            return functional.silu(self.second(self.table(best))) * self.scale

    return trainers.in_bfloat16(Faulty(table=nn.Embedding(16, 16)), *batch())


@planted("starved", "first.weight", "first.bias", "second.weight", "second.bias", "scale", "head.weight", "head.bias")
def in_half_precision_without_a_scaler() -> Diagnosis:
    """A mean over many: what arrives at the half precision layer is below its smallest number."""

    class Faulty(Net):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.float16):
                logits = self.head(self.hidden(x))
            wide = logits.float()  # fault: half precision gradients underflow
            return functional.cross_entropy(wide, y) * 1e-8

    return trainers.by_hand(Faulty(), *batch())


@planted("cut")
def with_a_scaler_and_a_clamp() -> Diagnosis:
    class Faulty(Net):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            logits = self.head(self.hidden(x) * 10)
            bounded = logits.clamp(-2.0, 2.0)  # fault: clipped logits, half precision
            return functional.cross_entropy(bounded.float(), y)

    return trainers.with_a_scaler(Faulty(), *batch())


@planted("starved", "first.weight", "first.bias", ranks=2)
def on_two_ranks_with_an_argmax() -> Diagnosis:
    class Faulty(Net):
        def hidden(self, x: Tensor) -> Tensor:
            best = self.first(x).argmax(-1)  # fault: argmax, DDP
            return functional.silu(self.second(self.table(best))) * self.scale

    return trainers.on_two_ranks(Faulty(table=nn.Embedding(16, 16)), *batch(), find_unused_parameters=True)


@planted("starved", "scale", ranks=2)
def on_two_ranks_with_a_scale_beyond_its_clamp() -> Diagnosis:
    class Faulty(Net):
        def hidden(self, x: Tensor) -> Tensor:
            bounded = self.scale.clamp(0.1, 2.0)  # fault: scale beyond its clamp, DDP
            return functional.silu(self.second(functional.silu(self.first(x)))) * bounded

    return trainers.on_two_ranks(Faulty(), *batch())


@planted("starved", "first.weight", "first.bias", ranks=2)
def sharded_with_rounded_activations() -> Diagnosis:
    class Faulty(Net):
        def hidden(self, x: Tensor) -> Tensor:
            h = torch.round(self.first(x) * 8) / 8  # fault: rounded activations, FSDP2
            return functional.silu(self.second(h)) * self.scale.sum()

    net = Faulty()
    net.scale = nn.Parameter(torch.tensor([5.0]))  # FSDP2 shards no tensor without a dimension
    return trainers.sharded(net, *batch())


@planted("cut", ranks=2)
def sharded_with_clipped_activations() -> Diagnosis:
    class Faulty(Net):
        def hidden(self, x: Tensor) -> Tensor:
            h = torch.clamp(self.first(x), -0.3, 0.3)  # fault: clipped activations, FSDP2
            return functional.silu(self.second(h)) * self.scale.sum()

    net = Faulty()
    net.scale = nn.Parameter(torch.tensor([5.0]))
    return trainers.sharded(net, *batch())
