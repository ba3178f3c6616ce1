"""Classifiers and regressions, with what belongs to a training loop around them."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd.diagnosis import diagnose
from pseudograd.diagnosis.context import Diagnosis

from ..programs import clean
from ..trainers import Parts, mlp, trains


def rows(count: int = 32, width: int = 8, kinds: int = 3) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, width)
    return x, (x[:, :kinds] + 0.1 * torch.randn(count, kinds)).argmax(-1)


@clean()
def a_classifier_with_everything_that_regularises() -> Diagnosis:
    net = nn.Sequential(
        nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 32), nn.LayerNorm(32), nn.GELU()
    )
    model = nn.Sequential(net, nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    with diagnose(model) as d:
        for _ in range(5):
            x, y = rows()
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y, label_smoothing=0.1).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rates.step()
    return d


@clean()
@trains(lambda: Parts(body=mlp(8, 32, 3)), lambda: rows(64))
def a_hinge_and_a_triplet(net: Parts, x: Tensor, y: Tensor) -> Tensor:
    h = net.body(x)
    triplet = functional.triplet_margin_loss(h[:20], h[20:40], h[40:60], margin=1.0)
    return functional.multi_margin_loss(h, y) + triplet + functional.relu(0.5 - h[:, 0] * h[:, 1]).mean()


@clean()
@trains(lambda: Parts(body=mlp(8, 32, 3)), lambda: (torch.randn(64, 8),))
def quantiles_with_the_pinball_loss(net: Parts, x: Tensor) -> Tensor:
    levels = torch.tensor([0.1, 0.5, 0.9])
    error = x.sum(-1, keepdim=True) - net.body(x).sort(-1).values
    return torch.maximum(levels * error, (levels - 1) * error).mean()
