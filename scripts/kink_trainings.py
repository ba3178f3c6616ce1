"""Trainings with functions at kinks: the verdict of `diagnose(sensitivity=...)` on each, and the loss under another convention.

usage: kink_trainings.py [PROGRAM ...]      about three minutes on one core
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import pseudograd
from pseudograd.diagnosis.judge.findings.convention import group_by_line, verdict
from pseudograd.rewrite.other_conventions import other_of
from pseudograd.torch_table.eras import ERAS

STEPS, SEEDS = 100, 3
Training = tuple[nn.Module, Callable[[], Tensor]]  # a network and its loss
_digits = load_digits()
X = torch.tensor(_digits.images, dtype=torch.float32)[:512, None] / 16
FLAT = X.flatten(1)
Y = torch.tensor(_digits.target)[:512]


# --- programs ---------------------------------------------------------------------------------------------------------


def classify(net: nn.Module, x: Tensor = FLAT) -> Training:
    return net, lambda: functional.cross_entropy(net(x).float(), Y)


def two_layers(*middle: nn.Module, outputs: int = 10) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 32), *(middle or [nn.GELU()]), nn.Linear(32, outputs))


def zeroed(net: nn.Sequential, layer: int) -> nn.Sequential:
    for parameter in net[layer].parameters():
        nn.init.zeros_(parameter)
    return net


def cnn(dtype: torch.dtype = torch.float32) -> Training:
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()
    net = nn.Sequential(*layers, nn.Linear(128, 10))
    return classify(net.to(dtype), X.to(dtype))


def quantised(bits: int) -> Training:
    net, half = two_layers(), 2 ** (bits - 1)

    def linear(layer: nn.Linear, x: Tensor) -> Tensor:
        scale = layer.weight.detach().abs().max() / (half - 0.5) / (1.5 if bits < 4 else 1.0)
        weight = layer.weight / scale
        weight = torch.clamp(weight + (weight.round() - weight).detach(), -half, half - 1) * scale
        return functional.linear(x, weight, layer.bias)

    return net, lambda: functional.cross_entropy(linear(net[2], net[1](linear(net[0], FLAT))), Y)


def autoencoder() -> Training:
    net = nn.Sequential(nn.Linear(64, 16), nn.GELU(), nn.Linear(16, 64))
    return net, lambda: functional.l1_loss(net(FLAT).clamp(0, 1), FLAT)


def boxes() -> Training:
    net = nn.Linear(4, 4)
    nn.init.eye_(net.weight)
    nn.init.zeros_(net.bias)
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(0, 8, (256, 2), generator=generator).float()
    b = a + torch.randint(-4, 5, (256, 2), generator=generator)
    start, target = torch.cat([a, a + 4], 1), torch.cat([b, b + 4], 1)

    def area(x: Tensor) -> Tensor:
        return (x[:, 2] - x[:, 0]).clamp(min=0) * (x[:, 3] - x[:, 1]).clamp(min=0)

    def loss() -> Tensor:
        box = net(start)
        low, high = torch.maximum(box[:, :2], target[:, :2]), torch.minimum(box[:, 2:], target[:, 2:])
        both = area(torch.cat([low, high], 1))
        return 1 - (both / (area(box) + area(target) - both + 1e-6)).mean()

    return net, loss


def clamped_logits() -> Training:
    net = two_layers().to(torch.bfloat16)
    return net, lambda: functional.cross_entropy((net(FLAT.to(torch.bfloat16)) * 8).clamp(-4, 4).float(), Y)


def gain_of_zero() -> Training:
    net = nn.ModuleDict({"body": two_layers(), "skip": nn.Linear(64, 10)})
    net.gain = nn.Parameter(torch.zeros(1))
    return net, lambda: functional.cross_entropy(net["skip"](FLAT) + net.gain.abs() * net["body"](FLAT), Y)


def ranking_from_zero() -> Training:
    """The last layer is 0, so all scores tie, and the loss, with its default margin of 0, is at its kink and its minimum. So the share of
    pairs in the wrong order is measured in place of the loss.
    """
    net = zeroed(two_layers(outputs=1), 2)
    sign = torch.where(Y[:256] > Y[256:], 1.0, -1.0)
    net.wrong = lambda: ((net(FLAT[:256]) - net(FLAT[256:]))[:, 0] * sign <= 0).float().mean()  # type: ignore[assignment]
    return net, lambda: functional.margin_ranking_loss(net(FLAT[:256])[:, 0], net(FLAT[256:])[:, 0], sign)


def deviation_at_its_bound() -> Training:
    """The logarithm of a deviation, bounded as in actors of reinforcement learning, that starts at its upper bound."""
    net = nn.ModuleDict({"mean": two_layers(outputs=1)})
    net.log_std = nn.Parameter(torch.full((1,), 2.0))

    def loss() -> Tensor:
        log_std = net.log_std.clamp(-5, 2)
        return (0.5 * ((net["mean"](FLAT)[:, 0] - Y) / log_std.exp()) ** 2 + log_std).mean()

    return net, loss


def binary_weights() -> Training:
    """Latent weights that start at plus or minus 1, where hardtanh bounds them."""
    net = two_layers()
    with torch.no_grad():
        net[0].weight.copy_(torch.where(net[0].weight < 0, -1.0, 1.0))
    inner = lambda: functional.linear(FLAT, functional.hardtanh(net[0].weight), net[0].bias) / 8  # noqa: E731
    return net, lambda: functional.cross_entropy(net[2](net[1](inner())), Y)


def weight_at_its_cap() -> Training:
    """A temperature that starts at its cap, as a tensor, and leaves it in the first step."""
    net = nn.ModuleDict({"body": two_layers()})
    net.scale, cap = nn.Parameter(torch.full((1,), 8.0)), torch.full((1,), 8.0)
    return net, lambda: functional.cross_entropy(net["body"](FLAT) * torch.minimum(net.scale, cap), Y)


class Program(NamedTuple):
    """family: the functions whose convention is changed."""

    name: str
    family: str
    make: Callable[[], Training]


PROGRAMS = [
    Program("CNN, pool before the relu", "relu", cnn),
    Program("the same, bfloat16", "relu", lambda: cnn(torch.bfloat16)),
    Program("first layer 0, relu", "relu", lambda: classify(zeroed(two_layers(nn.ReLU()), 0))),
    Program("first layer 0, leaky relu", "leaky_relu", lambda: classify(zeroed(two_layers(nn.LeakyReLU(0.01)), 0))),
    Program("gain abs(0)", "abs", gain_of_zero),
    Program("quantised, 2 bits", "clamp", lambda: quantised(2)),
    Program("quantised, 4 bits", "clamp", lambda: quantised(4)),
    Program("quantised, 8 bits", "clamp", lambda: quantised(8)),
    Program("autoencoder with L1", "clamp", autoencoder),
    Program("autoencoder with L1", "abs", autoencoder),
    Program("IoU of boxes on a grid", "clamp", boxes),
    Program("IoU of boxes on a grid", "maximum", boxes),
    Program("clamped logits, bfloat16", "clamp", clamped_logits),
    Program("ranking, last layer 0", "clamp", ranking_from_zero),
    Program("deviation at its bound", "clamp", deviation_at_its_bound),
    Program("binary weights", "hardtanh", binary_weights),
    Program("dropout before the relu", "relu", lambda: classify(two_layers(nn.Dropout(0.5), nn.ReLU()))),
    Program("temperature at its cap", "minimum", weight_at_its_cap),
    Program("bounded activations", "hardtanh", lambda: classify(two_layers(nn.Hardtanh()))),
]


# --- the other convention ---------------------------------------------------------------------------------------------


class _Mode(TorchFunctionMode):
    """A convention that no pin reaches: l1_loss with slope 1 at 0."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if getattr(func, "__name__", "") == "l1_loss":
            difference = args[0] - args[1]
            return torch.where(difference == 0, difference, difference.abs()).mean()
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def other_convention(family: str):  # type: ignore[no-untyped-def]
    """The convention with which the sensitivity compares, for a whole training."""
    other = other_of(family)
    assert other is not None
    stack = contextlib.ExitStack()
    with stack:
        names = ("maximum", "minimum") if family in ("maximum", "minimum") else (family,)
        if other.whose in ERAS:
            stack.enter_context(pseudograd.pin_edge(other.whose))
        else:
            edge: object = other.whose if other.whose in ("jax", "tensorflow") else float(other.convention)
            stack.enter_context(pseudograd.pin_edge(**dict.fromkeys(names, edge)))
        if family == "abs":
            stack.enter_context(_Mode())
        yield


def train(program: Program, seed: int, steps: int, context: contextlib.AbstractContextManager[object]) -> float:
    """The last loss; or the number `wrong` of the program, if it has one."""
    torch.manual_seed(seed)
    net, loss = program.make()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    with context:
        for _ in range(steps):
            optimizer.zero_grad()
            last = loss()
            last.backward()
            optimizer.step()
    return float(net.wrong() if hasattr(net, "wrong") else last.detach())


# --- the table --------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """said: the verdict of the finding, or "". as_is, other: the last losses under both conventions, for each seed."""

    said: str
    as_is: list[float]
    other: list[float]

    @property
    def changes(self) -> bool:
        """Does the other convention move the last loss the same way for each seed, and by at least a hundredth of it?"""
        moves = [other - own for own, other in zip(self.as_is, self.other, strict=True)]
        least = min(map(abs, moves))
        return len({move > 0 for move in moves}) == 1 and least > 0.01 * statistics.mean(self.as_is)

    @property
    def is_right(self) -> bool:
        return (self.said == "decides") == self.changes


def measured(program: Program, steps: int = STEPS, seeds: int = SEEDS) -> Row:
    with pseudograd.diagnose(sensitivity=max(1, steps // 20)) as d:
        train(program, 0, steps, contextlib.nullcontext())
    lines = [rows for (family, _), rows in group_by_line(d.sensitivity).items() if family == program.family]
    verdicts = [verdict(total, leaves) for total, *leaves in lines]
    worst = next((kind for kind in ("decides", "some", "falls", "unknown") if kind in verdicts), "")
    as_is = [train(program, seed, steps, contextlib.nullcontext()) for seed in range(seeds)]
    other = [train(program, seed, steps, other_convention(program.family)) for seed in range(seeds)]
    return Row(worst, as_is, other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", help="parts of names")
    parts = parser.parse_args().programs
    torch.set_num_threads(1)
    heads = "program | family | said | loss as it is | under the other | changes | right"
    print(f"torch {torch.__version__}\n\n| {heads} |\n|{'---|' * 7}")
    right = []
    for program in PROGRAMS:
        if parts and not any(part in program.name for part in parts):
            continue
        row = measured(program)
        right.append(row.is_right)
        cells = [
            program.name,
            program.family,
            {"decides": "may decide"}.get(row.said, row.said or "-"),
            *(" ".join(f"{loss:.4f}" for loss in losses) for losses in (row.as_is, row.other)),
            "yes" if row.changes else "no",
            "yes" if row.is_right else "NO",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\n{sum(right)} of {len(right)} are right")


if __name__ == "__main__":
    main()
