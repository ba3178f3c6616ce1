"""Both sides of each number that decides whether something is a finding, and every text that depends on a kind of op."""

import math
import sys
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from pseudograd.diagnosis import processes, records
from pseudograd.diagnosis.count.norms import Facts
from pseudograd.diagnosis.judge import advice, dead_units, starving, statements
from pseudograd.diagnosis.judge.dead_units import calm_lines, group_dead
from pseudograd.diagnosis.judge.findings import convention, edge, nonfinite, stalled, vanish
from pseudograd.diagnosis.judge.norms import find_fall
from pseudograd.diagnosis.records import Partly, Site, Structural
from pseudograd.listen import frames
from pseudograd.torch_table.eras import ERAS, installed_era

from ..written import assert_written
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


def hidden(kind: Any) -> str:
    """The fields that only this process reads, and those of the record that are not empty unless said."""
    unseen = {field.name for field in fields(kind) if not field.repr}
    facts = {field.name for field in fields(Facts)} if kind is Site else set()
    assert facts <= unseen
    truthy = {field.name: field.default for field in fields(kind) if field.default and field.default is not MISSING}
    return f"hidden {', '.join(sorted(unseen - facts))}; begins as {truthy}"


def purposes(**fields: Any) -> str:
    """What the op is for."""
    names = ("is_calm_clip", "may_guard", "is_guard")
    return ", ".join(name for name in names if getattr(site(**fields), name)) or "nothing"


def clamp_advice(**fields: Any) -> str:
    clamp = site(**{"op": "clamp", "family": "clamp", "cut": 500, "recoverable": 500, **fields})
    return advice.advise(clamp, SimpleNamespace(values=[], sites=[]))


OVERRIDE = "with pseudograd.override(clamp=lambda site: 'inward' if site.is_at('a.py:1') else None): ...  # around the training step"


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


EDGES: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"at_bound": 0}, False),
    ({"eras": dict.fromkeys(ERAS, 1.0)}, False),
    ({"has_guards_alone": True}, False),
    ({"next_cuts_at_bound": True}, False),
]


@pytest.mark.parametrize("passes", ERAS)
def test_gradients_at_a_bound_are_an_edge_where_the_eras_differ(passes: str) -> None:
    era = installed_era()
    eras = {name: float(name == passes) for name in ERAS}
    (other,) = {*ERAS} - {era}
    cuts = f"; {other} cuts there" if passes == era else ", which cuts there"
    for of_site, is_edge in EDGES:
        bound = site(**{"op": "clamp", "family": "clamp", "at_bound": 1, "eras": eras, **of_site})
        leaves = SimpleNamespace(unpack=lambda mask: [])
        evidence = SimpleNamespace(suspects=[bound], sites=[bound], nonfinite=None, leaves=leaves, values=[])
        causes = [(finding.share, finding.cause) for finding in edge.KIND.find(evidence)]
        assert causes == [(1e-3, f"this torch is of the era {era}{cuts}")] * is_edge, of_site
        evidence.nonfinite = SimpleNamespace(is_finding=True)
        evidence.suspects = [replace(bound, nonfinite=1)]
        assert [*edge.KIND.find(evidence)] == [], of_site


def behind(**of_step: Any) -> tuple[Site, Any]:
    """A clamp, and the evidence about it and about a round nearer to its one leaf, which starves."""
    bound = site(op="clamp", family="clamp", order=1, upstream=1, eras=dict.fromkeys(ERAS, 0.5), cut=1, at_bound=1)
    step = site(**{"family": "round", "order": 2, "upstream": 3, "cut": 1000, **of_step})
    leaves = SimpleNamespace(unpack=lambda mask: [SimpleNamespace(starves=True)] * (mask & 1))
    return bound, SimpleNamespace(sites=[bound, step], leaves=leaves)


STEPS_BEHIND: list[tuple[dict[str, Any], bool]] = [
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


def test_a_step_behind_a_clamp_passes_nothing_in_any_era() -> None:
    newer = {name: float(name != installed_era()) for name in ERAS}
    older = {name: float(name == installed_era()) for name in ERAS}
    for of_step, is_behind in STEPS_BEHIND:
        bound, evidence = behind(**of_step)
        assert (edge.step_behind(bound, evidence) is not None) is is_behind, of_step
        for eras in (newer, dict.fromkeys(ERAS, 0.0), {}):
            assert edge.is_cut_behind(replace(bound, eras=eras), evidence) is is_behind, (of_step, eras)
        # The installed era passes most: it is cut behind if a leaf starves.
        assert edge.is_cut_behind(replace(bound, eras=older), evidence), of_step
        assert not edge.is_cut_behind(replace(bound, eras=older, upstream=0), evidence), of_step
    assert edge.is_cut_by_its_era(replace(bound, eras=newer))
    for other in ({"eras": older}, {"eras": {}}, {"eras": newer, "cut": 2}, {"eras": newer, "cut": 0, "at_bound": 0}):
        assert not edge.is_cut_by_its_era(replace(bound, **other)), other


# --- several processes ----------------------------------------------------------------------------------------------------


def merged(*answers: bool | None) -> str:
    """A cut that was recorded in several processes, of which each knows whether it reaches the loss."""
    cuts = [Structural("detach", "a.py:1", "a.py:1", "x", 2, answer, (str(answer),)) for answer in answers]
    cut = processes._merge_cuts(cuts)
    return f"reaches the loss {cut.reaches_loss}, {cut.calls} calls, parameters {' '.join(cut.parameters)}"


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


def test_parameters_whose_units_die_at_one_op_are_one_finding() -> None:
    of_site = [{"where": "b.py:2"}, {"expression": "g(x)"}, {"module": "0"}]
    others = [partly(site_fields=fields) for fields in of_site]
    others += [
        partly(dead_units=7, site_fields={"cut": 1600}),
        partly(dead_units=8, units=9, site_fields={"cut": 1600, "elements": 2048}),
    ]
    groups = group_dead([partly(), partly(parameter="bias"), *others, partly(cause=None), partly(dead_units=5)])
    assert [[row.parameter for row in group] for group in groups] == [["weight", "bias"], *[["weight"]] * 5]


def chosen(**fields: Any) -> Partly:
    """Half of the entries are left out by a choice of their own."""
    drops = ((site(family="where"), "cuts"),)
    return partly(**{"without": 8, "dead_units": 4, "own_choice": site(), "drops": drops, **fields})


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


def fall_of(*decades: float) -> str:
    """The fall of a gradient, by the powers of ten by which it has fallen at each weight; inf where it is 0."""
    layers = [(str(number), 10.0 ** -float(power)) for number, power in enumerate(decades)]
    fall = find_fall([*layers, ("nan", math.nan), ("infinite", math.inf)])
    if fall is None:
        return "no fall"
    low, small, high, large, count = fall
    assert (small, large) == pytest.approx((dict(layers)[low], dict(layers)[high]))
    return f"from layer {high} to layer {low}, {count} in all"


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


OTHER = SimpleNamespace(whose="jax")


# --- the mend of what is not finite ---------------------------------------------------------------------------------------


BIRTH = {"is_masked": False, "broken": "", "divides_by_number": False}


def birth(kind: str, op: str, dtype: torch.dtype = torch.float32, **fields: Any) -> Any:
    return SimpleNamespace(**{"kind": kind, "op": op, "dtype": dtype, **BIRTH, **fields})


def mends(kind: str, op: str) -> str:
    """What is written in place of x in each dtype."""
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return "\n".join(f"{str(dtype)[6:]}: {nonfinite._mend(birth(kind, op, dtype))}" for dtype in dtypes)


def rewritten(kind: str, op: str, expression: str, **fields: Any) -> str:
    """The line with its x mended."""
    made = birth(kind, op, **fields)
    return nonfinite._rewrite(expression, made, nonfinite._mend(made)) or "not rewritten"


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


def described(**fields: Any) -> str:
    """Where a value was not finite first."""
    return nonfinite._describe_birth(birth(**{"kind": "log", "op": "Log", **BORN, **fields}))


def explained(kind: str, **fields: Any) -> str:
    """Why a value is not finite."""
    return nonfinite._explain(birth(kind, "Log", **{**BORN, **fields}))


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


def epsilon(eps: float, dtype: torch.dtype) -> str:
    return "\n".join(nonfinite._explain_eps(SimpleNamespace(eps=eps, kind="Adam"), dtype))


def ends_broken(norms: list[float], backwards: int) -> bool:
    """If the last gradients, of which each has a norm, are not finite."""
    assert nonfinite._ends_broken(SimpleNamespace(sizes=None), backwards) is False
    sizes = SimpleNamespace(count=len(norms), norm_by_step=[*enumerate(norms)])
    return nonfinite._ends_broken(SimpleNamespace(sizes=sizes), backwards)


# --- steps that move nothing ----------------------------------------------------------------------------------------------


def still(still_steps: int, steps: int, **fields: Any) -> str:
    """What is said of an optimiser whose rate is 0."""
    usual = {"still_at": frames.location(), "leaves": [SimpleNamespace(had_gradient=True)], "has_schedule": False}
    optimiser = SimpleNamespace(**{"still_steps": still_steps, "steps": steps, **usual, **fields})
    recorder = SimpleNamespace(optimisers=SimpleNamespace(all=[optimiser]))
    evidence = SimpleNamespace(recorder=recorder, deliberate=SimpleNamespace(location=lambda location: False))
    findings = stalled._find_still_optimisers(evidence)
    return "\n".join(f"{finding.evidence}; {finding.cause}" for finding in findings) or "nothing"


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
def test_the_written_lines_whose_result_nobody_reads(tmp_path: Path) -> None:
    def unread(body: str) -> str:
        """What stands for the line, if its result is a tensor and if it is one number."""
        names = {name: Seen() for name in ("torch", "F", "Own", "clamp")}
        Seen.points.clear()
        b = "" if "+=" not in body.partition(";")[0] else "a = 0; "
        made = define(f"b = 0; {b}{body}", tmp_path / "line.py", "x", **names, print=id)(Seen())
        list(made or ()) if "yield" in body else None
        return f"{statements.find_unread(Seen.points[0], False)} | {statements.find_unread(Seen.points[0], True)}"

    assert_written(Path(__file__).with_name("unread.txt"), {"unread": unread})


# --- all of these -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["sites.txt", "shares.txt", "broken.txt"])
def test_the_written_answers(file: str) -> None:
    rooms = (records, dead_units, starving, statements)
    names = {name: value for room in rooms for name, value in vars(room).items()}
    assert_written(Path(__file__).with_name(file), {**names, "convention": convention, **globals()})
