"""Every row of the table, as parameters for tests. New rows appear by themselves."""

import pytest

import pseudograd  # noqa: F401  (fills the table)
from pseudograd.rule import OPS
from pseudograd.testing.rows import DTYPES, rows_of

ROWS = sorted((row for op in OPS.values() for row in rows_of(op)), key=str)
LINEAR_ROWS = [row for row in ROWS if row.is_linear]
OTHER_ROWS = [row for row in ROWS if not row.is_linear]

every_row = pytest.mark.parametrize("row", ROWS, ids=str)
every_linear_row = pytest.mark.parametrize("row", LINEAR_ROWS, ids=str)
every_other_row = pytest.mark.parametrize("row", OTHER_ROWS, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
