"""Several cases in one graph: of what a compile of a small function costs, about half is the same for one and for a dozen."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pseudograd.testing.contract.cases import Case

SIZE = 12
Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]
Given = TypeVar("Given", Tensor, list[Tensor])


def in_batches(cases: list[Case], size: int = SIZE) -> list[list[Case]]:
    return [cases[start : start + size] for start in range(0, len(cases), size)]


def label(cases: list[Case]) -> str:
    return str(cases[0]) if len(cases) == 1 else f"{cases[0]}..{cases[-1]}"


class SideBySide(nn.Module):
    """The first function of x[0], the second of x[1], and so on."""

    def __init__(self, functions: list[Any]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([f(one) for f, one in zip(self.functions, x.unbind(), strict=True)])


class EndToEnd(nn.Module):
    """The results in one line: of each function of as many of the tensors as it takes."""

    def __init__(self, functions: list[Any], counts: list[int]) -> None:
        super().__init__()
        self.functions, self.counts = functions, counts

    def forward(self, *tensors: Tensor) -> Tensor:
        parts, start = [], 0
        for f, count in zip(self.functions, self.counts, strict=True):
            parts.append(f(*tensors[start : start + count]).reshape(-1))
            start += count
        return torch.cat(parts)


def alone(way: Callable[..., Any], fs: list[Any], given: list[Given], weights: list[Tensor], compile: Compiler) -> Any:
    """The way of what comes out of the compiler, for each f; `given`: one tensor for each, or a list of all its tensors."""
    if len(fs) == 1:
        return [way(compile(fs[0]), given[0], weights[0])]
    if isinstance(given[0], Tensor):
        return way(compile(SideBySide(fs)), torch.stack(given), torch.stack(weights)).unbind()  # type: ignore[arg-type]
    counts = [len(tensors) for tensors in given]
    tensors = [tensor for tensors in given for tensor in tensors]
    found = iter(way(compile(EndToEnd(fs, counts)), tensors, torch.cat([weight.reshape(-1) for weight in weights])))
    return [tuple(next(found) for _ in range(count)) for count in counts]


def together(
    way: Callable[..., Any], fs: list[Any], given: list[Given], weights: list[Tensor], compile: Compiler
) -> Any:
    """The way inside what is compiled, for each f."""
    return compile(lambda given, weights: [_way_of(way, *one) for one in zip(fs, given, weights, strict=True)])(
        given, weights
    )


def row_by_row(
    row: Callable[..., Tensor], fs: list[Any], given: list[Tensor], weights: list[Tensor], compile: Compiler
) -> list[Tensor]:
    """The way inside what is compiled, for each f of tensors of one shape: the rows come from one graph, which traces each f once."""
    graph = compile(
        lambda given, weights, pick: [_way_of(row, *one, pick) for one in zip(fs, given, weights, strict=True)]
    )
    rows = [graph(given, weights, pick) for pick in picks(given[0])]
    return [stacked(list(of_one), x) for of_one, x in zip(zip(*rows, strict=True), given, strict=True)]


def picks(x: Tensor) -> list[Tensor]:
    """For each element of x, a tensor of its shape that is 1 there and 0 elsewhere."""
    return list(torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape))


def stacked(rows: list[Tensor], x: Tensor) -> Tensor:
    return torch.stack(rows).reshape(*x.shape, *x.shape)


def _way_of(way: Callable[..., Any], f: Callable[..., Tensor], given: Any, *rest: Tensor) -> Any:
    # In a lambda, because vmap asks for the repr of what it maps, and Dynamo on torch 2.8 has none for a module.
    return way(lambda *values: f(*values), given, *rest)


def check_all(cases: list[Case], check: Callable[[list[Case]], None]) -> None:
    """`check` of all at once; where that fails, of each, so that the message names the cases that are wrong and their numbers."""
    try:
        check(cases)
    except Exception as error:
        if len(cases) == 1:
            raise
        alone = list(_failures(cases, check)) or ["each of them passes alone"]
        raise AssertionError("\n".join([f"{label(cases)} in one graph: {_said(error)}", *alone])) from error


def _failures(cases: list[Case], check: Callable[[list[Case]], None]) -> Iterator[str]:
    for case in cases:
        torch._dynamo.reset()
        try:
            check([case])
        except Exception as error:
            yield f"{case} alone: {_said(error)}"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
