"""The slopes and thresholds of the rule "fewbit" of gelu and silu, fitted again.

python scripts/fit_slopes.py     print the numbers that stand in src/pseudograd/ops/fitted_slopes.py, and what they lose

A step function q with 2**bits levels stands in for the derivative f' of the activation. Its levels and thresholds are those with the
least weighted squared error, the integral of w(x) * (f'(x) - q(x))^2, found by dynamic programming over a grid of possible thresholds:
the formulation of Novikov et al., "Few-bit backward" (2023), whose weight is uniform on [-10, 10]. Here w is the standard normal
density, because what arrives at an activation behind a normalisation is about that, and because the uniform weight spends half of the
levels where hardly any element is: the second table below says what either loses on inputs of other widths.

Both numbers are rounded to 8 significant bits, so that bfloat16, float16, float32 and float64 cut and multiply by the same numbers.
The derivatives have f'(x) + f'(-x) = 1, and so have the steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

Weight = Callable[[Tensor], Tensor]
Fit = tuple[list[float], list[float]]  # thresholds, slopes


def gelu_slope(x: Tensor) -> Tensor:
    return torch.special.ndtr(x) + x * normal(x)


def gelu_tanh_slope(x: Tensor) -> Tensor:
    """Of gelu with approximate="tanh"."""
    factor = math.sqrt(2 / math.pi)
    t = torch.tanh(factor * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * factor * (1 + 3 * 0.044715 * x * x)


def silu_slope(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 + x * (1 - s))


def normal(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def uniform(x: Tensor) -> Tensor:
    return torch.ones_like(x)


SLOPES: dict[str, Weight] = {"gelu": gelu_slope, "silu": silu_slope}


class Sums:
    """Sums of w, w f' and w f'^2 over a grid of cells, from which the error of any interval follows."""

    def __init__(self, slope: Weight, weight: Weight, reach: float, step: float) -> None:
        cells = round(2 * reach / step)
        x = (torch.arange(cells, dtype=torch.float64) + 0.5) * step - reach
        self.edges = torch.arange(cells + 1, dtype=torch.float64) * step - reach
        w, f = weight(x), slope(x)
        self.w, self.wf, self.wff = (_summed(w * power) for power in (torch.ones_like(f), f, f * f))

    def error(self, start: Tensor, end: int) -> Tensor:
        """Of the cells from each `start` to `end`, with their mean for a level."""
        w = (self.w[end] - self.w[start]).clamp(min=1e-300)
        wf = self.wf[end] - self.wf[start]
        return self.wff[end] - self.wff[start] - wf * wf / w

    def level(self, low: float, high: float) -> float:
        """The mean of f' between two points."""
        start, end = (int((self.edges - at).abs().argmin()) for at in (low, high))
        return float((self.wf[end] - self.wf[start]) / (self.w[end] - self.w[start]))


def _summed(values: Tensor) -> Tensor:
    return torch.cat([torch.zeros(1, dtype=values.dtype), values.cumsum(0)])


def fit(slope: Weight, bits: int, weight: Weight = normal, reach: float = 6.0, step: float = 0.01) -> Fit:
    """The best steps on the grid: for each number of levels, the best last threshold before each edge."""
    sums = Sums(slope, weight, reach, step)
    count = len(sums.edges)
    least = torch.stack([sums.error(torch.tensor(0), end) for end in range(count)])
    choices = []
    for _ in range(2**bits - 1):
        starts = [torch.arange(end + 1) for end in range(count)]
        totals = [least[: end + 1] + sums.error(starts[end], end) for end in range(count)]
        choices.append([int(total.argmin()) for total in totals])
        least = torch.stack([total.min() for total in totals])
    cuts = [count - 1]
    for choice in reversed(choices):
        cuts.insert(0, choice[cuts[0]])
    inner = [float(sums.edges[cut]) for cut in cuts[:-1]]
    ends = [-reach, *inner, reach]
    return inner, [sums.level(low, high) for low, high in itertools.pairwise(ends)]


def rounded(slope: Weight, thresholds: list[float], reach: float = 6.0) -> Fit:
    """Symmetric, of 8 significant bits each; the slopes are the means between the rounded thresholds."""
    sums = Sums(slope, normal, reach, 1 / 1024)
    half = len(thresholds) // 2
    above = [_eight_bits((thresholds[half + k] - thresholds[half - k]) / 2) for k in range(1, half + 1)]
    ends = [0.0, *above, reach]
    upper = [_eight_bits(sums.level(low, high)) for low, high in itertools.pairwise(ends)]
    return [*(-at for at in reversed(above)), 0.0, *above], [*(1 - level for level in reversed(upper)), *upper]


def _eight_bits(value: float) -> float:
    fraction, exponent = math.frexp(value)
    return math.ldexp(round(fraction * 256), exponent - 8)


def error(slope: Weight, steps: Fit, width: float = 1.0) -> float:
    """The mean squared error for normal inputs of standard deviation `width`."""
    z = torch.linspace(-8, 8, 32001, dtype=torch.float64)
    thresholds, slopes = (torch.tensor(part, dtype=torch.float64) for part in steps)
    x, w = z * width, normal(z)
    return float((w * (slope(x) - slopes[torch.bucketize(x, thresholds)]) ** 2).sum() / w.sum())


def main() -> None:
    widths = (0.5, 1.0, 2.0, 4.0)
    lines = []
    for name, slope in SLOPES.items():
        for bits in (2, 3):
            best = fit(slope, bits)
            steps = rounded(slope, best[0])
            print(f"{name}, {bits} bits\n    thresholds {steps[0]}\n    slopes     {steps[1]}")
            print(f"    mean squared error {error(slope, steps):.6f}, before rounding {error(slope, best):.6f}")
            if name == "gelu":
                own = error(gelu_tanh_slope, fit(gelu_tanh_slope, bits))
                shared = error(gelu_tanh_slope, steps)
                print(f'    with approximate="tanh" {shared:.6f}, with steps fitted to it {own:.6f}')
            others = {"normal": steps, "uniform": fit(slope, bits, uniform, 10.0, 0.0125)}
            for weight, fitted in others.items():
                row = "".join(f"{error(slope, fitted, width):10.5f}" for width in widths)
                lines.append(f"{name}, {bits} bits, {weight:8}{row}")
    print("\nmean squared error for normal inputs of a standard deviation of")
    print(" " * 22 + "".join(f"{width:10}" for width in widths))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
