"""Cases that share a graph are judged as if each had its own: one that is wrong fails the test, by name, and no other is blamed."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from pseudograd.testing.contract.cases import Case

from . import batches, matrix, test_matrix

RIGHT, WRONG = [case for case in matrix.MATRIX_CASES if str(case) in ("clamp-zero-closed", "clamp-leaky-closed")][::-1]


@pytest.fixture(autouse=True)
def _forget_what_was_compiled() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.program
@pytest.mark.parametrize("name", ["plain", "func.grad"])  # the compiler's result alone, and together with the way
def test_one_rule_wrong_in_compiled_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = matrix._BY_NAME[str(WRONG)]

    def wrong(x: Tensor, *others: Any) -> Tensor:
        return right(x, *others) * (2 if torch.compiler.is_compiling() else 1)

    batches.check_all([RIGHT], partial(test_matrix.check_compiled, name, False))
    monkeypatch.setitem(matrix._BY_NAME, str(WRONG), wrong)
    with pytest.raises(AssertionError) as failed:
        batches.check_all([RIGHT, WRONG], partial(test_matrix.check_compiled, name, False))
    whole, *alone = str(failed.value).splitlines()
    assert whole.startswith(f"{RIGHT}..{WRONG} in one graph: AssertionError: {WRONG}, {name}: ")
    assert [line for line in alone if " alone: " in line] == [alone[0]]
    assert alone[0].startswith(f"{WRONG} alone: AssertionError: {WRONG}, {name}: 12 differ, first at (0, 0): ")


def test_a_failure_that_needs_the_others_is_kept() -> None:
    def check(cases: list[Case]) -> None:
        if len(cases) > 1:
            raise RuntimeError("too many")

    with pytest.raises(AssertionError) as failed:
        batches.check_all([RIGHT, WRONG], check)
    assert str(failed.value) == f"{RIGHT}..{WRONG} in one graph: RuntimeError: too many\neach of them passes alone"


def test_every_case_is_in_one_graph_by_every_way() -> None:
    """Nothing is lost at the end of a dozen."""
    cells = [
        (str(case), name, dynamic)
        for parameter in test_matrix.compiled_cells(matrix.MATRIX_CASES, test_matrix.COMPILED)
        for cases, name, dynamic in [parameter.values]
        for case in cases
    ]
    expected = {
        (str(case), name, dynamic)
        for case in matrix.MATRIX_CASES
        for name in test_matrix.COMPILED
        for dynamic in (False, True)
        if case.is_linear or name not in test_matrix.FORWARD_MODE
    }
    assert len(cells) == len(expected)
    assert set(cells) == expected
