"""Every row of the table, as parameters for tests. New rows appear by themselves."""

from typing import Any

import pytest

import pseudograd  # noqa: F401  (fills the table)
from pseudograd.rule import OPS
from pseudograd.testing.contract.rows import Row, rows_of
from pseudograd.testing.measure.inputs import DTYPES

ROWS = sorted((row for op in OPS.values() for row in rows_of(op)), key=str)
LINEAR_ROWS = [row for row in ROWS if row.is_linear]
OTHER_ROWS = [row for row in ROWS if not row.is_linear]
ONE_SIDED = ("lower_bound", "upper_bound")
BY_ANOTHER_NAME = ("relu", "relu6", "hardtanh")


def repeats_a_clamp(row: Row) -> bool:
    """The rules of clamp run again behind another name; left to --slow, but for a choice in which everything varies once.

    Of clamp every row runs. Of the others: every rule at the default edge, up and down; parameters other than the default there; every
    edge with every rule where a bound is missing or a grid lies between, and with two rules, one of each kind, where nothing does.
    """
    if row.op.name not in (*ONE_SIDED, *BY_ANOTHER_NAME, "fake_quantize"):
        return False
    is_usual = row.edge == row.op.default_edge
    if row.parameters:
        return not is_usual or row.maximize
    if row.op.name in BY_ANOTHER_NAME:
        return not is_usual and (row.maximize or row.rule.name not in ("zero", "inward"))
    return row.op.name == "fake_quantize" and not is_usual and row.maximize


def as_parameters(rows: list[Row]) -> list[Any]:
    return [pytest.param(row, id=str(row), marks=pytest.mark.slow if repeats_a_clamp(row) else ()) for row in rows]


every_row = pytest.mark.parametrize("row", as_parameters(ROWS))
every_linear_row = pytest.mark.parametrize("row", as_parameters(LINEAR_ROWS))
every_other_row = pytest.mark.parametrize("row", as_parameters(OTHER_ROWS))
# Every row in two of the dtypes, every dtype with half of the rows; --slow adds the others.
every_row_and_dtype = pytest.mark.parametrize(
    ("row", "dtype"),
    [
        pytest.param(
            row,
            dtype,
            id=f"{row}-{str(dtype).removeprefix('torch.')}",
            marks=pytest.mark.slow if repeats_a_clamp(row) or (at + DTYPES.index(dtype)) % 2 else (),
        )
        for at, row in enumerate(ROWS)
        for dtype in DTYPES
    ],
)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
