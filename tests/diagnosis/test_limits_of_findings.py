"""Both sides of each number that decides whether something is a finding, and every text that depends on a kind of op."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pseudograd.diagnosis.judge.dead_units import are_chosen_out, are_dead, calm_lines, group_dead
from pseudograd.diagnosis.judge.findings import convention, nonfinite, vanish
from pseudograd.diagnosis.judge.norms import Fall, find_fall
from pseudograd.diagnosis.judge.starving import _agree, _siblings
from pseudograd.diagnosis.judge.statements import name_of_optimiser
from pseudograd.diagnosis.records import Partly, Site


def site(**fields: Any) -> Site:
    counts = {"calls": 1, "elements": 1024, "arrived": 1000, "cut": 0, "cut_magnitude": 0.0, "nonfinite": 0}
    texts = {"op": "relu", "where": "a.py:1", "user_where": "a.py:1", "expression": "f(x)", "module": None}
    return Site(**{**texts, **counts, "family": "relu", **fields})


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
