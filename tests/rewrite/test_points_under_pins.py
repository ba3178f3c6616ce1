"""Every point of the kink table under an era's pin, eager and compiled: on each torch what the last version of that era gives.

Run on every torch this is the promise that a pinned program trains alike on all of them. What a pin leaves stands in `_left`, each with
its reason; nothing else may differ, and nothing that stands there may have come to agree.
"""

import functools

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
MARGINS = {"multi_margin_loss@margin", "multilabel_margin_loss@margin"}


def _left(era: str, is_compiled: bool) -> set[str]:
    """Points at which the pin to `era` does not give what the last version of it gives.

    2.14 takes ties of a quantile from std::nth_element, whose order is that of the C++ library which torch was built with; the compiled
    quantile sorts, on every torch, as the eager one did until 2.13. Until 2.13 the compiler made a clamp_min of a kernel that has none,
    below every mode; its gradient passes at the bound. Until 2.9 atan2 gave NaN.
    """
    quantiles = QUANTILES if era == OPEN_ERA and (is_compiled or installed_era() == CLOSED_ERA) else set()
    margins = MARGINS if is_compiled and installed_version() < (2, 14) else set()
    return quantiles | margins | ({"atan2@0,0"} if installed_version() < (2, 10) else set())


@functools.cache
def own_outcomes() -> dict[str, Outcome | None]:
    """The outcomes of the installed torch without a pin."""
    return {id: measure(point, EAGER) for id, point in POINTS.items()}


def _wanted(era: str) -> dict[str, Outcome]:
    """The points at which the last version of the era and the installed torch have a gradient."""
    outcomes = {}
    for id, here in own_outcomes().items():
        wanted = POINTS[id].outcome("torch", LAST[era])
        if wanted is not None and wanted.gradient is not None and here is not None and here.gradient is not None:
            outcomes[id] = wanted
    return outcomes


def _differs_between_eras(point: Point) -> bool:
    first, second = (point.outcome("torch", version) for version in LAST.values())
    return first is not None and second is not None and not first.same_as(second)


def _compiles(point: Point) -> bool:
    """Does the installed torch compile it without us? 2.8 refuses some that look at their values."""
    outcome = point.outcome("torch", ".".join(map(str, installed_version())), "aot_eager")
    return outcome is not None and outcome.gradient is not None


def _unlike(outcomes: dict[str, Outcome | None], wanted: dict[str, Outcome]) -> set[str]:
    assert outcomes.keys() == wanted.keys()
    return {id for id, outcome in outcomes.items() if outcome is None or not outcome.has_same_effect_as(wanted[id])}


@pytest.mark.parametrize("era", ERAS)
def test_every_point_in_eager_mode(era: str) -> None:
    wanted = _wanted(era)
    assert len(wanted) > 530
    with pin_edge(era):
        outcomes = {id: measure(POINTS[id], EAGER) for id in wanted}
    assert _unlike(outcomes, wanted) == _left(era, is_compiled=False)
    own = _unlike({id: own_outcomes()[id] for id in wanted}, wanted)
    assert era == installed_era() or len(own) > 45, "without the pin the other era differs"


@pytest.mark.program
@pytest.mark.parametrize("era", ERAS)
def test_the_points_where_eras_differ_compiled(era: str) -> None:
    wanted = {id: outcome for id, outcome in _wanted(era).items() if _differs_between_eras(POINTS[id])}
    wanted = {id: outcome for id, outcome in wanted.items() if _compiles(POINTS[id])}
    assert len(wanted) > 45
    with pin_edge(era):
        outcomes = compile_points([POINTS[id] for id in wanted], "aot_eager")
    assert _unlike(dict(outcomes), wanted) == _left(era, is_compiled=True) & wanted.keys()
