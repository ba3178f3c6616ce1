"""Every case of the table, as parameters for tests. New cases appear by themselves."""

from typing import Any

import pytest

import pseudograd  # noqa: F401  (fills the table)
from pseudograd.rule import OPS
from pseudograd.testing.contract.cases import Case, cases_of
from pseudograd.testing.measure.inputs import DTYPES

CASES = sorted((case for op in OPS.values() for case in cases_of(op)), key=str)
LINEAR_CASES = [case for case in CASES if case.is_linear]
OTHER_CASES = [case for case in CASES if not case.is_linear]
ONE_SIDED = ("lower_bound", "upper_bound")
BY_ANOTHER_NAME = ("relu", "relu6", "hardtanh")


def repeats_a_clamp(case: Case) -> bool:
    """The rules of clamp run again behind another name; left to --slow, but for a choice in which everything varies once.

    Of clamp every case runs. Of the others: every rule at the default edge, up and down; parameters other than the default there; every
    edge with every rule where a bound is missing or a grid lies between, and with two rules, one of each kind, where nothing does.
    """
    if case.op.name not in (*ONE_SIDED, *BY_ANOTHER_NAME, "fake_quantize"):
        return False
    is_usual = case.edge == case.op.default_edge
    if case.parameters:
        return not is_usual or case.maximize
    if case.op.name in BY_ANOTHER_NAME:
        return not is_usual and (case.maximize or case.rule.name not in ("zero", "inward"))
    return case.op.name == "fake_quantize" and not is_usual and case.maximize


def as_parameters(cases: list[Case]) -> list[Any]:
    return [pytest.param(case, id=str(case), marks=pytest.mark.slow if repeats_a_clamp(case) else ()) for case in cases]


every_case = pytest.mark.parametrize("case", as_parameters(CASES))
every_linear_case = pytest.mark.parametrize("case", as_parameters(LINEAR_CASES))
every_other_case = pytest.mark.parametrize("case", as_parameters(OTHER_CASES))
# Every case in two of the dtypes, every dtype with half of the cases; --slow adds the others.
every_case_and_dtype = pytest.mark.parametrize(
    ("case", "dtype"),
    [
        pytest.param(
            case,
            dtype,
            id=f"{case}-{str(dtype).removeprefix('torch.')}",
            marks=pytest.mark.slow if repeats_a_clamp(case) or (at + DTYPES.index(dtype)) % 2 else (),
        )
        for at, case in enumerate(CASES)
        for dtype in DTYPES
    ],
)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
