"""The outcomes of a backend of torch.compile at the points of the kink table.

Many functions are compiled as one program, which runs at every point of its functions. This takes a twentieth of the time of one program
for each point. Compiled code depends on the shapes of its inputs, not on their values, so each point should get the gradient that it gets
when it is compiled alone. But a compiler may join the loops of independent functions, and old Inductors made mistakes there. So a point
that differs from eager mode is compiled and measured alone, and this result counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pseudograd.errors import must, unknown_name

from .measure import EAGER, error_line, make_inputs, measure, numbers_of, torch_function, weighted_sum
from .outcome import Numbers, Outcome
from .table import Point

Backend = str | Callable[..., object]
Group = Sequence[Point]  # points of one function that differ only in the values of their inputs
_GROUPS_IN_A_PROGRAM = 16
NOT_COMPILED = "not compiled: "


def check_backend(backend: Backend) -> Backend:
    """The backend. Raises an error if torch has no backend of this name."""
    if isinstance(backend, str):
        names = torch.compiler.list_backends(exclude_tags=())
        if backend not in names:
            raise unknown_name("kinks", "--backend", names, backend, "One of your own is MODULE:FUNCTION")
    return backend


def name_of(backend: Backend) -> str:
    return backend if isinstance(backend, str) else f"{backend.__module__}:{getattr(backend, '__qualname__', backend)}"


def compile_points(points: Sequence[Point], backend: Backend, device: str = "cpu") -> dict[str, Outcome]:
    """The outcome of each point, by its id. A point without a gradient in eager mode is left out. If the backend cannot compile a point,
    its error begins with NOT_COMPILED.
    """
    measured = {point: measure(point, EAGER, device) for point in points}
    eager = {point: plain for point, plain in measured.items() if plain is not None and plain.gradient is not None}
    by_function: dict[object, list[Point]] = {}
    for point in eager:
        shapes = tuple(tuple(torch.tensor(value).shape) for value in point.inputs)
        key = point.expressions["torch"], shapes, point.differentiated, point.weights
        by_function.setdefault(key, []).append(point)
    groups: list[Group] = list(by_function.values())
    outcomes: dict[str, Outcome] = {}
    for start in range(0, len(groups), _GROUPS_IN_A_PROGRAM):
        outcomes.update(_compile_groups(groups[start : start + _GROUPS_IN_A_PROGRAM], backend, device))
    if outcomes and all(outcome.error.startswith(NOT_COMPILED) for outcome in outcomes.values()):
        why = next(iter(outcomes.values())).error.removeprefix(NOT_COMPILED)
        raise ValueError(must("kinks", "--backend", "compile at least one point", name_of(backend), f"It fails: {why}"))
    for point, plain in eager.items():
        if not outcomes[point.id].error and not outcomes[point.id].has_same_effect_as(plain):
            outcomes.update(_compile_groups([[point]], backend, device))
    return outcomes


def _compile_groups(groups: Sequence[Group], backend: Backend, device: str) -> dict[str, Outcome]:
    """Compile all groups as one program. If that fails, compile each half by itself, and so on down to single points."""
    try:
        return _run_program(groups, backend, device)
    except Exception as error:
        if len(groups) == 1 and len(groups[0]) == 1:
            inner = getattr(error, "inner_exception", None)  # the backend's own error, which Dynamo wraps
            cause = inner if isinstance(inner, Exception) else error
            return {groups[0][0].id: Outcome(error=NOT_COMPILED + error_line(cause))}
    if len(groups) == 1:
        groups = [[point] for point in groups[0]]
    half = len(groups) // 2
    return {**_compile_groups(groups[:half], backend, device), **_compile_groups(groups[half:], backend, device)}


def _run_program(groups: Sequence[Group], backend: Backend, device: str) -> dict[str, Outcome]:
    """Run one program once for each point of the largest group; a smaller group repeats its last point."""
    functions = [torch_function(group[0]) for group in groups]

    def program(inputs: list[list[Tensor]]) -> list[Tensor]:
        return [f(*tensors) for f, tensors in zip(functions, inputs, strict=True)]

    torch.compiler.reset()
    with warnings.catch_warnings(), torch.inference_mode(False), torch.enable_grad():
        warnings.simplefilter("ignore")
        compiled_program = torch.compile(program, backend=backend)
        outcomes: dict[str, Outcome] = {}
        for turn in range(max(map(len, groups))):
            points = [group[min(turn, len(group) - 1)] for group in groups]
            rows = _gradients(points, compiled_program, device)
            for point in points:
                outcomes[point.id] = Outcome(tuple(next(rows) for _ in point.differentiated))
    return outcomes


def _gradients(
    points: Sequence[Point], program: Callable[[list[list[Tensor]]], list[Tensor]], device: str
) -> Iterator[Numbers | None]:
    """The gradient of every differentiated input of every point, in one backward pass: a compiled program allows no second one."""
    leaves = [make_inputs(point, device) for point in points]
    pairs = [(point, y) for point, y in zip(points, program(leaves), strict=True) if y.requires_grad]
    wanted = [inputs[index] for point, inputs in zip(points, leaves, strict=True) for index in point.differentiated]
    if not pairs:
        return iter([None] * len(wanted))
    total = torch.stack([weighted_sum(point, y) for point, y in pairs]).sum()
    gradients = torch.autograd.grad(total, wanted, allow_unused=True)
    return iter([None if gradient is None else numbers_of(gradient) for gradient in gradients])
