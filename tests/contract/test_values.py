"""The values are torch's, bit for bit, and the gradient is that of the reference, for every pair of value and grad."""

import torch

from pseudograd.testing.contract import sides, values
from pseudograd.testing.contract.cases import Case

from ..choices import folded
from .cases import every_case, every_case_and_dtype, every_rule_and_dtype


@folded
@every_rule_and_dtype
def test_forward_is_torch_bit_for_bit(case: Case, dtype: torch.dtype) -> None:
    values.check_forward(case, dtype)


@folded
@every_case_and_dtype
def test_gradient_is_the_reference_on_special_values(case: Case, dtype: torch.dtype) -> None:
    values.check_gradient(case, dtype)


@folded
@every_rule_and_dtype
def test_gradient_is_the_reference_on_random_values(case: Case, dtype: torch.dtype) -> None:
    values.check_random(case, dtype)


@folded
@every_case_and_dtype
def test_the_row_says_what_passes_where(case: Case, dtype: torch.dtype) -> None:
    sides.check_sides(case, dtype)


@folded
@every_rule_and_dtype
def test_broadcast_inputs_get_the_sum(case: Case, dtype: torch.dtype) -> None:
    values.check_reduced(case, dtype)


@folded
@every_case
def test_saves_what_it_says_and_no_more(case: Case) -> None:
    values.check_saved(case)
