"""What a backend of torch.compile does at the points.

Many functions are compiled as one program, and each program runs at every place of its functions: this takes a twentieth of the time. The
compiled code knows shapes, not values, so that it does at each place what it would do alone. But a compiler may join the loops of functions
that have nothing to do with each other, and old Inductors did so wrongly: what a program does otherwise than eager mode is measured once
more, compiled alone, and that counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pseudograd.errors import must, unknown_name

from .measure import EAGER, Place, function_of, in_one_line, measured, numbers_of, weighted
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
    groups = _of_one_function(points)
    found: dict[str, Outcome] = {}
    for start in range(0, len(groups), _TOGETHER):
        found.update(_together(groups[start : start + _TOGETHER], backend, device))
    if found and all(outcome.error.startswith(NOT_COMPILED) for outcome in found.values()):
        why = next(iter(found.values())).error.removeprefix(NOT_COMPILED)
        raise ValueError(must("kinks", "--backend", "compile at least one point", name_of(backend), f"It fails: {why}"))
    for point in points:
        if _is_doubtful(found[point.id], measured(point, EAGER, device)):
            found.update(_together([[point]], backend, device))
    return found


def _is_doubtful(found: Outcome, eager: Outcome | None) -> bool:
    return not found.error and eager is not None and not found.has_same_effect_as(eager)


def name_of(backend: Backend) -> str:
    return backend if isinstance(backend, str) else f"{backend.__module__}:{getattr(backend, '__qualname__', backend)}"


def _cause(error: Exception) -> Exception:
    """What the backend raised, behind Dynamo's own words for it."""
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, Exception) else error


Group = Sequence[Point]


def _of_one_function(points: Sequence[Point]) -> list[Group]:
    """Points that differ in their values alone are the places of one function."""
    groups: dict[object, list[Point]] = {}
    for point in points:
        shapes = tuple(tuple(torch.tensor(value).shape) for value in point.inputs)
        groups.setdefault((point.expressions["torch"], shapes, point.differentiated, point.weights), []).append(point)
    return list(groups.values())


def _together(groups: Sequence[Group], backend: Backend, device: str) -> dict[str, Outcome]:
    """All in one program; where that fails each half in one, and at last each point alone."""
    try:
        return _outcomes(groups, backend, device)
    except Exception as error:
        if len(groups) == 1 and len(groups[0]) == 1:
            return {groups[0][0].id: Outcome(error=NOT_COMPILED + in_one_line(_cause(error)))}
    if len(groups) == 1:
        groups = [[point] for point in groups[0]]
    half = len(groups) // 2
    return {**_together(groups[:half], backend, device), **_together(groups[half:], backend, device)}


def _outcomes(groups: Sequence[Group], backend: Backend, device: str) -> dict[str, Outcome]:
    functions = [function_of(group[0]) for group in groups]

    def program(given: list[list[Tensor]]) -> list[Tensor]:
        return [f(*inputs) for f, inputs in zip(functions, given, strict=True)]

    torch.compiler.reset()
    with warnings.catch_warnings(), torch.inference_mode(False), torch.enable_grad():
        warnings.simplefilter("ignore")
        compiled_program = torch.compile(program, backend=backend)
        found: dict[str, Outcome] = {}
        for turn in range(max(map(len, groups))):
            points = [group[min(turn, len(group) - 1)] for group in groups]
            rows = _gradients(points, compiled_program, device)
            for point in points:
                found[point.id] = Outcome(tuple(next(rows) for _ in point.differentiated))
    return found


def _gradients(
    points: Sequence[Point], program: Callable[[list[list[Tensor]]], list[Tensor]], device: str
) -> Iterator[tuple[float, ...] | None]:
    """Of every differentiated input of every point, in one backward pass: a compiled program has no second one."""
    leaves = [Place(device).leaves(point) for point in points]
    pairs = [(point, y) for point, y in zip(points, program(leaves), strict=True) if y.requires_grad]
    asked = [inputs[at] for point, inputs in zip(points, leaves, strict=True) for at in point.differentiated]
    if not pairs:
        return iter([None] * len(asked))
    total = torch.stack([weighted(point, y) for point, y in pairs]).sum()
    found = torch.autograd.grad(total, asked, allow_unused=True)
    return iter([None if one is None else numbers_of(one) for one in found])
