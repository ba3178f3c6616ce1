"""The inputs and parameters that measured points suggest, from records that are written by hand."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.look import candidates, measure
from pseudograd.look.measure import Break, Measured
from pseudograd.rule import OPS
from pseudograd.testing.measure.behaviour import gradient_of

from ..written import assert_written
from . import functions


def _measured(x: list[float], y: list[float], up: list[float] | None = None, **more: Any) -> Measured:
    """Slopes are differences of neighbours. up: the slopes for grad > 0 and, unless `negative` is given, for grad < 0."""
    points, values = torch.tensor(x, dtype=torch.float64), torch.tensor(y, dtype=torch.float64)
    slope = values.diff() / points.diff()
    slope = torch.cat([slope, slope[-1:]])
    positive = slope if up is None else torch.tensor(up, dtype=torch.float64)
    negative = torch.tensor(more.pop("negative"), dtype=torch.float64) if "negative" in more else positive
    return Measured(
        points,
        values,
        slope,
        slope.new_full((len(x),), 1e-9),
        positive,
        negative,
        **{"breaks": (), "pairs": (), **more},
    )


_X = [-2.0, -1.0, 0.0, 1.0, 2.0]


def inputs_of(op: str, y: list[float], up: list[float] | None = None, x: list[float] = _X) -> list[Any]:
    """The inputs after x that values at five points suggest, where the slopes for grad > 0 are `up`, if given."""
    return candidates._inputs_after_x(OPS[op], _measured(x, y, up))


def test_a_grid_has_the_mean_step_and_its_ends() -> None:
    x = [step / 8 for step in range(-8, 9)]
    y = [min(0.5, max(-0.5, round(4 * value) / 4)) for value in x]
    assert candidates._inputs_after_x(OPS["fake_quantize"], _measured(x, y)) == [(0.25, 0, -2, 2)]
    assert candidates._grids(_measured(x, [min(0.0, value) for value in y]), -0.5, 0.0) == [(0.25, 0, -2, 0)]
    assert candidates._grids(_measured(x, [float(value > 0) for value in x]), 0, 1) == []  # two levels are a step
    assert candidates._grids(_measured(x, x), -1, 1) == []  # as many levels as points


def test_the_width_of_a_reversal_is_the_distance_over_the_share_and_the_range() -> None:
    up, bounds = [-1.0, -0.25, 1.0, 1.0, 1.0, 0.0], {"min": 0.0, "max": 2.0}
    m = _measured([-2, -1, 0, 1, 2, 3], [0, 0, 0, 1, 2, 2], up, negative=[0.0] * 6)
    assert candidates._estimate_width(m, bounds) == 1 / (0.25 * 2)
    above = m._replace(positive=torch.zeros(6), negative=torch.tensor([0, 0, 1, 1, 1, -0.25]))
    assert candidates._estimate_width(above, bounds) == (3 - 2) / (0.25 * 2)
    codes = {"scale": 0.5, "quant_min": 0.0, "quant_max": 2.0}
    assert candidates._estimate_width(above, codes) == (6 - 2) / (0.25 * 2)
    assert candidates._estimate_width(m, {"min": 0.0, "max": None}) is None
    assert candidates._estimate_width(m, {"min": None, "max": 2.0}) is None
    assert candidates._estimate_width(m, {"min": 2.0, "max": 2.0}) is None
    assert candidates._estimate_width(m._replace(positive=torch.zeros(6)), bounds) is None


def test_a_jump_is_a_threshold_with_the_widths_of_a_window() -> None:
    m = _measured(_X, [0, 0, 0, 1, 2], [0, 0, 0, 4, 1])
    jump, kink = Break(1.0, 0, 1, is_jump=True), Break(-1.0, 0, 1, is_jump=False)
    no_window = (1.0, 1.0, False)
    assert candidates._thresholds(m) == candidates._thresholds(m._replace(breaks=(jump, jump))) == []
    m = m._replace(breaks=(kink, jump))
    by_share = [(1.0, width, True) for width in (0.25, 0.125, 0.0625, candidates.tidy(0.25 / math.sqrt(2 * math.pi)))]
    assert candidates._thresholds(m) == [no_window, *by_share]
    assert candidates._thresholds(m._replace(pairs=((0.75, 0.875), (1.25, 1.5)))) == [
        no_window,
        (1.0, 0.25, True),
        *by_share,
    ]
    assert candidates._thresholds(m._replace(positive=torch.zeros(5), pairs=((0.75, 0.875),))) == [no_window]


def factors_of(rule: str, y: list[float], up: list[float], down: list[float]) -> tuple[float, ...]:
    """The factors that are read at the flat ends, between the bounds 0 and 1."""
    m, known = _measured(_X, y, up, negative=down), {"min": 0.0, "max": 1.0}
    numbers = candidates._estimate_factors(OPS["clamp"].rules[rule], m, known)
    parameters = candidates._parameters(OPS["clamp"].rules[rule], m, known)
    assert parameters == tuple(zip(OPS["clamp"].rules[rule].parameters, numbers, strict=True))
    return numbers


def test_a_factor_of_zero_and_an_unknown_curve_leave_the_parameters_as_they_are() -> None:
    m = _measured(_X, [0, 0, 0, 1, 1], [0, 0, 1, 1, 0])
    leaky, window = OPS["clamp"].rules["leaky"], OPS["sign"].rules["window"]
    assert candidates._parameters(leaky, m, {}) == tuple(leaky.parameters.items())
    assert candidates._parameters(window, m._replace(positive=torch.zeros(5)), {}) == tuple(window.parameters.items())


@pytest.mark.parametrize("bound", [math.pi * 1e-9, 3.1000001e-9, -math.pi / 3, 0.1])
def test_lines_meet_at_the_exact_number_in_every_size(bound: float) -> None:
    low, high = sorted((0.5 * bound, 2 * bound))
    f = lambda x: torch.maximum(x, bound + 0.5 * (x - bound))  # noqa: E731
    x = measure._meeting_point(f, low, high, 0.5, 1.0, [], 2.0**-52)
    assert abs(x - bound) <= 1e-14 * abs(bound)


def calls_for(f: Callable[[Tensor], Tensor], low: float, high: float, *, edges: bool = False) -> str:
    """The calls that are tried for f, as an audit and as `what_is` writes them. edges: also with other edges than the default."""
    m, lines = measure.measure(f, low, high, 65, ()), []
    gradients = [gradient_of(f, m.x, grad) for grad in candidates.GRADS]
    for op, others, difference in candidates.forwards(m):
        calls = list(candidates.candidates(op, others, m, gradients))
        lines.append(f"{op.name}{others}, {'equal' if difference == 0 else 'near'}: {len(calls)} calls")
        for call in calls:
            if edges or (call.case.edge == op.default_edge and not call.case.maximize):
                lines.append(f"  {call.write()} | {call.write(('low', 'high'), says_default_edge=False)}")
    return re.sub(r"\d+\.\d{10,}", lambda number: f"{float(number[0]):.9g}", "\n".join(lines))


def test_the_calls_that_are_tried_are_written_out() -> None:
    names = {**vars(functions), "pg": pg, "torch": torch, "calls_for": calls_for, "candidates": candidates}
    names |= {"inputs_of": inputs_of, "factors_of": factors_of, "X": _X}
    assert_written(Path(__file__).with_name("candidates.txt"), names)
