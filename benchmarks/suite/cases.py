"""What is asked: each question is a product of sizes, dtypes, threads, data and layouts, for the routes of one op.

A case that two questions have in common is measured once, all of its routes in the same rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import product

import torch
from torch import Tensor

NUMBERS = (-1.0, 1.0)
CHANNELS = 16


@dataclass(frozen=True)
class Case:
    op: str
    size: int = 0  # elements; 0 where the op has its own
    dtype: str = "float32"
    threads: int = 1
    data: str = "random"
    layout: str = "contiguous"

    def __str__(self) -> str:
        unusual = [str(getattr(self, f.name)) for f in fields(self)[2:] if getattr(self, f.name) != f.default]
        words = [f"{word} threads" if word.isdigit() else word for word in unusual]
        return ", ".join([self.op, *([f"{self.size:,} elements"] if self.size else []), *words])


@dataclass(frozen=True)
class Question:
    """`asks` heads its table on the page. The routes are names in routes.py."""

    name: str
    asks: str
    routes: tuple[str, ...]
    op: str = "clamp"
    sizes: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    dtypes: tuple[str, ...] = ("float32",)
    threads: tuple[int, ...] = (1,)
    data: tuple[str, ...] = ("random",)
    layouts: tuple[str, ...] = ("contiguous",)

    def cases(self) -> list[Case]:
        """Sizes vary fastest."""
        return [
            Case(self.op, size, dtype, threads, data, layout)
            for dtype, threads, data, layout, size in product(
                self.dtypes, self.threads, self.data, self.layouts, self.sizes
            )
        ]


_FEW = ("floor", "native", "hardtanh", "snippet", "inward")
_RULES = ("zero/closed", "zero/open", "sign", "identity")
_COMPILED = ("native, compiled", "snippet, compiled", "formula, compiled", "inward, compiled")

QUESTIONS = {
    question.name: question
    for question in (
        Question(
            "size",
            "How long, from 10 elements to 100 million?",
            (*_FEW, *_RULES, "brevitas"),
            sizes=(10, 1_000, 100_000, 1_000_000, 10_000_000, 100_000_000),
            threads=(1, 2),
        ),
        Question(
            "dtype",
            "In other dtypes?",
            _FEW,
            sizes=(10, 1_000, 100_000, 1_000_000, 10_000_000),
            dtypes=("bfloat16", "float16", "float64"),
        ),
        Question("data", "Where the input is sorted, or nothing is clipped?", _FEW, data=("sorted", "unclipped")),
        Question(
            "layout",
            "In other layouts?",
            _FEW,
            sizes=(10, 1_000, 100_000, 1_000_000),
            dtypes=("float32", "bfloat16"),
            layouts=("channels_last", "transposed", "every second column"),
        ),
        Question(
            "bounds per channel",
            "With a tensor of bounds for each channel?",
            ("floor", "native", "snippet", "inward", "brevitas"),
            op="clamp, bounds per channel",
        ),
        Question(
            "bounds of full size",
            "With a bound for each element?",
            ("floor", "native", "snippet", "inward", "brevitas"),
            op="clamp, bounds of full size",
        ),
        Question(
            "lower bound",
            "With one bound, as learned compression has it?",
            ("floor", "native", "compressai", "inward"),
            op="lower_bound",
            sizes=(10, 1_000, 100_000, 1_000_000, 10_000_000),
        ),
        Question("relu", "As a ReLU?", ("floor", "native", "inward"), op="relu"),
        Question("in place", "In place?", ("native", "inward"), op="clamp_"),
        Question(
            "compiled",
            "Under torch.compile?",
            ("floor", "native", *_COMPILED),
            sizes=(10, 100_000, 1_000_000, 10_000_000),
        ),
        Question(
            "spike",
            "The surrogate gradient of a spike?",
            ("floor", "spike", "triangle", "arctan", "window"),
            op="heaviside",
        ),
        Question("gelu", "The backward of a few-bit GELU?", ("floor", "native", "fewbit"), op="gelu, backward"),
        Question(
            "network",
            "How much does a network keep for backward?",
            ("no activation", "relu", "native", "hardtanh", "snippet", "inward", "zero/open"),
            op="network",
            sizes=(0,),
        ),
        Question("import", "What does importing cost?", ("pseudograd",), op="import", sizes=(0,)),
    )
}


def plan(questions: Iterable[Question]) -> dict[Case, tuple[str, ...]]:
    """Every case once, with the routes that any of the questions asks for."""
    routes: dict[Case, tuple[str, ...]] = {}
    for question in questions:
        for case in question.cases():
            routes[case] = tuple(dict.fromkeys((*routes.get(case, ()), *question.routes)))
    return routes


# --- tensors ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Workload:
    """The tensors of a case: x is a leaf, grad is what arrives from above and lies in memory as the output does."""

    case: Case
    x: Tensor
    grad: Tensor
    low: float | Tensor
    high: float | Tensor


def workload(case: Case) -> Workload:
    """About half of a random or sorted x is outside its bounds."""
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, case.dtype)
    values = torch.randn(case.size, generator=generator, dtype=torch.float32)
    if case.data == "unclipped":
        values = values.clamp_(-0.9, 0.9)
    else:
        values = values.mul_(1.5)
        if case.data == "sorted":
            values = values.sort().values
    x = _laid_out(values.to(dtype), case).detach().requires_grad_()
    with torch.no_grad():
        y = torch.clamp(x, *NUMBERS)
    grad = torch.empty_like(y).copy_(torch.randn(y.numel(), generator=generator).view(y.shape))
    low, high = _bounds(case, x.detach())
    return Workload(case, x, grad, low, high)


def _laid_out(values: Tensor, case: Case) -> Tensor:
    """As many of the values as fill the shape, in their order in memory."""
    if case.op == "clamp, bounds per channel" or case.layout == "channels_last":
        batch, channels, side = image_shape(case.size)
        flat = values[: batch * channels * side * side]
        if case.layout == "channels_last":
            return flat.view(batch, side, side, channels).permute(0, 3, 1, 2)
        return flat.view(batch, channels, side, side)
    if case.layout == "contiguous":
        return values
    rows = math.isqrt(case.size)
    matrix = values[: rows * (case.size // rows)].view(rows, -1)
    if case.layout == "transposed":
        return matrix.t()
    return matrix.repeat_interleave(2, dim=1)[:, ::2]


def image_shape(size: int) -> tuple[int, int, int]:
    """(batch, channels, side) with about `size` elements, and never more."""
    batch, channels = (4, CHANNELS) if size >= 4 * CHANNELS else (1, min(size, 2))
    return batch, channels, math.isqrt(size // (batch * channels))


def _bounds(case: Case, x: Tensor) -> tuple[float | Tensor, float | Tensor]:
    if case.op in ("lower_bound", "relu", "heaviside"):
        return 0.0, math.inf
    if case.op == "clamp, bounds per channel":
        away = torch.linspace(0.8, 1.2, x.shape[1], dtype=x.dtype).view(-1, 1, 1)
        return -away, away
    if case.op == "clamp, bounds of full size":
        away = torch.linspace(0.8, 1.2, x.numel(), dtype=x.dtype).view(x.shape)
        return -away, away
    return NUMBERS
