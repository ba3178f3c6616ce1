"""The same values by every transform, in every layout; forward mode where the rule is linear, and our error where it is not."""

import pytest
import torch

from pseudograd.rule import Sample
from pseudograd.testing.contract import derivatives, transforms, values
from pseudograd.testing.contract.cases import Case
from pseudograd.testing.measure.inputs import tensors_among, tensors_of
from pseudograd.testing.measure.transforms import REVERSE

from ..choices import folded
from . import matrix
from .cases import CASES, every_case, every_linear_case, every_other_case, every_rule_and_dtype


@folded
@every_case
def test_reverse_mode_gives_one_answer(case: Case, pytestconfig: pytest.Config) -> None:
    """By every way with --slow. Otherwise each case skips three quarters of the ways that the value matrix also takes."""
    turn = len(str(case)) % 4
    in_matrix = [] if pytestconfig.getoption("--slow") else [way for way in REVERSE if way in matrix.FIRST.values()]
    ways = [way for way in REVERSE if way not in in_matrix or in_matrix.index(way) % 4 == turn]
    transforms.check_reverse(case, case.samples()[-1], ways)


def check_forward_mode_of_all_inputs(case: Case, sample: Sample) -> None:
    """Forward mode and reverse mode agree if every tensor input has a tangent, so that the bounds contribute, too."""
    inputs = sample.build(torch.float64)
    tensors = tuple(torch.nan_to_num(value, 0.5, 4.0, -4.0).clamp(-1e100, 1e100) for value in tensors_of(inputs))
    f = tensors_among(case.function(), inputs)
    tangents = tuple(torch.linspace(-1, 2, t.numel(), dtype=t.dtype).reshape(t.shape) for t in tensors)
    y, forward = torch.func.jvp(f, tensors, tangents)[:2]
    u = torch.linspace(1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
    reverse = torch.func.vjp(f, *tensors)[1](u)
    pairs = zip(reverse, tangents, strict=True)
    assert torch.allclose((u * forward).sum(), sum((r * t).sum() for r, t in pairs), rtol=1e-12), sample.name


@folded
@every_linear_case
def test_linear_rules_add_up_and_have_forward_mode(case: Case) -> None:
    for sample in case.samples():
        values.check_additive(case, sample)
        check_forward_mode_of_all_inputs(case, sample)
    transforms.check_forward_mode(case, case.samples()[0])


@folded
@every_other_case
def test_other_rules_refuse_forward_mode(case: Case) -> None:
    values.check_not_additive(case)
    transforms.check_forward_mode_raises(case, case.samples()[0])


@folded
@every_rule_and_dtype
def test_every_layout_keeps_form_and_values(case: Case, dtype: torch.dtype) -> None:
    transforms.check_layouts(case, dtype)


@folded
@every_case
def test_double_backward_is_the_derivative_of_the_branch_taken_and_finite(case: Case) -> None:
    """No NaN comes from the branch of a `where` that was not taken."""
    derivatives.check_double_backward(case)
    derivatives.check_second_derivative_is_finite_everywhere(case)


def test_the_table_is_not_empty_and_has_both_kinds() -> None:
    kinds = {(case.op.name, case.is_linear) for case in CASES}
    assert {("clamp", True), ("clamp", False), ("relu", True), ("replace_grad", True)} <= kinds
