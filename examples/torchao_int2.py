"""Quantisation-aware training with torchao 0.18.0, as its users write it: 2-bit weights, 400 steps. It knows nothing of pseudograd.

python examples/torchao_int2.py                                        NaN since torch 2.14
pseudograd run --pin "torch<=2.13" examples/torchao_int2.py            as on torch 2.13
"""

from __future__ import annotations

import torch
from torch import nn


def train(seed: int, steps: int = 400) -> float:
    """The mean loss of the last 50 steps."""
    from torchao.quantization.qat import FakeQuantizedLinear
    from torchao.quantization.qat.fake_quantize_config import IntxFakeQuantizeConfig

    torch.manual_seed(seed)
    teacher = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    with torch.no_grad():
        teacher[0].weight.mul_(3)
    first, last = nn.Linear(32, 64, bias=False), nn.Linear(64, 8, bias=False)
    weights = IntxFakeQuantizeConfig(torch.int2, group_size=32)
    activations = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
    student = nn.Sequential(
        FakeQuantizedLinear.from_linear(first, activations, weights),
        nn.ReLU(),
        FakeQuantizedLinear.from_linear(last, activations, weights),
    )
    optimiser, losses = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9), []
    for _ in range(steps):
        x = torch.randn(64, 32)
        loss = (student(x) - teacher(x).detach()).pow(2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return sum(losses[-50:]) / 50


if __name__ == "__main__":
    torch.set_num_threads(1)
    for seed in range(3):
        print(f"seed {seed}: loss {train(seed):.5f}")
