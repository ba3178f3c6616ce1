"""Forward is torch's, bit for bit; the gradient is the reference's, on every pair of value and grad."""

import torch

from pseudograd.testing.contract import values
from pseudograd.testing.contract.rows import Row

from .rows import every_row, every_row_and_dtype


@every_row_and_dtype
def test_forward_is_torch_bit_for_bit(row: Row, dtype: torch.dtype) -> None:
    values.check_forward(row, dtype)


@every_row_and_dtype
def test_gradient_is_the_reference_on_special_values(row: Row, dtype: torch.dtype) -> None:
    values.check_gradient(row, dtype)


@every_row_and_dtype
def test_gradient_is_the_reference_on_random_values(row: Row, dtype: torch.dtype) -> None:
    values.check_random(row, dtype)


@every_row_and_dtype
def test_broadcast_inputs_get_the_sum(row: Row, dtype: torch.dtype) -> None:
    values.check_reduced(row, dtype)


@every_row
def test_saves_what_it_says_and_no_more(row: Row) -> None:
    values.check_saved(row)
