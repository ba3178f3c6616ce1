"""One fault in each way to train: by packages, in low precision, compiled, checkpointed, on two ranks."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from .. import trainers
from ..clean.trained import Net, batch
from ..programs import planted
from ..trainers import Parts, trains


def beyond_its_clamp(net: Net) -> Tensor:
    return net.scale.clamp(0.1, 2.0)  # fault: scale beyond its clamp


for way, (trainer, needs, ranks) in trainers.WAYS.items():
    program = trains(lambda: Net(5.0), batch, trainer, method="bounded")(beyond_its_clamp)
    program.__name__ = f"{way}_with_a_scale_beyond_its_clamp"
    planted("starved", "scale", needs=needs, ranks=ranks)(program)


@planted("starved", "first.weight", "first.bias", "head.weight", "head.bias")
@trains(lambda: Parts(first=nn.Linear(8, 16), head=nn.Linear(16, 3)), batch)
def half_precision_without_a_scaler(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    """A mean over many: what arrives at the half precision layer is below its smallest number."""
    with torch.autocast("cpu", torch.float16):
        logits = net.head(functional.silu(net.first(x)))
    wide = logits.float()  # fault: half precision gradients underflow
    return functional.cross_entropy(wide, y) * 1e-8
