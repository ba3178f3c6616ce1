"""What a backend of torch.compile does at the points. Many are compiled as one program, which takes a tenth of the time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import must, unknown_name
from .measure import Place, function_of, in_one_line, numbers_of, weighted
from .numbers import Outcome
from .point import Point

Backend = str | Callable[..., Any]
_TOGETHER = 16
NOT_COMPILED = "not compiled: "


def known_backend(backend: Backend) -> Backend:
    """The backend, if torch has one of that name."""
    if isinstance(backend, str):
        names = torch.compiler.list_backends(exclude_tags=())
        if backend not in names:
            hint = "One of your own is MODULE:FUNCTION"
            raise unknown_name("kinks", "--backend", names, backend, hint)
    return backend


def compiled(points: Sequence[Point], backend: Backend, device: str = "cpu") -> dict[str, Outcome]:
    """By the id of the point. Points that the backend cannot compile have an error that begins with NOT_COMPILED."""
    found: dict[str, Outcome] = {}
    for start in range(0, len(points), _TOGETHER):
        found.update(_together(points[start : start + _TOGETHER], backend, device))
    if found and all(outcome.error.startswith(NOT_COMPILED) for outcome in found.values()):
        why = next(iter(found.values())).error.removeprefix(NOT_COMPILED)
        raise ValueError(must("kinks", "--backend", "compile at least one point", name_of(backend), f"It fails: {why}"))
    return found


def name_of(backend: Backend) -> str:
    return backend if isinstance(backend, str) else f"{backend.__module__}:{getattr(backend, '__qualname__', backend)}"


def _cause(error: Exception) -> Exception:
    """What the backend raised, behind Dynamo's own words for it."""
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, Exception) else error


def _together(points: Sequence[Point], backend: Backend, device: str) -> dict[str, Outcome]:
    """All in one program; where that fails, each half in one."""
    try:
        rows = _gradients(points, backend, device)
    except Exception as error:
        if len(points) == 1:
            return {points[0].id: Outcome(error=NOT_COMPILED + in_one_line(_cause(error)))}
        half = len(points) // 2
        return {**_together(points[:half], backend, device), **_together(points[half:], backend, device)}
    return {point.id: Outcome(tuple(next(rows) for _ in point.differentiated)) for point in points}


def _gradients(points: Sequence[Point], backend: Backend, device: str) -> Iterator[tuple[float, ...] | None]:
    """Of every differentiated input of every point, in one backward pass: a compiled program has no second one."""
    functions = [function_of(point) for point in points]
    leaves = [Place(device).leaves(point) for point in points]

    def program(given: list[list[Tensor]]) -> list[Tensor]:
        return [f(*inputs) for f, inputs in zip(functions, given, strict=True)]

    torch.compiler.reset()
    with warnings.catch_warnings(), torch.inference_mode(False), torch.enable_grad():
        warnings.simplefilter("ignore")
        results = torch.compile(program, backend=backend)(leaves)
        pairs = [(point, y) for point, y in zip(points, results, strict=True) if y.requires_grad]
        asked = [inputs[at] for point, inputs in zip(points, leaves, strict=True) for at in point.differentiated]
        if not pairs:
            return iter([None] * len(asked))
        total = torch.stack([weighted(point, y) for point, y in pairs]).sum()
        found = torch.autograd.grad(total, asked, allow_unused=True)
    return iter([None if one is None else numbers_of(one) for one in found])
