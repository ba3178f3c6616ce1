"""Every case of the table, as parameters for tests. New cases appear by themselves, and the choice of every run is made from the table."""

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import pytest

import pseudograd  # noqa: F401  (fills the table)
from pseudograd.rule import OPS, Sample
from pseudograd.testing.contract.cases import Case, cases_of
from pseudograd.testing.measure.inputs import DTYPES

from ..choices import as_parameters, pairs

CASES = sorted((case for op in OPS.values() for case in cases_of(op)), key=str)
LINEAR_CASES = [case for case in CASES if case.is_linear]
OTHER_CASES = [case for case in CASES if not case.is_linear]
_OF_ONE_SET = {
    op.rule_set: [other.name for other in OPS.values() if other.rule_set == op.rule_set] for op in OPS.values()
}
_FIRST_OF_SEVERAL = {names[0] for names in _OF_ONE_SET.values() if len(names) > 1}


def facts_of(case: Case) -> set[Hashable]:
    """The facts that a case tests: a choice that shows all of it takes every path through a rule.

    Every rule at every edge, up and down; of the first of several ops with one set of rules (clamp; the others are its other names) every
    rule at every edge; and of op, rule, edge, direction and whether parameters are given, each value beside each value of the others.
    """
    op, rule = case.op.name, case.rule.name
    shown = {*pairs(op, rule, case.edge, case.maximize, bool(case.parameters)), (rule, case.edge, case.maximize)}
    return shown | {(op, rule, case.edge)} if op in _FIRST_OF_SEVERAL else shown


def cells_of(cases: Iterable[Case], *axes: Iterable[Any]) -> list[Any]:
    """Cases with each value of some axes, such as dtypes.

    Every run has what the cases show, and each value of an axis with each op, rule, edge, direction and value of another axis.
    """
    return as_parameters(list(itertools.product(cases, *axes)), _facts_of_cell)


def _facts_of_cell(cell: tuple[Any, ...]) -> set[Hashable]:
    case, values = cell[0], list(enumerate(map(str, cell[1:])))
    op, rule = case.op.name, case.rule.name
    beside: list[Hashable] = [("op", op), ("rule", rule), ("edge", case.edge), ("ascent", case.maximize)]
    return {*facts_of(case), *itertools.combinations(values, 2), *itertools.product(values, beside)}


class ThinnedCase(Case):
    """A case with every third sample, from number `turn` on. The op stays what it is: calls are remembered by its name."""

    turn = 0

    def samples(self) -> list[Sample]:
        return super().samples()[self.turn % 3 :: 3]


def a_third_of_the_samples(case: Case, turn: int) -> Case:
    thinned = ThinnedCase(*case)
    thinned.turn = turn
    return thinned


def with_a_third_of_the_samples(cells: Iterable[Any]) -> Iterator[Any]:
    """Cells of an op with many samples take turns: each run has every sample with every rule. `--slow` has all in each cell."""
    turns = defaultdict[Hashable, Iterator[int]](itertools.count)
    for cell in cells:
        case, *others = cell.values
        if cell.marks or len(case.samples()) <= 3:
            yield cell
            continue
        thinned = a_third_of_the_samples(case, next(turns[case.op.name, case.rule.name]))
        yield pytest.param(thinned, *others, id=cell.id)
        yield pytest.param(*cell.values, id=f"{cell.id}, all samples", marks=pytest.mark.slow)


every_case = pytest.mark.parametrize("case", [*with_a_third_of_the_samples(cells_of(CASES))])
every_linear_case = pytest.mark.parametrize("case", [*with_a_third_of_the_samples(cells_of(LINEAR_CASES))])
every_other_case = pytest.mark.parametrize("case", cells_of(OTHER_CASES))
every_case_and_dtype = pytest.mark.parametrize(
    ("case", "dtype"), [*with_a_third_of_the_samples(cells_of(CASES, DTYPES))]
)


def _facts_of_a_rule(cell: tuple[Any, ...]) -> set[Hashable]:
    """Each rule of each op; each rule, edge and op with each dtype."""
    case, dtype = cell
    op, rule = case.op.name, case.rule.name
    return {(op, rule), (rule, case.edge), (rule, dtype), (op, dtype), (case.edge, dtype), (rule, case.maximize)}


# For tests that do not depend on the combination of rule and edge.
every_rule_and_dtype = pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *with_a_third_of_the_samples(
            as_parameters([*itertools.product(CASES, DTYPES)], _facts_of_a_rule),
        )
    ],
)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
