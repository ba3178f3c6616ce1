"""Double backward is the derivative of the branch taken, and never a NaN of the other one."""

from pseudograd.testing.contract import derivatives
from pseudograd.testing.contract.rows import Row

from .rows import every_row


@every_row
def test_double_backward_is_the_derivative_of_the_branch_taken(row: Row) -> None:
    derivatives.check_double_backward(row)


@every_row
def test_double_backward_is_finite(row: Row) -> None:
    derivatives.check_second_derivative_is_finite_everywhere(row)
