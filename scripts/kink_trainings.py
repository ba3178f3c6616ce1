"""Trainings whose functions stand at kinks: what `diagnose(sensitivity=...)` says of each, and what another convention does to its loss.

usage: kink_trainings.py [--steps N] [--seeds N] [PROGRAM ...]      about three minutes on one core
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import pseudograd
from pseudograd.diagnosis.count.other_conventions import other_of
from pseudograd.diagnosis.judge.findings.convention import group_by_line, verdict
from pseudograd.torch_table.eras import ERAS

STEPS, SEEDS = 100, 3
Loss = Callable[[], Tensor]
Make = Callable[[], tuple[nn.Module, Loss]]
_digits = load_digits()
X = torch.tensor(_digits.images, dtype=torch.float32)[:512, None] / 16
FLAT = X.flatten(1)
Y = torch.tensor(_digits.target)[:512]


# --- those of the first experiment ------------------------------------------------------------------------------------


def cnn(pools_first: bool, dtype: torch.dtype = torch.float32) -> Make:
    def make() -> tuple[nn.Module, Loss]:
        middle = [nn.MaxPool2d(2), nn.ReLU()] if pools_first else [nn.ReLU(), nn.MaxPool2d(2)]
        net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), *middle, nn.Flatten(), nn.Linear(128, 10)).to(dtype)
        return net, lambda: functional.cross_entropy(net(X.to(dtype)).float(), Y)

    return make


def pool_of_a_pointwise_convolution() -> tuple[nn.Module, Loss]:
    net = nn.Sequential(
        nn.Conv2d(1, 8, 1),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    return net, lambda: functional.cross_entropy(net(X), Y)


def from_zero(activation: nn.Module) -> Make:
    def make() -> tuple[nn.Module, Loss]:
        net = nn.Sequential(nn.Linear(64, 32), activation, nn.Linear(32, 10))
        nn.init.zeros_(net[0].weight)
        nn.init.zeros_(net[0].bias)
        return net, lambda: functional.cross_entropy(net(FLAT), Y)

    return make


def quantised(bits: int) -> Make:
    def make() -> tuple[nn.Module, Loss]:
        net = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))
        half = 2 ** (bits - 1)

        def linear(layer: nn.Linear, x: Tensor) -> Tensor:
            scale = layer.weight.detach().abs().max() / (half - 0.5) / (1.5 if bits < 4 else 1.0)
            weight = layer.weight / scale
            weight = torch.clamp(weight + (weight.round() - weight).detach(), -half, half - 1) * scale
            return functional.linear(x, weight, layer.bias)

        return net, lambda: functional.cross_entropy(linear(net[2], net[1](linear(net[0], FLAT))), Y)

    return make


def autoencoder() -> tuple[nn.Module, Loss]:
    net = nn.Sequential(nn.Linear(64, 16), nn.GELU(), nn.Linear(16, 64))
    return net, lambda: functional.l1_loss(net(FLAT).clamp(0, 1), FLAT)


def boxes() -> tuple[nn.Module, Loss]:
    net = nn.Linear(4, 4)
    nn.init.eye_(net.weight)
    nn.init.zeros_(net.bias)
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(0, 8, (256, 2), generator=generator).float()
    b = a + torch.randint(-4, 5, (256, 2), generator=generator)
    given, wanted = torch.cat([a, a + 4], 1), torch.cat([b, b + 4], 1)

    def area(x: Tensor) -> Tensor:
        return (x[:, 2] - x[:, 0]).clamp(min=0) * (x[:, 3] - x[:, 1]).clamp(min=0)

    def loss() -> Tensor:
        found = net(given)
        low, high = torch.maximum(found[:, :2], wanted[:, :2]), torch.minimum(found[:, 2:], wanted[:, 2:])
        sides = (high - low).clamp(min=0)
        both = sides[:, 0] * sides[:, 1]
        return 1 - (both / (area(found) + area(wanted) - both + 1e-6)).mean()

    return net, loss


def clamped_logits() -> tuple[nn.Module, Loss]:
    net = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10)).to(torch.bfloat16)
    return net, lambda: functional.cross_entropy((net(FLAT.to(torch.bfloat16)) * 8).clamp(-4, 4).float(), Y)


def gain_of_zero() -> tuple[nn.Module, Loss]:
    net = nn.Module()
    net.body = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))
    net.gain = nn.Parameter(torch.zeros(1))
    net.skip = nn.Linear(64, 10)
    return net, lambda: functional.cross_entropy(net.skip(FLAT) + net.gain.abs() * net.body(FLAT), Y)


# --- six more ---------------------------------------------------------------------------------------------------------


def ranking_from_zero() -> tuple[nn.Module, Loss]:
    """The last layer is 0, so all scores tie: with the default margin of 0 the loss stands at its kink, where it is least. What counts is
    the share of pairs in the wrong order.
    """
    net = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 1))
    nn.init.zeros_(net[2].weight)
    nn.init.zeros_(net[2].bias)
    better = Y[:256] > Y[256:]
    sign = torch.where(better, 1.0, -1.0)
    net.wrong = lambda: ((net(FLAT[:256]) - net(FLAT[256:]))[:, 0] * sign <= 0).float().mean()  # type: ignore[assignment]
    return net, lambda: functional.margin_ranking_loss(net(FLAT[:256])[:, 0], net(FLAT[256:])[:, 0], sign)


def deviation_at_its_bound() -> tuple[nn.Module, Loss]:
    """The logarithm of a deviation, bounded as in actors of reinforcement learning, that starts at its upper bound."""
    net = nn.Module()
    net.mean = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 1))
    net.log_std = nn.Parameter(torch.full((1,), 2.0))

    def loss() -> Tensor:
        log_std = net.log_std.clamp(-5, 2)
        return (0.5 * ((net.mean(FLAT)[:, 0] - Y) / log_std.exp()) ** 2 + log_std).mean()

    return net, loss


def binary_weights() -> tuple[nn.Module, Loss]:
    """Latent weights that start at plus or minus 1, where hardtanh bounds them."""
    net = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))
    with torch.no_grad():
        net[0].weight.copy_(torch.where(net[0].weight < 0, -1.0, 1.0))

    def loss() -> Tensor:
        inner = functional.linear(FLAT, functional.hardtanh(net[0].weight), net[0].bias) / 8
        return functional.cross_entropy(net[2](net[1](inner)), Y)

    return net, loss


def dropped_and_rectified() -> tuple[nn.Module, Loss]:
    """Half of what enters the relu is exactly 0, and dropout gives it no gradient anyway."""
    net = nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 10))
    return net, lambda: functional.cross_entropy(net(FLAT), Y)


def weight_at_its_cap() -> tuple[nn.Module, Loss]:
    """A temperature that starts at its cap, as a tensor, and leaves it in the first step."""
    net = nn.Module()
    net.body = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))
    net.scale = nn.Parameter(torch.full((1,), 8.0))
    cap = torch.full((1,), 8.0)
    return net, lambda: functional.cross_entropy(net.body(FLAT) * torch.minimum(net.scale, cap), Y)


def bounded_activations() -> tuple[nn.Module, Loss]:
    """Nothing but chance puts an activation on a bound."""
    net = nn.Sequential(nn.Linear(64, 32), nn.Hardtanh(), nn.Linear(32, 10))
    return net, lambda: functional.cross_entropy(net(FLAT), Y)


class Program(NamedTuple):
    """family: the one that is asked about."""

    name: str
    family: str
    make: Make


PROGRAMS = [
    Program("CNN, relu before the pool", "max_pool", cnn(False)),
    Program("CNN, pool before the relu", "max_pool", cnn(True)),
    Program("the same, bfloat16", "max_pool", cnn(True, torch.bfloat16)),
    Program("CNN, pool of a 1x1 convolution", "max_pool", pool_of_a_pointwise_convolution),
    Program("CNN, pool before the relu", "relu", cnn(True)),
    Program("the same, bfloat16", "relu", cnn(True, torch.bfloat16)),
    Program("first layer 0, relu", "relu", from_zero(nn.ReLU())),
    Program("first layer 0, leaky relu", "leaky_relu", from_zero(nn.LeakyReLU(0.01))),
    Program("gain abs(0)", "abs", gain_of_zero),
    Program("quantised, 2 bits", "clamp", quantised(2)),
    Program("quantised, 4 bits", "clamp", quantised(4)),
    Program("quantised, 8 bits", "clamp", quantised(8)),
    Program("autoencoder with L1", "clamp", autoencoder),
    Program("autoencoder with L1", "abs", autoencoder),
    Program("IoU of boxes on a grid", "clamp", boxes),
    Program("IoU of boxes on a grid", "maximum", boxes),
    Program("clamped logits, bfloat16", "clamp", clamped_logits),
    Program("ranking, last layer 0", "clamp", ranking_from_zero),
    Program("deviation at its bound", "clamp", deviation_at_its_bound),
    Program("binary weights", "hardtanh", binary_weights),
    Program("dropout before the relu", "relu", dropped_and_rectified),
    Program("temperature at its cap", "minimum", weight_at_its_cap),
    Program("bounded activations", "hardtanh", bounded_activations),
]


# --- the other convention ---------------------------------------------------------------------------------------------


class _Mode(TorchFunctionMode):
    """What no pin reaches: the last of equal entries of a pool, and the difference in an l1_loss."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("boolean_dispatch", "max_pool2d", "_max_pool2d"):
            turned = torch.flip(args[0], (-1, -2))
            return torch.flip(functional.max_pool2d(turned, args[1]), (-1, -2))
        if name == "l1_loss":
            difference = args[0] - args[1]
            return torch.where(difference == 0, difference, difference.abs()).mean()
        return func(*args, **(kwargs or {}))


def under_the_other(family: str) -> contextlib.AbstractContextManager[Any]:
    """The whole training under the convention that the sensitivity asks about."""
    other = other_of(family)
    assert other is not None, "it has one"
    if family == "max_pool":
        return _Mode()
    stack = contextlib.ExitStack()
    if other.whose in ERAS:
        pin = pseudograd.pin_edge(other.whose)
    else:
        known = other.whose if other.whose in ("jax", "tensorflow") else float(other.convention)
        pin = pseudograd.pin_edge(**{family: known})
        if family in ("maximum", "minimum"):
            pin = pseudograd.pin_edge(maximum=known, minimum=known)
    stack.enter_context(pin)
    if family == "abs":
        stack.enter_context(_Mode())
    return stack


def train(program: Program, seed: int, steps: int, context: Any = None) -> float:
    """The last loss, or what the program says that counts."""
    torch.manual_seed(seed)
    net, loss = program.make()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    with context or contextlib.nullcontext():
        for _ in range(steps):
            optimizer.zero_grad()
            now = loss()
            now.backward()
            optimizer.step()
    return float(net.wrong() if hasattr(net, "wrong") else now.detach())


def diagnosed(program: Program, steps: int) -> Any:
    torch.manual_seed(0)
    net, loss = program.make()
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    with pseudograd.diagnose(net, sensitivity=max(1, steps // 20)) as d:
        for _ in range(steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    return d


# --- the table --------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """said: the verdict of the finding, "" for none. changes: does the other convention change the last loss beyond the spread of seeds?"""

    program: Program
    first: float
    last: float
    at_kink: tuple[float, float]
    said: str
    as_is: list[float]
    other: list[float]

    @property
    def changes(self) -> bool:
        """The means differ by more than each one's range over the seeds, and by a hundredth: some programs draw nothing."""
        apart = abs(statistics.mean(self.as_is) - statistics.mean(self.other))
        spread = max(max(some) - min(some) for some in (self.as_is, self.other))
        return apart > max(spread, 0.01 * statistics.mean(self.as_is))

    @property
    def is_right(self) -> bool:
        return (self.said == "decides") == self.changes


def measured(program: Program, steps: int = STEPS, seeds: int = SEEDS) -> Row:
    d = diagnosed(program, steps)
    lines = [some for (family, _), some in group_by_line(d.sensitivity).items() if family == program.family]
    said = [verdict(whole, leaves) for whole, *leaves in lines]
    worst = next((one for one in ("decides", "some", "falls", "unknown") if one in said), "")
    whole = next(
        (one for one in d.sensitivity if (one.family, one.where, one.parameter) == (program.family, None, None)), None
    )
    as_is = [train(program, seed, steps) for seed in range(seeds)]
    other = [train(program, seed, steps, under_the_other(program.family)) for seed in range(seeds)]
    if whole is None:
        return Row(program, 0.0, 0.0, (0.0, 0.0), worst, as_is, other)
    return Row(program, whole.first, whole.last, whole.at_kink, worst, as_is, other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", help="parts of names")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    heads = [
        "program",
        "family",
        "at a kink",
        "sensitivity",
        "said",
        "loss as it is",
        "under the other",
        "changes",
        "right",
    ]
    print(f"torch {torch.__version__}\n\n| {' | '.join(heads)} |")
    print("|---|---|---|---|---|---|---|---|---|")
    right = []
    for program in PROGRAMS:
        if asked.programs and not any(part in program.name for part in asked.programs):
            continue
        row = measured(program, asked.steps, asked.seeds)
        right.append(row.is_right)
        cells = [
            program.name,
            program.family,
            " / ".join(f"{share:.2%}" for share in row.at_kink),
            f"{row.first:.3g} / {row.last:.3g}",
            row.said or "-",
            " ".join(f"{one:.4f}" for one in row.as_is),
            " ".join(f"{one:.4f}" for one in row.other),
            "yes" if row.changes else "no",
            "yes" if row.is_right else "NO",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\n{sum(right)} of {len(right)} are right")


if __name__ == "__main__":
    main()
