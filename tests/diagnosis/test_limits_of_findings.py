"""Both sides of each number that decides whether something is a finding, and every text that depends on a kind of op."""

import math
import sys
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from pseudograd.diagnosis import processes
from pseudograd.diagnosis.count.norms import Facts
from pseudograd.diagnosis.judge import advice
from pseudograd.diagnosis.judge.dead_units import are_chosen_out, are_dead, calm_lines, group_dead
from pseudograd.diagnosis.judge.findings import convention, edge, nonfinite, stalled, vanish
from pseudograd.diagnosis.judge.norms import Fall, find_fall
from pseudograd.diagnosis.judge.starving import _agree, _siblings
from pseudograd.diagnosis.judge.statements import find_unread, name_of_optimiser
from pseudograd.diagnosis.records import Copied, Finding, Partly, Site, Starved, Structural
from pseudograd.listen import frames
from pseudograd.torch_table.eras import ERAS, installed_era

from .checks import define


def site(**fields: Any) -> Site:
    counts = {"calls": 1, "elements": 1024, "arrived": 1000, "cut": 0, "cut_magnitude": 0.0, "nonfinite": 0}
    texts = {"op": "relu", "where": "a.py:1", "user_where": "a.py:1", "expression": "f(x)", "module": None}
    return Site(**{**texts, **counts, "family": "relu", **fields})


# --- sites --------------------------------------------------------------------------------------------------------------


def test_the_shares_of_a_site_and_the_entries_that_are_nan() -> None:
    full = site(cut=500, recoverable=125, magnitude=8.0, cut_magnitude=2.0, at_bound=100, below=200, above=50)
    shares = full.cut_share, full.cut_magnitude_share, full.recoverable_share, full.at_bound_share, full.cut_at_nan
    assert shares == (0.5, 0.25, 0.25, 0.1, 150)
    assert replace(full, at_bound=400).cut_at_nan == 0
    for empty in (site(arrived=0), site(cut=0, magnitude=math.inf), replace(full, cut=0, below=None, magnitude=0.0)):
        assert (empty.cut_share, empty.cut_magnitude_share, empty.recoverable_share, empty.cut_at_nan) == (0, 0, 0, 0)
    assert (replace(full, recoverable=None).recoverable_share, replace(full, at_bound=None).cut_at_nan) == (0, 250)
    assert (replace(full, at_bound=None).at_bound_share, partly(units=0).share) == (0, 0)
    assert replace(full, above=None).cut_at_nan == site(arrived=0, at_bound=3).at_bound_share == 0


# The fields that only this process reads, and those that are not empty unless said.
HIDDEN: dict[type, tuple[set[str], dict[str, object]]] = {
    Site: (
        {"order", "upstream", "source", "is_own", "own_remedy", "is_second_order", "direction"},
        {"direction": "descent"},
    ),
    Structural: ({"upstream", "source", "is_final_cut", "is_recomputed", "compared_at"}, {"is_final_cut": True}),
    Starved: ({"is_unstepped", "is_in_all", "reason"}, {"is_in_all": True}),
    Partly: ({"drops", "own_choice"}, {}),
    Copied: (set(), {}),
    Finding: ({"is_muted", "other_pin"}, {"share": 1.0}),
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_what_a_record_shows_and_what_it_holds_unless_said(kind: Any) -> None:
    hidden = {field.name for field in fields(kind) if not field.repr}
    facts = {field.name for field in fields(Facts)} if kind is Site else set()
    truthy = {field.name: field.default for field in fields(kind) if field.default and field.default is not MISSING}
    assert (hidden - facts, truthy) == HIDDEN[kind]
    assert facts <= hidden


CALM = [
    ({}, False),
    ({"is_subtracted": True}, True),
    ({"reuses_input": True}, True),
    ({"reuses_input": True, "recoverable": 0}, True),
    ({"reuses_input": True, "recoverable": 1}, False),
    *(({name: True}, False) for name in ("has_only_lower_bound", "has_guards_alone", "is_floor_of_loss")),
    *(
        ({name: True, "recoverable": 0}, True)
        for name in ("has_only_lower_bound", "has_guards_alone", "is_floor_of_loss")
    ),
    ({"recoverable": 0}, False),
]
GUARDING = [
    *(({name: True}, True) for name in ("has_guard_bound", "is_before_pole", "is_before_exp", "has_no_upper_bound")),
    ({"has_no_upper_bound": True, "has_only_lower_bound": True}, False),
    ({"has_only_lower_bound": True}, False),
]
INFINITE = [
    ({"nonfinite": 1, "cut": 1, "cut_magnitude": math.inf}, True),
    ({"nonfinite": 0, "cut": 1, "cut_magnitude": math.inf}, False),
    ({"nonfinite": 1, "cut": 0, "cut_magnitude": math.nan}, False),
    ({"nonfinite": 1, "cut": 1, "cut_magnitude": 2.0}, False),
]
PROPERTIES = [("is_calm_clip", *row) for row in CALM] + [("may_guard", *row) for row in GUARDING]
PROPERTIES += [("is_guard", *row) for row in INFINITE]


@pytest.mark.parametrize(("name", "fields", "answer"), PROPERTIES)
def test_what_an_op_is_for(name: str, fields: dict[str, Any], answer: bool) -> None:
    assert getattr(site(**fields), name) is answer


MEANT = "None, if the clip is meant: "
INTENT = "None, if {}. Else compare a training with rule='inward'{}."
PASSED = ", which passes 100 % of what is cut"
OVERRIDE = "with pseudograd.override(clamp=lambda site: 'inward' if site.is_at('a.py:1') else None): ...  # around the training step"
ASCENDING = "pseudograd.clamp(..., maximize=True)"
OF_CLAMPS: list[tuple[dict[str, Any], str]] = [
    ({}, f"{OVERRIDE}: it passes 100 % of what is cut{advice._UNLESS_MEANT}"),
    ({"recoverable": 25}, f"{OVERRIDE}: it passes 5.0 % of what is cut{advice._UNLESS_MEANT}"),
    (
        {"recoverable": 24},
        f"{MEANT}95.2 % of what is cut would only lead further outside, as with free bits, or in the clipped loss of ",
    ),
    ({"recoverable": None}, INTENT.format(advice._UNSEEN, "")),
    ({"has_guard_bound": True}, INTENT.format(advice._GUARDS, PASSED)),
    ({"has_guard_bound": True, "direction": "ascent"}, INTENT.format(advice._GUARDS, f", maximize=True{PASSED}")),
    ({"is_ceiling": True, "is_addend": True, "above": 1, "below": 0}, INTENT.format(advice._LEAVES_OUT, PASSED)),
    ({"is_ceiling": True, "is_addend": True, "above": 1, "below": 1}, OVERRIDE),
    ({"is_ceiling": True, "is_addend": True, "above": 0, "below": 0}, OVERRIDE),
    ({"is_ceiling": True, "is_addend": False, "above": 1, "below": 0}, OVERRIDE),
    ({"is_window": True, "cut": 998, "recoverable": 998}, INTENT.format(advice._ZERO_IS_MEANT, PASSED)),
    ({"is_activation": True}, INTENT.format(advice._ZERO_IS_MEANT, PASSED)),
    ({"has_only_lower_bound": True}, INTENT.format(advice._ZERO_IS_MEANT, PASSED)),
    ({"is_window": True, "cut": 999, "recoverable": 999}, OVERRIDE),
    ({"steep_op": "exp"}, f"{MEANT}outside, the slope of exp grows without end"),
    ({"where": "?"}, advice._UNKNOWN_LINE),
    ({"where": "?", "recoverable": None}, advice._UNKNOWN_LINE),
    (
        {"direction": "ascent"},
        f"{ASCENDING}  # in place of this call, as its optimizer ascends: it passes",
    ),
    (
        {"direction": "unknown"},
        f"If the program adds this gradient to x, {ASCENDING} in place of this call. If it subtracts it: {OVERRIDE}",
    ),
    (
        {"within": "f"},
        "Write this call out in torch's own functions: override does not reach the clamp inside f, which torch",
    ),
]


@pytest.mark.parametrize(("fields", "start"), OF_CLAMPS)
def test_the_advice_at_a_clamp(fields: dict[str, Any], start: str) -> None:
    clamp = site(**{"op": "clamp", "family": "clamp", "cut": 500, "recoverable": 500, **fields})
    assert advice.advise(clamp, SimpleNamespace(values=[], sites=[])).startswith(start)


OTHERS = [
    ({"family": "round"}, "with pseudograd.override(round=lambda site: 'identity'"),
    ({"family": "relu", "direction": "ascent"}, "with pseudograd.override(relu=lambda site: 'leaky'"),
    ({"family": None, "op": "mul"}, "Print the other factor"),
    ({"family": None, "op": "toCopy"}, "Scale the loss, as torch.amp.GradScaler does"),
    ({"family": None, "own_remedy": "another"}, "another"),
    ({"family": None}, "Look at the values that enter here: print their range."),
]


@pytest.mark.parametrize(("fields", "start"), OTHERS)
def test_the_advice_at_another_op(fields: dict[str, Any], start: str) -> None:
    assert advice.advise(site(**fields), SimpleNamespace()).startswith(start)


def test_a_pin_stays_away_from_a_guard_that_it_would_open() -> None:
    era, newer = installed_era(), next(name for name in ERAS if name != installed_era())
    pin = f"with pseudograd.pin_edge({newer!r}): ...  # around the training step; compare a training with it"
    infinite = {
        "op": "clamp",
        "family": "clamp",
        "nonfinite": 1,
        "cut": 1,
        "cut_magnitude": math.inf,
        "where": "b.py:2",
    }
    opened = site(**infinite, at_bound=1, eras={era: 0.0, newer: 1.0})
    for guard, is_kept in (
        (opened, False),
        (replace(opened, at_bound=0), True),
        (replace(opened, eras={era: 1.0, newer: 1.0}), True),
        (replace(opened, eras={}), True),
        (replace(opened, nonfinite=0), True),
    ):
        evidence = SimpleNamespace(sites=[site(), guard])
        assert (advice.guard_against(newer, evidence) is None) is is_kept
        advised = advice.pin(site(op="clamp", family="clamp"), newer, evidence)
        kept_out = f"{OVERRIDE}: a pin would pass what is not finite at b.py:2{advice.COMPARE}"
        assert advised == (pin if is_kept else kept_out)
    inside = advice.pin(site(within="f"), newer, evidence)
    assert inside.startswith("Write this call out in torch's own functions: pin_edge does not reach")
    assert advice.pin(site(within="f", where="?"), newer, evidence) == pin


EDGES = [
    ({}, True),
    ({"at_bound": 0}, False),
    ({"eras": dict.fromkeys(ERAS, 1.0)}, False),
    ({"has_guards_alone": True}, False),
    ({"next_cuts_at_bound": True}, False),
]


@pytest.mark.parametrize("passes", ERAS)
@pytest.mark.parametrize(("fields", "is_edge"), EDGES)
def test_gradients_at_a_bound_are_an_edge_where_the_eras_differ(passes: str, fields: Any, is_edge: bool) -> None:
    era = installed_era()
    eras = {name: float(name == passes) for name in ERAS}
    bound = site(**{"op": "clamp", "family": "clamp", "at_bound": 1, "eras": eras, **fields})
    leaves = SimpleNamespace(unpack=lambda mask: [])
    evidence = SimpleNamespace(suspects=[bound], sites=[bound], nonfinite=None, leaves=leaves, values=[])
    causes = [(finding.share, finding.cause) for finding in edge.KIND.find(evidence)]
    (other,) = {*ERAS} - {era}
    cuts = f"; {other} cuts there" if passes == era else ", which cuts there"
    assert causes == [(1e-3, f"this torch is of the era {era}{cuts}")] * is_edge
    evidence.nonfinite = SimpleNamespace(is_finding=True)
    evidence.suspects = [replace(bound, nonfinite=1)]
    assert [*edge.KIND.find(evidence)] == []


def behind(**of_step: Any) -> tuple[Site, Any]:
    """A clamp, and the evidence about it and about a round nearer to its one leaf, which starves."""
    bound = site(op="clamp", family="clamp", order=1, upstream=1, eras=dict.fromkeys(ERAS, 0.5), cut=1, at_bound=1)
    step = site(**{"family": "round", "order": 2, "upstream": 3, "cut": 1000, **of_step})
    leaves = SimpleNamespace(unpack=lambda mask: [SimpleNamespace(starves=True)] * (mask & 1))
    return bound, SimpleNamespace(sites=[bound, step], leaves=leaves)


STEPS_BEHIND = [
    ({}, True),
    ({"family": "sign"}, True),
    ({"family": "relu"}, False),
    ({"order": 1}, False),
    ({"upstream": 2}, False),
    ({"cut": 999}, False),
    ({"cut": 0, "arrived": 0}, True),
    ({"cut": 0, "arrived": 0, "is_own": True}, False),
    ({"is_own": True}, True),
]


@pytest.mark.parametrize(("of_step", "is_behind"), STEPS_BEHIND)
def test_a_step_behind_a_clamp_passes_nothing_in_any_era(of_step: Any, is_behind: bool) -> None:
    bound, evidence = behind(**of_step)
    assert (edge.step_behind(bound, evidence) is not None) is is_behind
    newer = {name: float(name != installed_era()) for name in ERAS}
    for eras in (newer, dict.fromkeys(ERAS, 0.0), {}):
        assert edge.is_cut_behind(replace(bound, eras=eras), evidence) is is_behind
    older = {name: float(name == installed_era()) for name in ERAS}
    assert edge.is_cut_behind(replace(bound, eras=older), evidence), (
        "the installed era passes most, and the leaf starves"
    )
    assert not edge.is_cut_behind(replace(bound, eras=older, upstream=0), evidence), "no leaf starves"
    assert edge.is_cut_by_its_era(replace(bound, eras=newer))
    for other in ({"eras": older}, {"eras": {}}, {"eras": newer, "cut": 2}, {"eras": newer, "cut": 0, "at_bound": 0}):
        assert not edge.is_cut_by_its_era(replace(bound, **other))


# --- several processes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "answer"), [((True, False), True), ((False, None), None), ((False, False), False), ((None, True), True)]
)
def test_a_cut_in_several_processes_reaches_the_loss_of_one(answers: Any, answer: bool | None) -> None:
    cuts = [Structural("detach", "a.py:1", "a.py:1", "x", 2, each, (str(each),)) for each in answers]
    merged = processes._merge_cuts(cuts)
    names = tuple(dict.fromkeys(map(str, answers)))
    assert (merged.reaches_loss, merged.calls, merged.parameters) == (answer, 4, names)


def test_the_counts_of_several_processes_are_added_up() -> None:
    total = processes._sum_sites(
        [site(cut=1, sides={"below-": 1}), site(cut=2, at_bound=3, sides={"below-": 4}), site(sides={})]
    )
    assert (total.cut, total.calls, total.at_bound, total.recoverable, total.sides) == (3, 3, 3, None, {"below-": 5})


# --- dead units ---------------------------------------------------------------------------------------------------------


def partly(*, site_fields: dict[str, Any] | None = None, **fields: Any) -> Partly:
    """Six of eight units are dead, and the op cuts as much as it must."""
    cause = site(**{"arrived": 1600, "cut": 900, **(site_fields or {})})
    counts = {"entries": 16, "without": 12, "units": 8, "dead_units": 6, "backwards": 3, "is_looked_up": False}
    return Partly(**{"parameter": "weight", "shape": (8, 2), "cause": cause, **counts, **fields})


DEAD = [
    ({}, {}, True),
    ({"dead_units": 5}, {}, False),
    ({"units": 7, "dead_units": 7}, {}, False),
    ({"backwards": 2}, {}, False),
    ({"is_looked_up": True}, {}, False),
    ({"cause": None}, {}, False),
    ({}, {"cut": 899}, False),
    ({}, {"elements": 1023}, False),
    ({}, {"family": "mul"}, False),
    ({}, {"family": "mul", "is_own": True, "cut": 0}, True),
    ({}, {"family": "mul", "op": "Jump", "cut": 0}, True),
]


@pytest.mark.parametrize(("fields", "of_site", "is_dead"), DEAD)
def test_most_units_are_dead_after_enough_chances(fields: Any, of_site: Any, is_dead: bool) -> None:
    record = partly(site_fields=of_site, **fields)
    assert are_dead(record) is is_dead


def test_parameters_whose_units_die_at_one_op_are_one_finding() -> None:
    of_site = [{"where": "b.py:2"}, {"expression": "g(x)"}, {"module": "0"}]
    others = [partly(site_fields=fields) for fields in of_site]
    others += [
        partly(dead_units=7, site_fields={"cut": 1600}),
        partly(dead_units=8, units=9, site_fields={"cut": 1600, "elements": 2048}),
    ]
    groups = group_dead([partly(), partly(parameter="bias"), *others, partly(cause=None), partly(dead_units=5)])
    assert [[row.parameter for row in group] for group in groups] == [["weight", "bias"], *[["weight"]] * 5]


CHOSEN = [
    ({}, True),
    ({"without": 7}, False),
    ({"units": 7}, False),
    ({"backwards": 2}, False),
    ({"own_choice": None}, False),
    ({"drops": ()}, False),
    ({"drops": ((site(), "cuts"),), "own_choice": SimpleNamespace()}, False),
    ({"drops": ((site(), "cuts"),)}, True),
    ({"cause": site(cut=1000), "dead_units": 6}, False),
]


@pytest.mark.parametrize(("fields", "is_chosen"), CHOSEN)
def test_most_entries_are_left_out_by_a_choice_of_their_own(fields: Any, is_chosen: bool) -> None:
    drops = ((site(family="where"), "cuts"),)
    record = partly(**{"without": 8, "dead_units": 4, "own_choice": site(), "drops": drops, **fields})
    assert are_chosen_out(record) is is_chosen


def test_the_lines_about_parameters_that_get_a_gradient_in_part() -> None:
    others = "reads others alone"
    drops = tuple((site(op=op, where=f"a.py:{number}"), "cuts") for number, op in enumerate("pqr"))
    table = {"is_looked_up": True, "cause": None}
    rows = [
        partly(parameter="half", cause=None, without=8, drops=drops),
        partly(parameter="less", cause=None, without=7),
        partly(parameter="dead"),
        partly(**table, parameter="words", drops=((site(), others),), padding=3),
        partly(**table, parameter="columns", drops=((site(), others),), dead_units=0, without=13),
        *(partly(**table, parameter=f"table{number}", without=9 + number) for number in range(1, 6)),
        partly(**table, parameter="table0", entries=32, without=17),
    ]
    assert calm_lines(rows) == [
        "not looked up or padding, and without a gradient: 13 of 16 entries of columns, 6 of 8 rows of words (row 3 is its padding)",
        "not looked up or 0 by value, and without a gradient: 6 of 8 rows of table5, 6 of 8 rows of table4, 6 of 8 rows of table3, "
        "6 of 8 rows of table2 and of 2 more",
        "without a gradient in part, no finding: 8 of 16 entries of half (p at a.py:0 cuts and q at a.py:1 cuts)",
    ]


# --- a gradient that vanishes ---------------------------------------------------------------------------------------------


FALLS: list[tuple[list[float], tuple[int, int] | None]] = [
    ([0, 0.9, 1.8, 2.7, 3.6, 4.5, 5.4, 6.01], (0, 7)),
    ([0, 0.9, 1.8, 2.7, 3.6, 4.5, 5.4, 5.99], None),
    ([0, 1, 2, 3, 4, 5, 6], (0, 6)),
    ([0, 3, 6, 9], None),
    ([0], None),
    ([], None),
    ([0, 4, 7, 8, 8.99], None),
    ([0, 4, 7, 8, 9.01], (0, 4)),
    ([0, 3, 6, 9, 9.29], None),
    ([0, 3, 6, 9, 9.31], (0, 4)),
    ([0, 3, 6, 9, 9.5, -1], None),
    ([1, 0, 2, 4, 6, 8], (1, 5)),
    ([0, 2, math.inf, 4, 6, 8], (0, 5)),
]


@pytest.mark.parametrize(("decades", "fall"), FALLS)
def test_a_fall_is_long_and_spread_over_layers(decades: list[float], fall: tuple[int, int] | None) -> None:
    """decades: powers of ten by which the gradient has fallen at each weight; inf where it is 0."""
    layers = [(str(number), 10.0 ** -float(power)) for number, power in enumerate(decades)]
    layers += [("nan", math.nan), ("infinite", math.inf)]
    finite = [layer for layer in layers if 0 < layer[1] < math.inf]
    expected = fall and Fall(*layers[fall[1]], *layers[fall[0]], len(finite))
    assert find_fall(layers) == (expected and pytest.approx(expected))


def test_four_parameters_are_all_named() -> None:
    names = ", ".join(["8 of 16 entries of weight"] * 4)
    assert calm_lines([partly(cause=None, without=8)] * 4) == [f"without a gradient in part, no finding: {names}"]


def test_what_multiplies_a_gradient_in_each_layer() -> None:
    sites = [site(op="tanh", calls=2), site(op="sigmoid", calls=1), site(op="sigmoid", calls=2), site(calls=9)]
    steep = "each {} multiplies it by at most {}, and no skip connection leads past"
    assert vanish._explain(sites) == steep.format("sigmoid", "1/4")
    assert vanish._explain(sites[:2]) == steep.format("tanh", "1")
    assert vanish._explain(sites[3:]).startswith("each layer hands on less than it gets: small weights")


# --- a convention ---------------------------------------------------------------------------------------------------------


def measured(level: float, peak: float = 0.2, steps: int = 5, **fields: Any) -> Any:
    names = {"parameter": "w", "moved": 1.0, "stops": False}
    return SimpleNamespace(level=level, peak=peak, steps=[0] * steps, **{**names, **fields})


VERDICTS = [
    (measured(0.09, 0.09), [], ""),
    (measured(0.0, 0.0), [measured(0.0, 0.1)], "falls"),
    (measured(0.5), [], "decides"),
    (measured(0.5, steps=4), [], "unknown"),
    (measured(0.49), [], "some"),
    (measured(0.1), [], "some"),
    (measured(0.09), [], "falls"),
    (measured(0.09, steps=4), [], "unknown"),
    (measured(0.09), [measured(0.5)], "some"),
    (measured(0.09), [measured(0.49)], "falls"),
    (measured(0.09), [measured(0.5, moved=9e-4)], "decides"),
    (measured(0.09), [measured(0.5, moved=1e-3)], "some"),
    (measured(0.09), [measured(0.49, moved=9e-4)], "falls"),
    (measured(0.09, steps=1), [measured(0.0, stops=True)], "decides"),
]


@pytest.mark.parametrize(("line", "parameters", "said"), VERDICTS)
def test_how_much_a_convention_matters(line: Any, parameters: list[Any], said: str) -> None:
    assert convention.verdict(line, parameters) == said


AMOUNTS = [
    ("decides", measured(0.6), [], "60.0 % of this update is convention"),
    ("falls", measured(0.6, 0.7), [], "70.0 % of this update is convention"),
    ("some", measured(0.09, 0.3), [], "30.0 % of this update is convention"),
    ("some", measured(0.0, 0.05), [measured(0.2), measured(0.6)], "60.0 % of the update of w is convention"),
    ("some", measured(0.0, 0.1), [measured(0.6)], "10.0 % of this update is convention"),
    ("decides", measured(1.0), [], "100 % of this update is convention"),
    ("some", measured(0.1, 0.3), [], "10.0 % of this update is convention"),
    ("decides", measured(1.5), [], "All of this update is convention (another one changes it by 1.5 times its size)"),
    ("decides", measured(12.5), [], "All of this update is convention (another one changes it by 12 times its size)"),
    ("decides", measured(math.inf), [], "All of this update is convention"),
]


@pytest.mark.parametrize(("judged", "line", "parameters", "said"), AMOUNTS)
def test_how_much_of_an_update_is_convention(judged: str, line: Any, parameters: list[Any], said: str) -> None:
    assert convention._amount(judged, line, parameters) == said


OTHER = SimpleNamespace(whose="jax")
UNMEASURED = convention.UNMEASURED
MATTERS = [
    ("unknown", measured(0.5, steps=1), [], "1 step is too few to say whether it matters"),
    ("unknown", measured(0.5, steps=2), [], "2 steps are too few to say whether it matters"),
    ("falls", measured(0.05), [], f"Later it is mostly 5.0 %; {UNMEASURED}"),
    ("some", measured(0.2), [], f"The rest of the update moves these parameters, too; {UNMEASURED}"),
    ("decides", measured(0.5), [], f"It may decide this training: its share stays high; {UNMEASURED}"),
    (
        "decides",
        measured(0.5),
        [measured(0.5, moved=0.0)],
        f"It may decide this training: its share stays high, and w does not move; {UNMEASURED}",
    ),
    (
        "decides",
        measured(0.4),
        [measured(0.5, moved=0.0), measured(0.5, moved=0.0, parameter="v"), measured(0.0, stops=True, parameter="u")],
        f"It may decide this training: most of the update of w, v is convention, and w, v do not move; {UNMEASURED}",
    ),
    (
        "decides",
        measured(0.5),
        [measured(0.0, stops=True)],
        f"It may decide this training: in the first step w would get nothing as in JAX; {UNMEASURED}",
    ),
]


@pytest.mark.parametrize(("judged", "line", "parameters", "said"), MATTERS)
def test_what_is_said_of_a_convention(judged: str, line: Any, parameters: list[Any], said: str) -> None:
    assert convention._matters(judged, line, parameters, OTHER) == said


# --- the mend of what is not finite ---------------------------------------------------------------------------------------


# In float16, bfloat16, float32 and float64.
MENDS: dict[tuple[str, str], str] = {
    ("root", "Sqrt"): "x.clamp(min={0.0001,1e-12,1e-12,1e-16})",
    ("log", "Log"): "x.clamp(min={0.001,1e-12,1e-12,1e-16})",
    ("log", "Log1P"): "x.clamp(min=-1 + {0.002,0.02,1e-06,1e-12})",
    ("log", "Logit"): "x.clamp({0.002,0.02,1e-06,1e-12}, 1 - {0.002,0.02,1e-06,1e-12})",
    ("arc", "Asin"): "x.clamp(-1 + {0.002,0.02,1e-06,1e-12}, 1 - {0.002,0.02,1e-06,1e-12})",
    ("arc", "Acosh"): "x.clamp(min=1 + {0.002,0.02,1e-06,1e-12})",
    ("division", "Div"): "torch.where(x.abs() > {0.01,1e-06,1e-06,1e-16}, x, {0.01,1e-06,1e-06,1e-16})",
    ("division", "Addcdiv"): "torch.where(x.abs() > {0.01,1e-06,1e-06,1e-16}, x, {0.01,1e-06,1e-06,1e-16})",
    ("division", "Reciprocal"): "torch.where(x.abs() > {0.01,1e-06,1e-06,1e-16}, x, {0.01,1e-06,1e-06,1e-16})",
    ("division", "Pow"): "x.clamp(min={0.01,1e-06,1e-06,1e-16})",
    ("softmax", "Softmax"): "x.clamp(-{6e4,1e30,1e30,1e30}, {6e4,1e30,1e30,1e30})",
    ("overflow", "Exp"): "x.clamp(max={5,40,40,350})",
    ("factor", "Mul"): "torch.where(x.isfinite(), x, 0)",
    ("half result", "Pow"): "x.float()",
}


BIRTH = {"is_masked": False, "broken": "", "divides_by_number": False}


def birth(kind: str, op: str, dtype: torch.dtype = torch.float32, **fields: Any) -> Any:
    return SimpleNamespace(**{"kind": kind, "op": op, "dtype": dtype, **BIRTH, **fields})


@pytest.mark.parametrize(("kind", "op"), MENDS)
def test_what_to_write_in_place_of_x(kind: str, op: str) -> None:
    parts = [part.split("}") for part in MENDS[kind, op].split("{")]
    for number, dtype in enumerate((torch.float16, torch.bfloat16, torch.float32, torch.float64)):
        text = "".join(part[0].split(",")[number] + part[1] if len(part) > 1 else part[0] for part in parts)
        assert nonfinite._mend(birth(kind, op, dtype)) == text
    if kind == "factor":
        assert nonfinite._mend(birth(kind, op, torch.cfloat)) == text, "infinity has a size above 0"
    if kind == "division" and op == "Div":
        assert nonfinite._mend(birth(kind, op, is_masked=True)) == "torch.where(x.abs() > 1e-06, x, 1)"
        number = [nonfinite._mend(birth(kind, op, is_masked=masked, divides_by_number=True)) for masked in (0, 1)]
        assert number == ["(1e-06 if abs(x) < 1e-06 else x)", "(1 if abs(x) < 1e-06 else x)"]


B = "torch.where(b.abs() > 1e-06, b, 1e-06)"
REWRITTEN: list[tuple[str, str, str, str]] = [
    ("division", "Div", "a / b", f"a / {B}"),
    ("division", "Div", "torch.div(a, b)", f"torch.div(a, {B})"),
    ("division", "Div", "a.div_(b)", f"a.div_({B})"),
    ("division", "Div", "'é', a / b", ""),
    ("division", "Div", "f('é') / b", f"f('é') / {B}"),
    ("division", "Div", "a / (\n b)", ""),
    ("division", "Div", "a + b", ""),
    ("division", "Div", "a * b", ""),
    ("division", "Div", "y = a / b", ""),
    ("division", "Div", "a /= b", ""),
    ("division", "Div", "div(a, b)", ""),
    ("division", "Div", "torch.div(a)", ""),
    ("division", "Div", "a / b.sqrt()", "a / b.clamp(min=1e-12).sqrt()"),
    ("division", "Addcdiv", "torch.addcdiv(a, c, b)", f"torch.addcdiv(a, c, {B})"),
    ("division", "Reciprocal", "1 / b", f"1 / {B}"),
    ("division", "Reciprocal", "b.reciprocal()", f"{B}.reciprocal()"),
    ("log", "Xlogy", "torch.special.xlogy(a, b)", "torch.special.xlogy(a, b.clamp(min=1e-12))"),
    ("log", "Log", "a / b", ""),
    ("log", "Log", "a.sqrt().log()", "a.sqrt().clamp(min=1e-12).log()"),
    ("log", "Log", "F.log(a + b)", "F.log((a + b).clamp(min=1e-12))"),
    ("arc", "Acos", "a.arccos()", "a.clamp(-1 + 1e-06, 1 - 1e-06).arccos()"),
    ("root", "Sqrt", "a[0].sqrt()", "a[0].clamp(min=1e-12).sqrt()"),
    ("root", "Pow", "a ** b", "a.clamp(min=1e-12) ** b"),
    ("factor", "Mul", "a * b", "torch.where(a.isfinite(), a, 0) * b"),
    ("root", "Sqrt", f"{'a' * 25}.sqrt()", f"{'a' * 25}.clamp(min=1e-12).sqrt()"),
    ("factor", "Mul", f"{'a' * 24} * b", f"torch.where({'a' * 24}.isfinite(), {'a' * 24}, 0) * b"),
    ("factor", "Mul", f"{'a' * 25} * b", f"torch.where((inner := {'a' * 25}).isfinite(), inner, 0) * b"),
]


@pytest.mark.parametrize(("kind", "op", "expression", "mended"), REWRITTEN)
def test_the_line_with_its_x_mended(kind: str, op: str, expression: str, mended: str) -> None:
    made = birth(kind, op)
    assert nonfinite._rewrite(expression, made, nonfinite._mend(made)) == mended


def test_the_other_factor_is_mended_if_it_is_the_broken_one() -> None:
    made = birth("factor", "Mul", broken="other")
    for call in ("a * {}", "torch.mul(a, {})"):
        assert nonfinite._rewrite(call.format("b"), made, nonfinite._mend(made)) == call.format(
            "torch.where(b.isfinite(), b, 0)"
        )


BORN = {
    "entries": 2,
    "elements": 8,
    "values": "x is 0",
    "backward": 3,
    "is_forward": False,
    "origin": "",
    "parameter": "w",
}
BORN |= {"tally": None, "earlier_backward": 0, "excess": 0.0}
NOT_FINITE = "came in with the forward of backward 3: 2 of 8 entries of the result"
BIRTHS = [
    ({}, "born in backward 3: 2 of 8 entries that leave are not finite, where x is 0, and all that arrive are finite"),
    ({"values": ""}, "born in backward 3: 2 of 8 entries that leave are not finite, and all that arrive are finite"),
    ({"is_forward": True, "origin": "log"}, "born in backward 3: 2 of 8 entries that leave are not finite, where x"),
    ({"kind": "weights"}, "w is not finite before backward 3"),
    (
        {"kind": "data", "values": "nan"},
        "2 of 8 entries of what is put in with w are nan in backward 3, and so is the loss: it came in",
    ),
    ({"kind": "data", "parameter": "", "broken": "x"}, "2 of 8 entries of 'x' here are x is 0 in backward 3, and so"),
    ({"is_forward": True}, f"it {NOT_FINITE} of log with w are not finite, where x is 0, and so is the loss"),
    ({"is_forward": True, "parameter": ""}, f"it {NOT_FINITE} of log are not finite, where x is 0, and so is the loss"),
    ({"is_forward": True, "tally": 1}, f"it {NOT_FINITE} are not finite, where x is 0, and so is the loss"),
    (
        {"is_forward": True, "tally": 1, "earlier_backward": 1},
        f"it {NOT_FINITE} are not finite, where x is 0, and so is the loss, as in",
    ),
]


@pytest.mark.parametrize(("fields", "start"), BIRTHS)
def test_where_a_value_was_not_finite_first(fields: dict[str, Any], start: str) -> None:
    said = nonfinite._describe_birth(birth(**{"kind": "log", "op": "Log", **BORN, **fields}))
    assert said.startswith(start)
    assert said.endswith(start[-9:]) or len(said) > len(start)
    assert ("detach or no_grad" in said) == bool(fields.get("earlier_backward"))


HALF, LOG = torch.float16, nonfinite._WHY["log"]
ENTERED = "a value that enters is not finite: it came in with the forward, from log"
WHYS = [
    ("log", {}, LOG),
    ("log", {"is_masked": True}, LOG + nonfinite._MASKED),
    ("log", {"dtype": HALF}, f"{LOG}; an epsilon below 3e-08 is 0 in float16"),
    ("softmax", {"dtype": HALF}, nonfinite._WHY["softmax"]),
    ("log", {"origin": "log"}, f"{LOG}; {ENTERED}"),
    ("broken input", {"origin": "log"}, ENTERED),
    ("other", {}, "the backward of Log makes it from values that are finite"),
    ("other", {"is_forward": True}, "the forward of Log makes it from values that are finite"),
    ("half", {}, "a gradient leaves, more than float16 holds: 65,504"),
    ("half", {"excess": 2.0}, "a gradient leaves, 2 times as much as float16 holds: 65,504"),
    ("overflow", {}, "the result or its slope is larger than float32 holds: 3.4e+38"),
]


@pytest.mark.parametrize(("kind", "fields", "why"), WHYS)
def test_why_a_value_is_not_finite(kind: str, fields: dict[str, Any], why: str) -> None:
    assert nonfinite._explain(birth(kind, "Log", **{**BORN, **fields})) == why


def reach(count: int = 1, *, is_parameter: bool = True, **fields: Any) -> Any:
    reached = [SimpleNamespace(name=f"p{number}", is_parameter=is_parameter) for number in range(count)]
    empty = {
        "used_backwards": [],
        "first_hit": count,
        "are_weights_broken": False,
        "lost_steps": 0,
        "hit_backwards": [1, 2, 3],
    }
    return SimpleNamespace(**{"reached": reached, "has_optimiser": lambda: True, **empty, **fields})


REACHES = [
    (reach(0), "no parameter got it"),
    (reach(5), "5 parameters got it: p0, p1, p2, p3 and 1 more"),
    (reach(is_parameter=False), "1 tensor got it: p0"),
    (reach(used_backwards=[4, 5]), "1 parameter got it: p0; the step after backward 4 used it"),
    (
        reach(used_backwards=[4], first_hit=2),
        "1 parameter got it: p0; the step after backward 4 used that of 2 parameters",
    ),
    (reach(are_weights_broken=True), "1 parameter got it: p0; the weights are not finite since"),
    (reach(lost_steps=2), "1 parameter got it: p0; no step followed 2 of 3 such backwards"),
    (reach(lost_steps=2, has_optimiser=lambda: False), "1 parameter got it: p0"),
]


@pytest.mark.parametrize(("who", "said"), REACHES)
def test_who_got_what_is_not_finite(who: Any, said: str) -> None:
    assert nonfinite._describe_reach(who) == said


EPSILONS = [
    (0.0, HALF, "eps=0 of Adam, so a step divides by 0 where the square of the gradient is 0", "eps=0.0001  # of Adam"),
    (0.0, torch.float32, "eps=0 of Adam, so a step", "eps=1e-08  # of Adam"),
    (
        1e-8,
        HALF,
        "eps=1e-08 of Adam is 0 in float16, so a step divides by 0",
        "eps=0.0001  # of Adam; or keep the weights in float32",
    ),
]


@pytest.mark.parametrize(("eps", "dtype", "cause", "step"), EPSILONS)
def test_an_epsilon_that_is_0(eps: float, dtype: torch.dtype, cause: str, step: str) -> None:
    said = nonfinite._explain_eps(SimpleNamespace(eps=eps, kind="Adam"), dtype)
    assert said[0].startswith(cause)
    assert said[1].startswith(step)
    assert ("autocast" in said[1]) == bool(eps)


ENDINGS = [
    ([math.nan], 1, True),
    ([math.inf], 9, False),
    ([math.inf], 10, True),
    ([math.nan, 1.0], 12, False),
    ([], 12, False),
]


@pytest.mark.parametrize(("norms", "backwards", "is_broken"), ENDINGS)
def test_a_gradient_that_is_not_finite_at_the_end(norms: list[float], backwards: int, is_broken: bool) -> None:
    sizes = SimpleNamespace(count=len(norms), norm_by_step=[*enumerate(norms)])
    assert nonfinite._ends_broken(SimpleNamespace(sizes=sizes), backwards) is is_broken
    assert nonfinite._ends_broken(SimpleNamespace(sizes=None), backwards) is False


# --- steps that move nothing ----------------------------------------------------------------------------------------------


STILL: list[tuple[int, int, dict[str, Any], str]] = [
    (5, 5, {}, "in all 5 steps: nothing moves"),
    (4, 4, {}, ""),
    (10, 12, {}, "in the last 10 of 12 steps: nothing moves any more"),
    (9, 12, {}, ""),
    (10, 12, {"leaves": [SimpleNamespace(had_gradient=False)]}, ""),
    (10, 12, {"still_at": frames.NOWHERE}, ""),
    (5, 5, {"has_schedule": True}, "in all 5 steps: nothing moves"),
]


@pytest.mark.parametrize(("still", "count", "fields", "said"), STILL)
def test_an_optimiser_whose_rate_is_0(still: int, count: int, fields: dict[str, Any], said: str) -> None:
    usual = {"still_at": frames.location(), "leaves": [SimpleNamespace(had_gradient=True)], "has_schedule": False}
    optimiser = SimpleNamespace(**{"still_steps": still, "steps": count, **usual, **fields})
    recorder = SimpleNamespace(optimisers=SimpleNamespace(all=[optimiser]))
    evidence = SimpleNamespace(recorder=recorder, deliberate=SimpleNamespace(location=lambda location: False))
    cause = "a scheduler set it, by the number of its own steps" if optimiser.has_schedule else "the program set it"
    findings = [(finding.evidence, finding.cause) for finding in stalled._find_still_optimisers(evidence)]
    assert findings == [(f"the rate of the optimiser is 0 {said}", cause)] * bool(said)


RATES = [
    (torch.float32, None, False, "Give the optimizer a larger rate"),
    (torch.float64, 0.01, False, "Give the optimizer a rate 100 times as large"),
    (torch.float32, 0.0, True, "Give these parameters a group of their own with a rate 1,000,000,000 times as large"),
    (
        torch.bfloat16,
        0.01,
        True,
        "net.float()  # before the optimizer is made; then the forward under torch.autocast('cpu', torch.bf",
    ),
]


@pytest.mark.parametrize(("dtype", "median", "others_move", "start"), RATES)
def test_the_advice_for_steps_that_rounding_swallows(
    dtype: torch.dtype, median: Any, others_move: bool, start: str
) -> None:
    advised = stalled._advise(dtype, "cpu", median, others_move, "net")
    assert advised.startswith(start)
    assert advised.endswith("; compare a training with it.")


def test_what_is_not_finite_and_was_not_seen_has_the_first_line_at_which_it_arrives() -> None:
    names = [SimpleNamespace(name=name, sizes=SimpleNamespace(count=1, norm_by_step=[(1, math.nan)])) for name in "vw"]
    sites = [
        site(upstream=3),
        site(nonfinite=1, upstream=4),
        site(nonfinite=2, upstream=2),
        site(nonfinite=3, upstream=3),
    ]
    evidence = SimpleNamespace(leaves=[*enumerate(names)], backwards=1, sites=sites)
    (seen,) = nonfinite._find_late(evidence)
    text = "2 parameters got a gradient that is not finite: v, w"
    assert (seen.evidence, seen.share) == (f"{text}; here it arrives first, at 2 of 1,000 entries", 0.002)
    assert (seen.cause, seen.parameters) == ("an op between here and the loss made it", ("v", "w"))
    evidence.sites = sites[:2]
    (unseen,) = nonfinite._find_late(evidence)
    assert (unseen.evidence, unseen.where, unseen.parameters) == (text, "?", ("v", "w"))
    evidence.leaves = []
    assert [*nonfinite._find_late(evidence)] == []


# --- lines whose result nobody reads --------------------------------------------------------------------------------------


UNREAD: dict[str, tuple[str | None, str | None]] = {  # if the result is a tensor, and if it is one number
    "x.clamp(0, 1)": ("x = x.clamp(0, 1)",) * 2,
    "torch.clamp(x, 0)": ("x = torch.clamp(x, 0)",) * 2,
    "F.relu(x)": ("x = F.relu(x)",) * 2,
    "Own.apply(x)": ("x = Own.apply(x)",) * 2,
    "torch.where(x, 1, 2)": ("y = torch.where(x, 1, 2)",) * 2,
    "x.y.clamp(0)": ("y = x.y.clamp(0)",) * 2,
    "torch.rand()": ("y = torch.rand()",) * 2,
    **dict.fromkeys(
        ("x.clamp_(0)", "torch.relu(x, inplace=True)", "torch.abs(x, out=x)", "x.backward()"), (None, None)
    ),
    **dict.fromkeys(("x.no_function_of_torch()", "print(x.clamp(0))", "clamp(x)", "(yield x.clamp(0))"), (None, None)),
    "a = x.clamp(0)": (None, "a"),
    "a = x.std()": (None, "a"),
    "a = x.sum()": ("a", "a"),
    "a = x.clamp(0).mean()": ("a", "a"),
    "a = x.sum(1)": (None, "a"),
    "a = x.sum(dim=1)": (None, "a"),
    "a = x.clamp(0) + 1": (None, None),
    **dict.fromkeys(
        ("_a = x.sum()", "a = b = x.sum()", "x.a = x.sum()", "a: int = x.sum()", "a += x.sum()"), (None, None)
    ),
    **dict.fromkeys(("a = x.sum(); a += 1", "a = x.sum(); print(a)", "a = x.sum(); locals()"), (None, None)),
    "global a; a = x.sum()": (None, None),
    "a = x.sum(); print(b)": ("a", "a"),
}


class Seen:
    """Each of its functions notes the line that calls it."""

    points: ClassVar[list[frames.Point]] = []

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: object, **keywords: object) -> Any:
        self.points.append(frames.point(sys._getframe(1)))
        return self

    __add__ = __radd__ = __iadd__ = lambda self, other: self


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python before 3.11 knows the line alone")
@pytest.mark.parametrize("body", UNREAD)
def test_a_line_whose_result_nobody_reads(body: str, tmp_path: Path) -> None:
    names = {name: Seen() for name in ("torch", "F", "Own", "clamp")}
    Seen.points.clear()
    b = "" if "+=" not in body.partition(";")[0] else "a = 0; "
    made = define(f"b = 0; {b}{body}", tmp_path / "line.py", "x", **names, print=id)(Seen())
    list(made or ()) if "yield" in body else None
    assert tuple(find_unread(Seen.points[0], is_number) for is_number in (False, True)) == UNREAD[body]


# --- names ----------------------------------------------------------------------------------------------------------------


STEPS = {
    "optimizer.step()": "optimizer",
    "self.opt.step(closure)": "self.opt",
    "scaler.step(opt)": "opt",
    "self.grad_scaler.step(self.opt)": "self.opt",
    "fabric.step()": "fabric",
    "step(opt)": "optimizer",
    "opts[0].step()": "optimizer",
}


@pytest.mark.parametrize("call", STEPS)
def test_the_name_of_an_optimiser_in_its_step(call: str) -> None:
    assert name_of_optimiser(call) == STEPS[call]


def test_layers_of_one_list_share_a_name() -> None:
    assert [*_siblings("blocks.0.experts.12.weight")] == [
        (-4, "blocks..experts.12.weight"),
        (-2, "blocks.0.experts..weight"),
    ]
    assert [*_siblings("weights.3")] == []


AGREE = {
    "are used, but them": ("is used, but it", "are used, but them"),
    "get zeros as long as they learn": ("gets zeros as long as it learns", "get zeros as long as they learn"),
}


@pytest.mark.parametrize("sentence", AGREE)
def test_a_sentence_about_one_parameter_or_several(sentence: str) -> None:
    assert (_agree(sentence, 1), _agree(sentence, 2)) == AGREE[sentence]
