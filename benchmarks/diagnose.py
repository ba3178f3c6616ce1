"""What a diagnosis costs: training steps with and without it, interleaved; the median of the ratios.

python benchmarks/diagnose.py [--check]      --check: status 1 above what is promised below
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from pseudograd import diagnose

DETAILS = ("counts", "full")
ROUNDS = 9


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        self.beside = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(y)) + self.beside(x))


def resnet() -> tuple[nn.Module, Callable[[], Tensor]]:
    blocks = [Residual(32, 32, 1), Residual(32, 64, 2), Residual(64, 128, 2)]
    net = nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    x, y = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    return net, lambda: functional.cross_entropy(net(x), y)


def transformer() -> tuple[nn.Module, Callable[[], Tensor]]:
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, activation="gelu")
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    net = nn.Sequential(nn.Embedding(100, 128), encoder, nn.Linear(128, 100))
    x, y = torch.randint(100, (16, 64)), torch.randint(100, (16, 64))
    return net, lambda: functional.cross_entropy(net(x).transpose(1, 2), y)


def tiny() -> tuple[nn.Module, Callable[[], Tensor]]:
    """A step of a quarter of a millisecond: what a diagnosis costs for each call of torch, whatever the size."""
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    x, y = torch.randn(32, 16), torch.randn(32, 1)
    return net, lambda: functional.mse_loss(net(x), y)


PROMISED = {
    resnet: (1.3, 2),
    transformer: (1.3, 2),
    tiny: (3.0, 100),
}  # how many times a step, and how many steps a round


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    missed = False
    print(f"torch {torch.__version__}, one thread, median of {ROUNDS} ratios")
    for make, (promised, steps) in PROMISED.items():
        net, loss = make()
        optimizer = torch.optim.SGD(net.parameters(), 1e-3)

        def step(loss: Callable[[], Tensor] = loss, optimizer: torch.optim.SGD = optimizer) -> None:
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

        seconds: dict[str, list[float]] = {"plain": [], **{detail: [] for detail in DETAILS}}
        for _ in range(ROUNDS):
            for detail, of in seconds.items():
                with contextlib.nullcontext() if detail == "plain" else diagnose(net, detail=detail):
                    step()
                    start = time.perf_counter()
                    for _ in range(steps):
                        step()
                    of.append(time.perf_counter() - start)
        for detail in DETAILS:
            ratio = statistics.median(a / b for a, b in zip(seconds[detail], seconds["plain"], strict=True))
            missed |= ratio > promised
            print(f"{make.__name__:<12} {detail:<8} {ratio:.2f} x   promised: {promised} x")
    return int(missed and options.check)


if __name__ == "__main__":
    sys.exit(main())
