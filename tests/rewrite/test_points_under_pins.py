"""Every point of the kink table under an era's pin, eager and compiled: on each torch what the last version of that era gives.

Run on every torch this is the promise that a pinned program trains alike on all of them. What a pin leaves stands in EAGER_ONES and
COMPILED_ONES, each with its reason; nothing else may differ, and nothing that stands there may have come to agree.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pseudograd import pin_edge
from pseudograd.torch_table.eras import CLOSED_ERA, ERAS, OPEN_ERA, installed_era, installed_version
from pseudograd_kinks import table
from pseudograd_kinks.compiled import compile_points
from pseudograd_kinks.measure import EAGER, measure
from pseudograd_kinks.outcome import Outcome
from pseudograd_kinks.table import Point

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of some losses
LAST = dict(zip(ERAS, ("2.13", "2.15"), strict=True))
POINTS = table.load().points
QUANTILES = {"quantile(0.5)@even tie", "quantile(0.25)@tie", "quantile(many)@ties"}


class Left(NamedTuple):
    """Points at which the pin to `era` does not give what the last version of it gives."""

    era: str
    points: set[str]
    why: str
    holds: bool


EAGER_ONES = (
    Left(
        OPEN_ERA,
        QUANTILES,
        "2.14 takes ties from std::nth_element, whose order is that of the C++ library which torch was built with",
        installed_era() == CLOSED_ERA,
    ),
)
COMPILED_ONES = (
    Left(
        OPEN_ERA,
        QUANTILES,
        "the compiled quantile sorts, on every torch, as the eager one did until 2.13",
        True,
    ),
    *(
        Left(
            era,
            {"multi_margin_loss@margin", "multilabel_margin_loss@margin"},
            "until 2.13 the compiler made a clamp_min of a kernel that has none, below every mode; its gradient passes at the bound",
            installed_version() < (2, 14),
        )
        for era in ERAS
    ),
)
INDUCTOR_ONES = (
    *COMPILED_ONES,
    *(
        Left(
            era,
            {"soft_margin_loss@-inf", "soft_margin_loss@-200", "nll_loss(weight)@weight=0", "max_pool1d(2)@nan"},
            "Inductor has other formulas than eager mode, and no pin is about these functions",
            True,
        )
        for era in ERAS
    ),
)


def _left(lefts: tuple[Left, ...], era: str, points: list[str]) -> set[str]:
    return {id for left in lefts if left.holds and left.era == era for id in left.points if id in points}


def _wanted(era: str) -> dict[str, Outcome]:
    """Where the last version of the era has a gradient, and the installed torch, too."""
    found = {}
    for id, point in POINTS.items():
        wanted, here = point.outcome("torch", LAST[era]), measure(point, EAGER)
        if wanted is not None and wanted.gradient is not None and here is not None and here.gradient is not None:
            found[id] = wanted
    return found


def _differs_between_eras(point: Point) -> bool:
    one, other = (point.outcome("torch", version) for version in LAST.values())
    return one is not None and other is not None and not one.same_as(other)


def _compiles(point: Point, backend: str) -> bool:
    """Does the installed torch compile it without us? 2.8 refuses some that look at their values."""
    outcome = point.outcome("torch", ".".join(map(str, installed_version())), backend)
    return outcome is not None and outcome.gradient is not None


def _unlike(found: dict[str, Outcome], wanted: dict[str, Outcome]) -> set[str]:
    assert found.keys() == wanted.keys()
    return {id for id in wanted if not found[id].has_same_effect_as(wanted[id])}


@pytest.mark.parametrize("era", ERAS)
def test_every_point_in_eager_mode(era: str) -> None:
    wanted = _wanted(era)
    assert len(wanted) > 530
    with pin_edge(era):
        found = {id: measure(POINTS[id], EAGER) for id in wanted}
    assert _unlike(found, wanted) == _left(EAGER_ONES, era, [*wanted])  # type: ignore[arg-type]


_OF_EVERY_RUN = [("where eras differ", next(era for era in ERAS if era != installed_era()))]
_OTHERS = [("where eras differ", installed_era()), *(("all", era) for era in ERAS)]


@pytest.mark.program
@pytest.mark.parametrize(
    ("points", "era"), [*_OF_EVERY_RUN, *(pytest.param(*one, marks=pytest.mark.slow) for one in _OTHERS)]
)
def test_every_point_compiled(points: str, era: str) -> None:
    wanted = _wanted(era)
    if points != "all":
        wanted = {id: one for id, one in wanted.items() if _differs_between_eras(POINTS[id])}
    wanted = {id: one for id, one in wanted.items() if _compiles(POINTS[id], "aot_eager")}
    assert len(wanted) > (510 if points == "all" else 45)
    with pin_edge(era):
        found = compile_points([POINTS[id] for id in wanted], "aot_eager")
    assert _unlike(found, wanted) == _left(COMPILED_ONES, era, [*wanted])


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
def test_points_where_eras_differ_by_inductor(era: str) -> None:
    wanted = {id: one for id, one in _wanted(era).items() if _differs_between_eras(POINTS[id])}
    wanted = {id: one for id, one in wanted.items() if _compiles(POINTS[id], "inductor")}
    with pin_edge(era):
        found = compile_points([POINTS[id] for id in wanted], "inductor")
    assert _unlike(found, wanted) == _left(INDUCTOR_ONES, era, [*wanted])


def test_without_the_pin_the_other_era_differs() -> None:
    """So that the tests above have something to find."""
    other = next(era for era in ERAS if era != installed_era())
    wanted = {id: one for id, one in _wanted(other).items() if _differs_between_eras(POINTS[id])}
    found = {id: measure(POINTS[id], EAGER) for id in wanted}
    assert len(_unlike(found, wanted)) > 45  # type: ignore[arg-type]
