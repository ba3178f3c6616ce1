"""The value matrix, cell by cell. `--matrix FILE` writes the outcome of a run as a table for the docs; `--slow` compiles every case."""

import itertools
import subprocess
import sys
from collections.abc import Callable, Collection, Hashable, Iterable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pseudograd.testing.contract import all_inputs
from pseudograd.testing.contract.cases import Case
from pseudograd.testing.contract.equality import assert_same_bits, assert_same_values
from pseudograd.testing.contract.values import plain
from pseudograd.testing.measure import transforms
from pseudograd.testing.measure.gradients import saved_by
from pseudograd.testing.measure.inputs import requiring_grad, tensors_of

from ..choices import as_parameters, folded, marks_of
from . import batches, limits, matrix
from .cases import cells_of
from .matrix import MATRIX_CASES, Way

EAGER = {**matrix.FIRST, **matrix.SECOND, **matrix.FORWARD, **matrix.FORWARD_SECOND}
COMPILED = {
    **matrix.COMPILED_ALONE,
    **matrix.COMPILED_FIRST,
    **matrix.COMPILED_SECOND,
    **matrix.COMPILED_FORWARD,
    **matrix.COMPILED_FORWARD_SECOND,
}
FORWARD_MODE = {*matrix.FORWARD, *matrix.FORWARD_SECOND}
SECOND_ORDER = {*matrix.SECOND, *matrix.FORWARD_SECOND}
# Compiled without --slow: one rule by every way; a linear one in forward mode, and where the compiler sees another structure.
USUAL = {"clamp-zero-closed", "clamp-inward-closed", "replace_grad-replace"}
QUICK = {
    ("clamp-inward-closed", "plain"),
    ("clamp-inward-closed", "func.grad"),
    ("clamp-inward-closed", "vmap(grad)"),
    ("clamp-zero-closed", "func.jvp"),
}
BY_EVERY_WAY = "clamp-inward-closed"
TRACING = ("compiled autograd", "make_fx")
WAYS_OF_OTHER_CASES = ("plain", "func.grad", "vmap(grad)", "func.vjp", "jacrev", "func.jvp", "jacfwd")
SOME_WAYS = {"func.grad", "func.jvp", *matrix.COMPILED_FORWARD_SECOND}


def _check(case: Case, name: str, way: Way, record: Callable[[str, Any], None], place: str) -> None:
    f, x, weight, expected = _solved(case, "hessian" if name in SECOND_ORDER else "plain")
    if name in matrix.ROWS:  # one pass for each element, so two rows must do: one with x below, one with x above
        x, weight = x[[0, 3]], weight[[0, 3]]
        expected = _expected(name, f, x, weight)
    if name in FORWARD_MODE and not case.is_linear:
        with pytest.raises(Exception, match="forward mode must not be used"):
            way(f, x, weight)
        _record(record, place, name, case, "our error")
    else:
        assert_same_values(way(f, x, weight), expected, name, ulps=case.ulps, x=x)
        _record(record, place, name, case, "equal")


def _expected(name: str, f: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (matrix.second_by_double_backward if name in SECOND_ORDER else transforms.gradient_by_backward)(f, x, weight)


@lru_cache(maxsize=2)  # the ways of one case follow each other
def _solved(case: Case, order: str) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The problem of the case, and its gradient by backward. order: the name of a way whose derivative has the same order."""
    problem = matrix.problem(case)
    return *problem, _expected(order, *problem)


def _record(record: Callable[[str, Any], None], place: str, name: str, case: Case, outcome: str) -> None:
    record("cell", (place, name, f"{case.op.name}/{case.rule.name}", outcome))


def _compiling_once(cells: list[Any]) -> list[Any]:
    """Every run has the ways that trace or compile for one case only."""
    return [
        cell if cell.values[1] not in TRACING or str(cell.values[0]) == BY_EVERY_WAY else _mark_program(cell)
        for cell in cells
    ]


def _mark_program(cell: Any) -> Any:
    return pytest.param(*cell.values, id=cell.id, marks=[*cell.marks, pytest.mark.program])


def _facts(cell: tuple[Case, str]) -> set[Hashable]:
    """Every run has each op and rule, each way with each set of rules, and each rule by one of three ways that follow each other."""
    case, name = cell
    op, rule = case.op, case.rule.name
    ways = (rule, [*EAGER].index(name) // 3)
    shown: set[Hashable] = {(op.name, rule), (name, op.rule_set), (name, case.is_linear), ways}
    return shown | {("every way", name)} if str(case) == BY_EVERY_WAY else shown


@folded
@pytest.mark.parametrize(
    ("case", "name"), _compiling_once(as_parameters([*itertools.product(MATRIX_CASES, EAGER)], _facts))
)
def test_eager(case: Case, name: str, record_property: Callable[[str, Any], None]) -> None:
    _check(case, name, EAGER[name], record_property, "eager")


def compiled_cells(cases: list[Case], names: Iterable[str], quick: Collection[tuple[str, str]] = ()) -> list[Any]:
    """Cells of (cases of one graph, way, dynamic). A usual case has a cell of its own; the quick ones are in every run."""
    usual = {(case, name) for case in USUAL for name in names if case == BY_EVERY_WAY or name in SOME_WAYS}
    cells = []
    for name in names:
        # Forward mode of a rule that reads grad: our error, shown in eager.
        able = [case for case in cases if case.is_linear or name not in FORWARD_MODE]
        single = [[case] for case in able if (str(case), name) in usual]
        others = [case for case in able if (str(case), name) not in usual]
        for dynamic in (False, True):
            for case in able:
                if (str(case), name, dynamic) in limits.OF_TORCHS_DERIVATIVE:
                    others.remove(case)
                    cells.append(_failing_in_torch(case, name, dynamic))
            size = 1 if dynamic and name in matrix.COMPILED_ALONE else batches.SIZE  # no cheaper there, in one graph
            for batch in [*single, *batches.in_batches(others, size)]:
                cell = f"{batches.label(batch)}-{name}-{'dynamic' if dynamic else 'static'}"
                is_usual = batch in single and not dynamic
                marks = marks_of((str(batch[0]), name) in quick, pytest.mark.program) if is_usual else pytest.mark.slow
                cells.append(pytest.param(batch, name, dynamic, id=cell, marks=marks))
    return cells


def _failing_in_torch(case: Case, name: str, dynamic: bool) -> Any:
    reason = limits.OF_TORCHS_DERIVATIVE[str(case), name, dynamic]
    marks = [pytest.mark.slow, pytest.mark.xfail(strict=True, reason=reason)]
    return pytest.param([case], name, dynamic, id=f"{case}-{name}-{reason}", marks=marks)


def _place(dynamic: bool) -> str:
    return f"compiled, {'dynamic' if dynamic else 'static'}"


@pytest.mark.parametrize(("cases", "name", "dynamic"), compiled_cells(MATRIX_CASES, COMPILED, QUICK))
def test_compiled(cases: list[Case], name: str, dynamic: bool, record_property: Callable[[str, Any], None]) -> None:
    for case in cases:
        outcome = limits.OF_TORCHS_DERIVATIVE.get((str(case), name, dynamic), "equal")
        _record(record_property, _place(dynamic), name, case, outcome)
    batches.check_all(cases, partial(check_compiled, name, dynamic))


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS_OF_OTHER_CASES)
@pytest.mark.parametrize("cases", batches.in_batches(matrix.OTHER_CASES), ids=batches.label)
def test_every_edge_direction_and_parameter_compiled(cases: list[Case], name: str) -> None:
    able = [case for case in cases if case.is_linear or name not in FORWARD_MODE]
    if able:
        batches.check_all(able, partial(check_compiled, name, False))


def check_compiled(name: str, dynamic: bool, cases: list[Case]) -> None:
    problems = [matrix.problem(case) for case in cases]
    gradients = _compiled(name, dynamic, problems)
    for case, (f, x, weight), ours in zip(cases, problems, gradients, strict=True):
        assert_same_values(ours, _expected(name, f, x, weight), f"{case}, {name}", ulps=case.ulps, x=x)
    if name == "plain":
        functions, xs, _ = (list(values) for values in zip(*problems, strict=True))
        compiled = torch.compile(batches.SideBySide(functions), backend="aot_eager", fullgraph=True, dynamic=dynamic)
        for is_recording in (False, True):
            values = compiled(torch.stack(xs).requires_grad_(is_recording))
            for case, f, x, y in zip(cases, functions, xs, values, strict=True):
                assert_same_values(y, f(x), f"{case}, forward, recording: {is_recording}")


def _compiled(name: str, dynamic: bool, problems: list[tuple[Any, Any, torch.Tensor]]) -> Any:
    """The gradients of all problems by this way, in one graph. A problem is (f, x, weight) or (f, all its tensors, weight)."""

    def compiled(g: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(g, backend="aot_eager", fullgraph=True, dynamic=dynamic)

    functions, inputs, weights = (list(values) for values in zip(*problems, strict=True))
    way = COMPILED[name]
    if name in matrix.COMPILED_ALONE:
        return batches.run_alone(way, functions, inputs, weights, compiled)
    if name == "vmap, then backward":
        mapped = [transforms.mapped(*problem) for problem in problems]
        return batches.run_alone(transforms.gradient_by_backward, mapped, inputs, weights, compiled)
    if name in matrix.ROWS:
        return batches.run_by_rows(matrix.ROWS[name], functions, inputs, weights, compiled)
    return batches.run_together(way, functions, inputs, weights, compiled)


@lru_cache(maxsize=1)  # the ways of one case follow each other
def _problems_of(case: Case) -> list[tuple[all_inputs.Problem, transforms.Gradients]]:
    """Each problem of the case, and its gradients by backward."""
    return [(problem, transforms.gradient_by_backward(*problem[1:])) for problem in all_inputs.problems(case)]


@folded
@pytest.mark.parametrize(("case", "name"), _compiling_once(cells_of(matrix.CASES_OF_MANY, matrix.ALL_INPUTS)))
def test_all_inputs(
    case: Case, name: str, record_property: Callable[[str, Any], None], pytestconfig: pytest.Config
) -> None:
    """Each way of every third sample and pair of dtypes; `--slow` has all."""
    start, step = (0, 1) if pytestconfig.getoption("--slow") else ([*matrix.ALL_INPUTS].index(name) % 3, 3)
    for (what, f, tensors, weight), expected in _problems_of(case)[start::step]:
        gradients = matrix.ALL_INPUTS[name](f, tensors, weight)
        all_inputs.assert_same_gradients(gradients, expected, tensors, what)
    _record(record_property, "eager", f"{name}, all inputs", case, "equal")


@pytest.mark.program
@pytest.mark.parametrize(("cases", "name", "dynamic"), compiled_cells(matrix.CASES_OF_MANY, matrix.COMPILED_ALL_INPUTS))
def test_all_inputs_compiled(
    cases: list[Case], name: str, dynamic: bool, record_property: Callable[[str, Any], None]
) -> None:
    batches.check_all(cases, partial(_check_all_inputs_compiled, name, dynamic))
    for case in cases:
        _record(record_property, _place(dynamic), f"{name}, all inputs", case, "equal")


def _check_all_inputs_compiled(name: str, dynamic: bool, cases: list[Case]) -> None:
    """The first sample of each, in one dtype and with the others narrower than x."""
    problems = [(case, problem) for case in cases for problem in list(all_inputs.problems(case))[0:3:2]]
    gradients = _compiled(name, dynamic, [(p.f, p.tensors, p.weight) for _, p in problems])
    for (case, (what, f, tensors, weight)), ours in zip(problems, gradients, strict=True):
        expected = transforms.gradient_by_backward(f, tensors, weight)
        all_inputs.assert_same_gradients(ours, expected, tensors, f"{case}, {what}")


@pytest.mark.parametrize("name", ["plain", "func.grad", "vmap(grad)"])
@pytest.mark.parametrize("case", [case for case in MATRIX_CASES if str(case) in USUAL], ids=str)
@pytest.mark.slow
def test_inductor(case: Case, name: str, record_property: Callable[[str, Any], None]) -> None:
    """The compiler that writes code; needs a C++ compiler."""

    def way(f: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if name == "plain":
            return transforms.gradient_by_backward(torch.compile(f, fullgraph=True), x, weight)
        return torch.compile(lambda x, weight: COMPILED[name](f, x, weight), fullgraph=True)(x, weight)

    _check(case, name, way, record_property, "inductor")


ONE_FAULT = "import sys; from tests.contract import limits; print(limits.outcome(sys.argv[1]))"


def _expected_to_fail(name: str) -> Any:
    reason = f"{limits.FAULTS[name].issue}, of torch.sin too"
    return pytest.param(name, marks=pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason))


@pytest.mark.slow  # a process for each, and nothing of ours in them
@pytest.mark.parametrize("name", [_expected_to_fail(name) for name in limits.FAULTS])
def test_a_fault_of_torch_is_mended(name: str, record_property: Callable[[str, Any], None]) -> None:
    """Shown with torch.sin. On the torch where this passes, the cell belongs into the matrix."""
    record_property("cell", ("compiled, static", name, "torch.sin", limits.FAULTS[name].issue))
    command = [sys.executable, "-W", "ignore", "-c", ONE_FAULT, name]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "equal"


@pytest.mark.parametrize("name", limits.REFUSALS)
@pytest.mark.parametrize("of", ["torch.sin", "clamp/inward"])
def test_what_torch_refuses_of_any_function(of: str, name: str, record_property: Callable[[str, Any], None]) -> None:
    place, text, attempt = limits.REFUSALS[name]
    f = torch.sin if of == "torch.sin" else matrix.problem(next(r for r in MATRIX_CASES if str(r) in USUAL))[0]
    with pytest.raises(RuntimeError, match=text):
        attempt(f, torch.linspace(-1, 1, 6, dtype=torch.float64).requires_grad_())
    record_property("cell", (place, name, "torch.sin", "by design"))


@folded
@pytest.mark.parametrize("case", MATRIX_CASES, ids=str)
def test_autocast_gives_dtype_and_values_of_torch(case: Case, record_property: Callable[[str, Any], None]) -> None:
    """clamp is in no list of autocast, so it may get bfloat16 from the layer before it, and a float32 bound."""
    for sample in case.samples():
        narrow = sample.build(torch.bfloat16)
        beside = (narrow[0], *[v.float() if isinstance(v, torch.Tensor) else v for v in narrow[1:]])
        for inputs in (narrow, beside, sample.build(torch.float32)):
            leaves = requiring_grad(inputs)
            outside = torch.autograd.grad(case(*leaves).sum(), tensors_of(leaves), allow_unused=True)
            with torch.autocast("cpu", torch.bfloat16):
                expected = plain(case, inputs)
                assert_same_bits(case(*inputs), expected, f"{sample.name}, not recording")
                y = case(*leaves)
                assert_same_bits(y, expected, f"{sample.name}, recording")
                inside = torch.autograd.grad(y.sum(), tensors_of(leaves), allow_unused=True)
            for ours, theirs in zip(inside, outside, strict=True):
                assert_same_values(ours, theirs, f"{sample.name}, gradient")
    record_property("cell", ("eager", "autocast, mixed dtypes", f"{case.op.name}/{case.rule.name}", "equal"))


@folded
@pytest.mark.parametrize("case", MATRIX_CASES, ids=str)
def test_inference_mode(case: Case, record_property: Callable[[str, Any], None]) -> None:
    """The values are equal, nothing is recorded or saved, and the result can be used later as torch's own."""
    f, x, weight = matrix.problem(case)
    leaf = x.clone().requires_grad_()
    expected = f(x)
    with torch.inference_mode():
        assert saved_by(f, (leaf,)) == []
        y = f(leaf)
        assert_same_bits(y, expected, "values")
    if y.data_ptr() == leaf.data_ptr():  # to torch a view, made here, of a leaf made outside is as that leaf
        assert y.requires_grad == leaf.view_as(leaf).requires_grad
        y = y.detach()
    else:
        assert y.is_inference()
    assert not y.requires_grad
    assert_same_bits(f(y), f(y.clone()), "used later, not recording")
    assert_same_values(
        transforms.gradient_by_func_grad(f, y, weight), transforms.gradient_by_backward(f, y.clone(), weight), "grad"
    )
    record_property("cell", ("eager", "inference_mode", f"{case.op.name}/{case.rule.name}", "equal"))
