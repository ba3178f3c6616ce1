"""Several cases in one graph: about half of the time to compile a small function is the same for one and for a dozen."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pseudograd.testing.contract.cases import Case

SIZE = 12
Function = Callable[..., Tensor]
Way = Callable[..., Any]
Compiler = Callable[[Way], Way]
Tensors = list[Tensor] | list[list[Tensor]]  # of each function x, or all of its tensors


def in_batches(cases: list[Case], size: int = SIZE) -> list[list[Case]]:
    return [cases[start : start + size] for start in range(0, len(cases), size)]


def label(cases: list[Case]) -> str:
    return str(cases[0]) if len(cases) == 1 else f"{cases[0]}..{cases[-1]}"


class SideBySide(nn.Module):
    """The first function of x[0], the second of x[1], and so on."""

    def __init__(self, functions: list[Function]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([f(part) for f, part in zip(self.functions, x.unbind(), strict=True)])


class EndToEnd(nn.Module):
    """The results of all functions, one after the other. Each function gets as many of the tensors as it takes."""

    def __init__(self, functions: list[Function], counts: list[int]) -> None:
        super().__init__()
        self.functions, self.counts = functions, counts

    def forward(self, *tensors: Tensor) -> Tensor:
        parts, start = [], 0
        for f, count in zip(self.functions, self.counts, strict=True):
            parts.append(f(*tensors[start : start + count]).reshape(-1))
            start += count
        return torch.cat(parts)


def run_alone(way: Way, fs: list[Function], inputs: Tensors, weights: list[Tensor], compile: Compiler) -> Any:
    """Apply the way to each compiled f."""
    if len(fs) == 1:
        return [way(compile(fs[0]), inputs[0], weights[0])]
    if isinstance(inputs[0], Tensor):
        return way(compile(SideBySide(fs)), torch.stack(inputs), torch.stack(weights)).unbind()  # type: ignore[arg-type]
    counts = [len(tensors) for tensors in inputs]
    tensors = [tensor for tensors in inputs for tensor in tensors]
    gradients = iter(way(compile(EndToEnd(fs, counts)), tensors, torch.cat([weight.reshape(-1) for weight in weights])))
    return [tuple(next(gradients) for _ in range(count)) for count in counts]


def run_together(way: Way, fs: list[Function], inputs: Tensors, weights: list[Tensor], compile: Compiler) -> Any:
    """Compile the way together with each f."""

    def ways(inputs: Tensors, weights: list[Tensor]) -> list[Any]:
        return [_apply(way, *problem) for problem in zip(fs, inputs, weights, strict=True)]

    return compile(ways)(inputs, weights)


def run_by_rows(row: Way, fs: list[Function], xs: list[Tensor], weights: list[Tensor], compile: Compiler) -> Any:
    """The same for functions of tensors of one shape: the rows come from one graph, which traces each f once."""

    def one_row(xs: list[Tensor], weights: list[Tensor], pick: Tensor) -> list[Tensor]:
        return [_apply(row, *problem, pick) for problem in zip(fs, xs, weights, strict=True)]

    graph = compile(one_row)
    rows = [graph(xs, weights, pick) for pick in picks(xs[0])]
    return [stack_rows(list(rows_of_f), x) for rows_of_f, x in zip(zip(*rows, strict=True), xs, strict=True)]


def picks(x: Tensor) -> list[Tensor]:
    """For each element of x, a tensor of its shape that is 1 there and 0 elsewhere."""
    return list(torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape))


def stack_rows(rows: list[Tensor], x: Tensor) -> Tensor:
    return torch.stack(rows).reshape(*x.shape, *x.shape)


def _apply(way: Way, f: Function, inputs: Any, *rest: Tensor) -> Any:
    # In a lambda, because vmap reads the repr of what it maps, and Dynamo on torch 2.8 has none for a module.
    return way(lambda *values: f(*values), inputs, *rest)


def check_all(cases: list[Case], check: Callable[[list[Case]], None]) -> None:
    """`check` of all at once; if it fails, of each case, so that the message names the wrong cases and their numbers."""
    try:
        check(cases)
    except Exception as error:
        if len(cases) == 1:
            raise
        lines = [f"{label(cases)} in one graph: {type(error).__name__}: {error}"]
        for case in cases:
            torch._dynamo.reset()
            try:
                check([case])
            except Exception as own_error:
                lines.append(f"{case} alone: {type(own_error).__name__}: {own_error}")
        raise AssertionError("\n".join(lines if len(lines) > 1 else [*lines, "each of them passes alone"])) from error
