"""Double backward is the derivative of the branch taken, and never a NaN of the other one."""

from pseudograd.testing.contract import derivatives
from pseudograd.testing.contract.cases import Case

from ..choices import folded
from .cases import every_case


@folded
@every_case
def test_double_backward_is_the_derivative_of_the_branch_taken(case: Case) -> None:
    derivatives.check_double_backward(case)


@folded
@every_case
def test_double_backward_is_finite(case: Case) -> None:
    derivatives.check_second_derivative_is_finite_everywhere(case)
