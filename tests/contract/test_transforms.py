"""The same values by every transform, in every layout; forward mode where the rule is linear, and our error where it is not."""

import itertools
from typing import Any

import pytest
import torch

import pseudograd as pg
from pseudograd.testing.contract import transforms, values
from pseudograd.testing.contract.rows import Row
from pseudograd.testing.measure.inputs import DTYPES

from .rows import ROWS, as_parameters, every_linear_row, every_other_row, every_row


@every_row
def test_reverse_mode_gives_one_answer(row: Row) -> None:
    for sample in row.samples()[-2:]:
        transforms.check_reverse(row, sample)


@every_linear_row
def test_linear_rules_add_up_and_have_forward_mode(row: Row) -> None:
    for sample in row.samples():
        values.check_additive(row, sample)
        transforms.check_forward_mode_of_all_inputs(row, sample)
    transforms.check_forward_mode(row, row.samples()[0])


@every_other_row
def test_other_rules_refuse_forward_mode(row: Row) -> None:
    values.check_not_additive(row)
    transforms.check_forward_mode_raises(row, row.samples()[0])


def _layout_cells() -> list[Any]:
    """Every dtype at the default edge, going down; elsewhere float32 shows the layouts, and the other dtypes are for --slow."""
    cells = itertools.product(as_parameters(ROWS), DTYPES)
    return [
        pytest.param(
            *row.values,
            dtype,
            id=f"{row.id}-{str(dtype).removeprefix('torch.')}",
            marks=row.marks if _is_usual(*row.values) or dtype is torch.float32 else pytest.mark.slow,
        )
        for row, dtype in cells
    ]


def _is_usual(row: Row) -> bool:
    return row.edge == row.op.default_edge and not row.maximize and not row.parameters


@pytest.mark.parametrize(("row", "dtype"), _layout_cells())
def test_every_layout_keeps_form_and_values(row: Row, dtype: torch.dtype) -> None:
    transforms.check_form(row, dtype)


def test_the_table_is_not_empty_and_has_both_kinds() -> None:
    kinds = {(row.op.name, row.is_linear) for row in ROWS}
    assert {("clamp", True), ("clamp", False), ("relu", True), ("replace_grad", True)} <= kinds


def test_second_derivatives_by_functorch() -> None:
    """Forward over reverse where the rule is linear, reverse over reverse for every rule."""
    x = torch.tensor([-2.0, -1.0, -0.5, 0.0, 1.0, 2.0])
    weight = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])

    def of_squares(rule: str) -> object:
        return lambda x: pg.clamp(x, -1, 1, rule=rule).square().sum()

    assert torch.func.hessian(of_squares("zero"))(x).diagonal().tolist() == [0, 2, 2, 2, 2, 0]
    for rule in ("zero", "inward", "sign", "leaky", "elastic", "inverting"):
        found = torch.func.jacrev(torch.func.grad(of_squares(rule)))(x)
        assert torch.equal(found, torch.autograd.functional.hessian(of_squares(rule), x)), rule

    def first(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda x: (pg.clamp(x, -1, 1, rule="elastic") * weight).sum())(x).sum()

    assert torch.func.grad(first)(x).tolist() == [0.5, 0, 0, 0, 0, 0.5]
