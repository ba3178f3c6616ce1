"""The value matrix, cell by cell. `--matrix FILE` writes the outcome of a run as a table for the docs; `--slow` compiles every row."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pseudograd.testing import transforms
from pseudograd.testing.compare import assert_same_values
from pseudograd.testing.rows import Row

from . import matrix
from .matrix import MATRIX_ROWS, Way

EAGER = {**matrix.FIRST, **matrix.SECOND, **matrix.FORWARD, **matrix.FORWARD_SECOND}
COMPILED = {
    **matrix.COMPILED_FIRST,
    **matrix.COMPILED_SECOND,
    **matrix.COMPILED_FORWARD,
    **matrix.COMPILED_FORWARD_SECOND,
}
FORWARD_MODE = {*matrix.FORWARD, *matrix.FORWARD_SECOND}
SECOND_ORDER = {*matrix.SECOND, *matrix.FORWARD_SECOND}
USUAL = {"clamp-zero-closed", "clamp-inward-closed", "replace_grad-replace"}  # compiled without --slow


@pytest.fixture(autouse=True)
def _forget_what_was_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _check(row: Row, name: str, way: Way, record: Callable[[str, Any], None], place: str) -> None:
    f, x, weight = matrix.problem(row)
    if name in FORWARD_MODE and not row.is_linear:
        with pytest.raises(Exception, match="forward mode must not be used"):
            way(f, x, weight)
        outcome = "our error"
    else:
        plain = matrix.second_by_double_backward if name in SECOND_ORDER else transforms.by_backward
        assert_same_values(way(f, x, weight), plain(f, x, weight), name, ulps=row.ulps, x=x)
        outcome = "equal"
    record("cell", (place, name, f"{row.op.name}/{row.rule.name}", outcome))


@pytest.mark.parametrize("name", EAGER)
@pytest.mark.parametrize("row", MATRIX_ROWS, ids=str)
def test_eager(row: Row, name: str, record_property: Callable[[str, Any], None]) -> None:
    _check(row, name, EAGER[name], record_property, "eager")


def _compiled_rows() -> list[Any]:
    slow = pytest.mark.slow
    return [pytest.param(row, id=str(row), marks=() if str(row) in USUAL else slow) for row in MATRIX_ROWS]


@pytest.mark.parametrize(
    "dynamic", [pytest.param(False, id="static"), pytest.param(True, id="dynamic", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", COMPILED)
@pytest.mark.parametrize("row", _compiled_rows())
def test_compiled(row: Row, name: str, dynamic: bool, record_property: Callable[[str, Any], None]) -> None:
    if name in FORWARD_MODE and not row.is_linear:
        pytest.skip("forward mode of a rule that reads grad: our error, shown in eager")

    def compiled_way(f: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        def options(g: Callable[..., Any]) -> Callable[..., Any]:
            return torch.compile(g, backend="aot_eager", fullgraph=True, dynamic=dynamic)

        if name == "plain":
            return transforms.by_backward(options(f), x, weight)
        if name == "vmap, then backward":
            leaf = x.clone().requires_grad_()
            options(torch.func.vmap(lambda one: f(one)))(leaf).backward(weight)
            assert leaf.grad is not None
            return leaf.grad
        return options(lambda x, weight: COMPILED[name](f, x, weight))(x, weight)

    place = f"compiled, {'dynamic' if dynamic else 'static'}"
    _check(row, name, compiled_way, record_property, place)


@pytest.mark.parametrize("name", ["plain", "func.grad", "vmap(grad)"])
@pytest.mark.parametrize("row", [row for row in MATRIX_ROWS if str(row) in USUAL], ids=str)
@pytest.mark.slow
def test_inductor(row: Row, name: str, record_property: Callable[[str, Any], None]) -> None:
    """The compiler that writes code; needs a C++ compiler."""

    def way(f: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if name == "plain":
            return transforms.by_backward(torch.compile(f, fullgraph=True), x, weight)
        return torch.compile(lambda x, weight: COMPILED[name](f, x, weight), fullgraph=True)(x, weight)

    _check(row, name, way, record_property, "inductor")


LIMIT = """
import sys, torch
from tests.contract.matrix import LIMITS_OF_TORCH
x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3)
way = torch.compile(lambda x: LIMITS_OF_TORCH[sys.argv[1]](torch.sin, x, x), backend="aot_eager", fullgraph=True)
try:
    way(x)
except Exception as error:
    print("refused", type(error).__name__)
"""


@pytest.mark.parametrize("name", matrix.LIMITS_OF_TORCH)
def test_a_limit_of_torch_is_still_one(name: str, record_property: Callable[[str, Any], None]) -> None:
    """Shown with torch.sin: when this fails, the cell belongs into the matrix. In a process of its own: it leaves functorch broken."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-W", "ignore", "-c", LIMIT, name]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("refused"), done.stdout
    record_property("cell", ("compiled, static", name, "torch.sin", "torch's limit"))
