"""The value matrix, cell by cell. `--matrix FILE` writes the outcome of a run as a table for the docs; `--slow` compiles every case."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
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

from . import limits, matrix
from .cases import BY_ANOTHER_NAME, ONE_SIDED
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
TRACING = {"make_fx", "compiled autograd"}
BY_EVERY_WAY = "clamp-inward-closed"
SOME_WAYS = {
    "plain",
    "func.grad",
    "vmap(grad)",
    "jacrev(jacrev)",
    *matrix.COMPILED_FORWARD,
    *matrix.COMPILED_FORWARD_SECOND,
}


@pytest.fixture(autouse=True)
def _forget_what_was_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _check(case: Case, name: str, way: Way, record: Callable[[str, Any], None], place: str) -> None:
    f, x, weight = matrix.problem(case)
    if name in FORWARD_MODE and not case.is_linear:
        with pytest.raises(Exception, match="forward mode must not be used"):
            way(f, x, weight)
        outcome = "our error"
    else:
        plain = matrix.second_by_double_backward if name in SECOND_ORDER else transforms.by_backward
        assert_same_values(way(f, x, weight), plain(f, x, weight), name, ulps=case.ulps, x=x)
        outcome = "equal"
    record("cell", (place, name, f"{case.op.name}/{case.rule.name}", outcome))


def _eager_cells(cases: list[Case], names: Iterable[str]) -> list[Any]:
    """(case, way); in the default run all but those that repeat another, and take long."""
    return [
        pytest.param(case, name, id=f"{case}-{name}", marks=pytest.mark.slow if _is_a_repeat(case, name) else ())
        for case in cases
        for name in names
    ]


def _is_a_repeat(case: Case, name: str) -> bool:
    """Ops that are clamp by another name or with one bound, and the two ways that trace: two rules show both kinds."""
    is_one_of_two = case.rule.name in ("zero", "inward")
    if case.op.name in (*ONE_SIDED, *BY_ANOTHER_NAME):
        return not is_one_of_two or name in TRACING
    return name in TRACING and case.op.rule_set == "clamp" and not is_one_of_two


@pytest.mark.parametrize(("case", "name"), _eager_cells(MATRIX_CASES, EAGER))
def test_eager(case: Case, name: str, record_property: Callable[[str, Any], None]) -> None:
    _check(case, name, EAGER[name], record_property, "eager")


def _compiled_cells(cases: list[Case], names: Iterable[str]) -> list[Any]:
    """(case, way); in the default run those of the usual cases that show something of their own."""
    usual = {(case, name) for case in USUAL for name in names if case == BY_EVERY_WAY or name in SOME_WAYS}
    return [
        pytest.param(case, name, id=f"{case}-{name}", marks=() if (str(case), name) in usual else pytest.mark.slow)
        for case in cases
        for name in names
        if case.is_linear
        or name not in FORWARD_MODE  # forward mode of a rule that reads grad: our error, shown in eager
    ]


@pytest.mark.parametrize(
    "dynamic", [pytest.param(False, id="static"), pytest.param(True, id="dynamic", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("case", "name"), _compiled_cells(MATRIX_CASES, COMPILED))
def test_compiled(case: Case, name: str, dynamic: bool, record_property: Callable[[str, Any], None]) -> None:
    place = f"compiled, {'dynamic' if dynamic else 'static'}"
    _check(case, name, partial(_compiled, name, dynamic), record_property, place)


def _compiled(name: str, dynamic: bool, f: Callable[..., torch.Tensor], inputs: Any, weight: torch.Tensor) -> Any:
    """`inputs`: x, or a list of all tensor inputs."""

    def compiled(g: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(g, backend="aot_eager", fullgraph=True, dynamic=dynamic)

    way = COMPILED[name]
    if name in matrix.COMPILED_ALONE:
        return way(compiled(f), inputs, weight)
    if name == "vmap, then backward":
        return way(f, inputs, weight, through=compiled)
    # In a lambda, because vmap asks for the repr of what it maps, and Dynamo on torch 2.8 has none for a module.
    return compiled(lambda inputs, weight: way(lambda *values: f(*values), inputs, weight))(inputs, weight)


@pytest.mark.parametrize(("case", "name"), _eager_cells(matrix.CASES_OF_MANY, matrix.ALL_INPUTS))
def test_all_inputs(case: Case, name: str, record_property: Callable[[str, Any], None]) -> None:
    for problem in all_inputs.problems(case):
        _check_all_inputs(problem, matrix.ALL_INPUTS[name])
    record_property("cell", ("eager", f"{name}, all inputs", f"{case.op.name}/{case.rule.name}", "equal"))


def _check_all_inputs(problem: all_inputs.Problem, way: Way) -> None:
    what, f, tensors, weight = problem
    expected = transforms.by_backward(f, tensors, weight)
    all_inputs.assert_same_gradients(way(f, tensors, weight), expected, tensors, what)


@pytest.mark.parametrize(
    "dynamic", [pytest.param(False, id="static"), pytest.param(True, id="dynamic", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("case", "name"), _compiled_cells(matrix.CASES_OF_MANY, matrix.COMPILED_ALL_INPUTS))
def test_all_inputs_compiled(case: Case, name: str, dynamic: bool, record_property: Callable[[str, Any], None]) -> None:
    """The first sample, in one dtype and with the others narrower than x."""
    for problem in list(all_inputs.problems(case))[0:3:2]:
        _check_all_inputs(problem, partial(_compiled, name, dynamic))
    place = f"compiled, {'dynamic' if dynamic else 'static'}"
    record_property("cell", (place, f"{name}, all inputs", f"{case.op.name}/{case.rule.name}", "equal"))


@pytest.mark.parametrize("name", ["plain", "func.grad", "vmap(grad)"])
@pytest.mark.parametrize("case", [case for case in MATRIX_CASES if str(case) in USUAL], ids=str)
@pytest.mark.slow
def test_inductor(case: Case, name: str, record_property: Callable[[str, Any], None]) -> None:
    """The compiler that writes code; needs a C++ compiler."""

    def way(f: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if name == "plain":
            return transforms.by_backward(torch.compile(f, fullgraph=True), x, weight)
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


@pytest.mark.parametrize("case", MATRIX_CASES, ids=str)
def test_autocast_gives_dtype_and_values_of_torch(case: Case, record_property: Callable[[str, Any], None]) -> None:
    """clamp is in no list of autocast: it takes what comes, bfloat16 from a layer before it, and float32 beside that."""
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
                found = torch.autograd.grad(y.sum(), tensors_of(leaves), allow_unused=True)
            for ours, theirs in zip(found, outside, strict=True):
                assert_same_values(ours, theirs, f"{sample.name}, gradient")
    record_property("cell", ("eager", "autocast, mixed dtypes", f"{case.op.name}/{case.rule.name}", "equal"))


@pytest.mark.parametrize("case", MATRIX_CASES, ids=str)
def test_inference_mode(case: Case, record_property: Callable[[str, Any], None]) -> None:
    """Values equal, nothing recorded or saved; and what was made there stays usable as torch's own results do."""
    f, x, weight = matrix.problem(case)
    leaf = x.clone().requires_grad_()
    expected = f(x)
    with torch.inference_mode():
        assert saved_by(f, (leaf,)) == []
        made = f(leaf)
        assert_same_bits(made, expected, "values")
    if made.data_ptr() == leaf.data_ptr():  # to torch a view, made here, of a leaf made outside is as that leaf
        assert made.requires_grad == leaf.view_as(leaf).requires_grad
        made = made.detach()
    else:
        assert made.is_inference()
    assert not made.requires_grad
    assert_same_bits(f(made), f(made.clone()), "used later, not recording")
    assert_same_values(
        transforms.by_func_grad(f, made, weight), transforms.by_backward(f, made.clone(), weight), "grad"
    )
    record_property("cell", ("eager", "inference_mode", f"{case.op.name}/{case.rule.name}", "equal"))
