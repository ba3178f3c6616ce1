"""What an audit measures, compared with what was put in."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd import rules
from pseudograd.geometry import SHARES
from pseudograd.look.audit import Audit, restrict
from pseudograd.look.audit_figure import merge_regions
from pseudograd.look.audit_record import Region
from pseudograd.torch_table.eras import ERAS, installed_era

from ..choices import folded
from .functions import Silu, clamped, inside, inward, of

TEXT = """\
audit: my_clamp on -2 to 2, torch {torch}
  the same as clamp(x, -1, 1, rule="inward", edge="closed")
  grad > 0: exact 50%, flat 25%, pseudo 25%
  grad < 0: exact 50%, pseudo 25%, flat 25%

  x          derivative   grad > 0   grad < 0
  [-2, -1)   0            flat       pseudo 1
  -1         0 | 1        kink 1     kink 1
  (-1, 1)    1            exact      exact
  1          1 | 0        kink 1     kink 1
  (1, 2]     0            pseudo 1   flat

  linear in grad    no: the sign of grad matters at 50% of the points, the gradients of two losses do not add up at 50% of the points
  element-wise      yes
  double backward   consistent
"""


def _kinds(audit: Audit) -> list[tuple[str, str]]:
    return [(region.positive.kind, region.negative.kind) for region in audit.regions]


def _at(audit: Audit, x: float) -> Region:
    (found,) = (
        r for r in audit.regions if r.low < x < r.high or (x == r.low and r.has_low) or (x == r.high and r.has_high)
    )
    return found


def test_the_text_is_this() -> None:
    def my_clamp(x: Tensor) -> Tensor:
        return pg.clamp(x, -1, 1)

    found = str(pg.audit(my_clamp, -2, 2))
    assert found.startswith(TEXT.format(torch=torch.__version__))
    assert "forward mode      refused: NotImplementedError: clamp/inward: forward mode must not be used" in found
    assert "x = -inf          y = -1, slope 0 for grad > 0, 1 for grad < 0" in found
    assert all(len(line) <= 180 and line == line.rstrip() for line in found.splitlines())


# --- regions --------------------------------------------------------------------------------------------------------


def test_each_kind_where_it_was_put() -> None:
    """exact below -2, cut to -1, biased to 0; above 0, where the values are flat, flat to 1 and pseudo beyond."""

    def forward(x: Tensor) -> Tensor:
        return torch.where(x < 0, x * x, 0.0)

    def backward(grad: Tensor, x: Tensor) -> Tensor:
        slope = torch.where(x < -2, 2 * x, torch.where(x < -1, 0.0, torch.where(x < 0, 1.02 * 2 * x, 0.0)))
        return grad * torch.where(x >= 1, 3.0, slope)

    found = pg.audit(of(forward, backward), -3, 2.5)
    kinds = [kind for kind, other in _kinds(found) if kind == other]
    assert kinds == ["exact", "cut", "biased", "flat", "pseudo"]
    assert [(r.low, r.high) for r in found.regions] == [
        (-3, -2),
        (-2, -1),
        (-1, pytest.approx(0, abs=0.01)),
        (pytest.approx(0, abs=0.01), 1),
        (1, 2.5),
    ]
    assert [(r.has_low, r.has_high) for r in found.regions[:2]] == [(True, False), (True, False)]
    assert found.regions[-1].has_low
    assert found.regions[-1].positive[1:] == (3, 3)
    assert found.shares["grad > 0"] == found.shares["grad < 0"]
    assert found.shares["grad > 0"]["cut"] == pytest.approx(1 / 5.5)


def test_both_signs_of_grad_have_kinds_of_their_own() -> None:
    found = pg.audit(lambda x: pg.clamp(x, -0.7, 1 / 3, rule="elastic", edge="half"), -2, 2)
    assert _kinds(found) == [
        ("pseudo", "pseudo"),
        ("kink", "kink"),
        ("exact", "exact"),
        ("kink", "kink"),
        ("pseudo", "pseudo"),
    ]
    low, _, middle, _, high = found.regions
    assert (low.low, low.high, middle.low, middle.high, high.low) == (-2, -0.7, -0.7, 1 / 3, 1 / 3)
    assert (low.positive.least, low.positive.most) == (-1, pytest.approx(0, abs=0.01))
    assert low.negative[1:] == (1, 1)
    assert high.positive[1:] == (1, 1)
    assert middle.slope == (pytest.approx(1), pytest.approx(1))


@pytest.mark.parametrize("edge", ["closed", "open", "half", "inward"])
def test_kinks_have_their_place_to_the_last_digit_and_the_slope_of_both_signs(edge: str) -> None:
    found = pg.audit(lambda x: pg.clamp(x, -0.7, 1 / 3, edge=edge), -2, 2)
    at_min, at_max = found.kinks
    assert (at_min.low, at_max.low) == (-0.7, 1 / 3)
    assert at_min.slope == (pytest.approx(0, abs=1e-6), pytest.approx(1))
    share = {"closed": (1, 1), "open": (0, 0), "half": (0.5, 0.5)}
    assert (at_min.positive.least, at_min.negative.least) == share.get(edge, (0, 1))
    assert (at_max.positive.least, at_max.negative.least) == share.get(edge, (1, 0))


def test_the_kink_of_torchs_own_clamp_is_that_of_its_era() -> None:
    found = pg.audit(lambda x: torch.clamp(x, -0.7, 1 / 3), -2, 2)
    share = SHARES[ERAS[installed_era()].edge]
    assert [(kink.positive.least, kink.negative.least) for kink in found.kinks] == [(share, share)] * 2
    assert found.rule == f'clamp(x, -0.7, {1 / 3}, rule="zero", edge="{ERAS[installed_era()].edge}")'


def test_jumps_of_the_values_and_of_the_gradient() -> None:
    found = pg.audit(lambda x: pg.sign(x, rule=pg.rules.window(0.6)), -2, 2)
    assert [(kink.low, kink.positive.kind, kink.positive.least) for kink in found.kinks] == [(0, "jump", 1)]
    assert _kinds(found)[0] == ("flat", "flat")
    assert (found.regions[0].high, found.regions[0].has_high) == (-0.6, False)
    assert (found.regions[-1].low, found.regions[-1].has_low) == (0.6, False)
    rounded = pg.audit(torch.round, -2, 2)
    assert [kink.low for kink in rounded.kinks] == [-1.5, -0.5, 0.5, 1.5]


def test_two_kinks_between_two_points_of_the_grid_are_seen_if_they_are_given() -> None:
    def bump(x: Tensor) -> Tensor:
        return (1e-5 - (x - 0.5033).abs()).relu()

    assert pg.audit(bump, 0, 1, points=101).kinks == ()
    found = pg.audit(bump, 0, 1, points=101, at=[0.5033])
    assert [kink.low for kink in found.kinks] == [pytest.approx(0.50329), 0.5033, pytest.approx(0.50331)]


@pytest.mark.parametrize(
    ("f", "rule"),
    [
        (torch.sin, None),
        (torch.nn.functional.silu, 'silu(x, rule="exact")'),
        (lambda x: torch.sigmoid(40 * x), None),
        (lambda x: torch.sin(20 * x), None),
        (torch.nn.Tanhshrink(), None),
    ],
    ids=["sin", "silu", "steep sigmoid", "fast sine", "tanhshrink"],
)
def test_a_smooth_function_is_exact_and_has_no_kinks(f: Callable[[Tensor], Tensor], rule: str | None) -> None:
    found = pg.audit(f, -3, 3)
    assert found.kinks == ()
    assert set(found.shares["grad > 0"]) <= {"exact", "flat"}
    assert (found.linear.word, found.double_backward.word, found.forward_mode.word) == ("yes", "consistent", "agrees")
    assert found.rule == rule


def test_where_it_is_not_finite_it_is_undefined() -> None:
    found = pg.audit(torch.log, -1, 3)
    assert found.shares["grad > 0"]["undefined"] == pytest.approx(0.25, abs=0.01)
    assert found.shares["grad > 0"]["exact"] == pytest.approx(0.75, abs=0.01)


def test_the_silu_of_two_bits_is_never_exact() -> None:
    """Its slopes are 0, 0.5 and 1; below -2 it has the wrong sign."""
    for f in (Silu, Silu.apply):
        found = pg.audit(f, -4, 4)
        assert _kinds(found) == [("biased", "biased"), ("cut", "cut"), ("biased", "biased"), ("biased", "biased")]
        assert [(r.low, r.high, r.positive.least, r.positive.most) for r in found.regions] == [
            (-4, -2, 1, 1),
            (-2, 0, 0, 0),
            (0, 2, 0.5, 0.5),
            (2, 4, 1, 1),
        ]
        assert found.shares["grad > 0"] == {"biased": pytest.approx(0.75), "cut": pytest.approx(0.25)}
        assert found.rule is None
        assert str(found).count("biased 1, wrong sign") == 2
    assert found.name == "Silu.apply"


# --- the single questions -------------------------------------------------------------------------------------------


def test_linear_in_grad() -> None:
    assert pg.audit(lambda x: pg.clamp(x, -1, 1, rule="leaky"), -2, 2).linear == ("yes", 0.0, "")
    by_size = pg.audit(of(clamped, lambda g, x: g.clamp(-1.5, 1.5)), -2, 2).linear
    assert by_size.word == "no"
    assert "its size matters at 100%" in by_size.detail
    assert "the sign of grad" not in by_size.detail
    by_sign = pg.audit(of(clamped, inward), -2, 2).linear
    assert "its size" not in by_sign.detail
    assert by_sign.share == pytest.approx(0.5, abs=0.02)


def test_cross_talk() -> None:
    found = pg.audit(of(clamped, lambda g, x: torch.where(inside(x), g, g - g.mean())), -2, 2).element_wise
    assert found.word == "no"
    assert found.share == pytest.approx(0.5, abs=0.02)
    assert pg.audit(of(clamped, inward), -2, 2).element_wise == ("yes", 0.0, "")


def test_double_backward() -> None:
    def cubed(x: Tensor) -> Tensor:
        return x**3

    right = pg.audit(of(cubed, lambda g, x: 3 * g * x * x), -2, 2)
    assert (right.double_backward.word, right.shares["grad > 0"]) == ("consistent", {"exact": 1.0})
    wrong = pg.audit(of(cubed, lambda g, x: 3 * g * x * x.detach()), -2, 2)
    assert (wrong.double_backward.word, wrong.shares["grad > 0"]) == ("inconsistent", {"exact": 1.0})
    assert wrong.double_backward.share == pytest.approx(1, abs=0.01)
    cut_off = pg.audit(of(cubed, lambda g, x: (3 * g * x * x).detach()), -2, 2)
    assert cut_off.double_backward.word == "inconsistent"

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 3 * grad * x * x  # type: ignore[no-any-return]

    assert pg.audit(Once, -2, 2).double_backward.word == "refused"


def test_forward_mode_and_vmap() -> None:
    class Wrong(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

        @staticmethod
        def jvp(ctx: Any, tangent: Tensor) -> Tensor:
            return tangent * 3

    found = pg.audit(Wrong, -2, 2)
    assert (found.forward_mode.word, found.forward_mode.share, found.vmap.word) == ("differs", 1, "agrees")
    old = pg.audit(of(clamped, inward), -2, 2)
    assert (old.forward_mode.word, old.vmap.word) == ("refused", "refused")
    new = pg.audit(lambda x: pg.clamp(x, -1, 1, rule="zero"), -2, 2)
    assert (new.forward_mode.word, new.vmap.word) == ("agrees", "agrees")


def test_what_is_not_finite() -> None:
    found = pg.audit(lambda x: pg.clamp(x, -1, 1), -2, 2)
    seen = {(one.x, one.grad): (one.y, one.grad_x) for one in found.not_finite if not math.isnan(one.x)}
    assert seen == {
        (math.inf, 1): (1, 1),
        (math.inf, -1): (1, 0),
        (-math.inf, 1): (-1, 0),
        (-math.inf, -1): (-1, -1),
        (0, 1): (0, 1),
        (0, -1): (0, -1),
    }
    assert [one.grad_x for one in found.not_finite if math.isnan(one.x)] == [1, -1]
    assert (found.infinite_grad.word, found.nan_grad.word) == ("no NaN", "passes")
    zero = pg.audit(lambda x: pg.clamp(x, -1, 1, rule="zero"), -2, 2)
    assert (zero.nan_grad.word, zero.nan_grad.detail) == ("passes in part", "at 50% of the points")
    times_0 = pg.audit(of(clamped, lambda g, x: g * inside(x)), -2, 2)
    assert (times_0.infinite_grad.word, times_0.infinite_grad.detail) == ("makes NaN", "at 50% of the points")


def test_half_precision() -> None:
    overflows = pg.audit(of(torch.tanh, lambda g, x: g * 1e5 * (1 - torch.tanh(x) ** 2) / 1e5), -1, 1)
    assert overflows.float16.word == "overflows"
    assert overflows.bfloat16.word == "as float64"
    lost = pg.audit(of(lambda x: x * 1.0, lambda g, x: g * 1e-9 * 1e9), -1, 1)
    assert (lost.float16.word, lost.bfloat16.word) == ("underflows", "as float64")

    def no_half(x: Tensor) -> Tensor:
        if x.dtype is torch.float16:
            raise TypeError("not in float16")
        return x * 2

    refused = pg.audit(no_half, -1, 1)
    assert str(refused.float16) == "refused: TypeError: not in float16"
    assert refused.bfloat16.word == "as float64"


# --- modules, copies, lines -----------------------------------------------------------------------------------------


def test_a_module_is_audited_in_float64_and_left_as_it_was() -> None:
    module = torch.nn.Sequential(torch.nn.PReLU(init=0.25), torch.nn.Hardtanh(-0.5, 0.5))
    found = pg.audit(module, -4, 4)
    assert [kink.low for kink in found.kinks] == [-2, 0, 0.5]
    assert {p.dtype for p in module.parameters()} == {torch.float32}
    assert all(p.grad is None for p in module.parameters())
    assert found.float16.word == "as float64"
    assert found.name == "Sequential"


def test_a_function_that_changes_its_input_and_one_asked_under_no_grad() -> None:
    x_before = torch.linspace(-2, 2, 5)
    with torch.no_grad():
        found = pg.audit(lambda x: x.clamp_(-1, 1), -2, 2)
    assert len(found.kinks) == 2
    assert torch.equal(x_before, torch.linspace(-2, 2, 5))
    with torch.inference_mode():
        assert pg.audit(torch.sin, -2, 2).shares["grad > 0"] == {"exact": 1.0}


def test_a_function_of_whole_tensors_along_random_lines() -> None:
    def softmax(x: Tensor) -> Tensor:
        return torch.softmax(x, dim=-1)

    right = pg.audit(softmax, -2, 2, shape=(3, 4), points=33)
    assert (right.lines, right.rule, right.shares["grad > 0"]) == (3, None, {"exact": 1.0})
    assert (right.linear.word, right.double_backward.word, right.forward_mode.word) == ("yes", "consistent", "agrees")

    def half_of_it(x: Tensor) -> Tensor:
        y = softmax(x)
        return y + 0.02 * (y.detach() - y)

    wrong = pg.audit(half_of_it, -2, 2, shape=(3, 4), points=33)
    assert wrong.shares["grad < 0"] == {"biased": 1.0}
    assert "along 3 random lines" in str(wrong)


def test_a_line_runs_along_its_direction_which_is_scaled_to_about_one() -> None:
    start, direction, weight = ([0.5, -1.0], [3.0, -4.0], [2.0, 1.0])
    size = ((3**2 + 4**2) / 2) ** 0.5
    line = restrict(lambda x: x**3, *(torch.tensor(part, dtype=torch.float64) for part in (start, direction, weight)))
    expected = [
        sum(w * (s + t * d / size) ** 3 for s, d, w in zip(start, direction, weight, strict=True))
        for t in (-1.0, 0.0, 2.0)
    ]
    assert line(torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)).tolist() == pytest.approx(expected)


def test_a_function_of_whole_tensors_that_knows_no_vmap() -> None:
    one_sided = of(clamped, inward)
    found = pg.audit(lambda x: one_sided(x.sum(-1)), -2, 2, shape=(2, 3), points=33)
    assert (found.vmap.word, found.linear.word) == ("refused", "no")
    assert found.shares["grad > 0"]["pseudo"] > 0.1


# --- records --------------------------------------------------------------------------------------------------------


def test_json_has_everything_and_only_plain_values() -> None:
    found = pg.audit(Silu, -4, 4, points=101)
    plain = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert plain["kind"] == "pseudograd audit"
    assert plain["torch"] == torch.__version__
    assert plain["regions"][1]["positive"] == {"kind": "cut", "least": 0.0, "most": 0.0}
    assert plain["shares"] == found.shares
    assert plain["not_finite"][0] == {"x": "nan", "grad": 1.0, "y": "nan", "grad_x": 0.0}
    assert plain["vmap"]["word"] == "refused"
    assert "curves" not in plain


def test_the_plot_draws_these_numbers() -> None:
    pytest.importorskip("matplotlib")
    figure = pg.audit(lambda x: pg.clamp(x, -1, 1), -2, 2).plot()
    forward, kinds, backward = figure.axes
    lines = {line.get_label(): line for line in backward.lines}
    for sign, label in ((1, "dL/dx, grad = +1"), (-1, "dL/dx, grad = -1")):
        x, y = (torch.as_tensor(values) for values in lines[label].get_data())
        keep = ~y.isnan()
        assert (~keep).any()  # a jump is no slope
        expected = inward(torch.full_like(x[keep], sign), x[keep])
        assert torch.equal(y[keep], expected)
    dots = [tuple(map(list, line.get_data())) for line in backward.lines if line.get_marker() == "o"]
    assert dots == [([-1, 1], [1, 1]), ([-1, 1], [-1, -1])]
    assert [text.get_text() for text in kinds.texts] == ["flat", "exact", "pseudo", "pseudo", "exact", "flat"]
    assert forward.get_title(loc="left").endswith('the same as clamp(x, -1, 1, rule="inward", edge="closed")')
    assert (backward.get_xlim(), backward.get_xlabel()) == ((-2, 2), "x")


def test_stretches_of_one_kind_are_drawn_as_one_unless_a_kink_lies_between() -> None:
    def region(low: float, high: float, kind: str) -> SimpleNamespace:
        return SimpleNamespace(low=low, high=high, positive=SimpleNamespace(kind=kind))

    regions = [region(0, 1, "flat"), region(1, 2, "cut"), region(2, 3, "cut"), region(3, 3, "cut"), region(3, 4, "cut")]
    drawn = merge_regions(SimpleNamespace(regions=regions), "positive")  # type: ignore[arg-type]
    assert drawn == [(0, 1, "flat"), (1, 3, "cut"), (3, 4, "cut")]


# --- bad calls ------------------------------------------------------------------------------------------------------


RANDOM = of(clamped, lambda g, x: g * torch.rand_like(x))
BAD: dict[str, Callable[[], object]] = {
    "TypeError: audit: f must be a function, a module or an autograd.Function, got 3.": lambda: pg.audit(3, 0, 1),
    "TypeError: audit: f must be a module that was made, got 'ReLU'. Call it": lambda: pg.audit(torch.nn.ReLU, 0, 1),
    "TypeError: audit: low must be a number, got '0'.": lambda: pg.audit(torch.sin, "0", 1),  # type: ignore[arg-type]
    "TypeError: audit: points must be an integer, got 60.0.": lambda: pg.audit(torch.sin, 0, 1, points=60.0),  # type: ignore[arg-type]
    "TypeError: audit: f must return one floating-point tensor, got (": lambda: pg.audit(lambda x: (x, x), 0, 1),
    "TypeError: audit: f must return one floating-point tensor": lambda: pg.audit(lambda x: x > 0, 0, 1),
    "ValueError: audit: low must be below high, got low=1.0 and high=0.0. Swap": lambda: pg.audit(torch.sin, 1, 0),
    "ValueError: audit: low must be below high": lambda: pg.audit(torch.sin, 1, 1),
    "ValueError: audit: low must be finite, got nan.": lambda: pg.audit(torch.sin, math.nan, 1),
    "ValueError: audit: high must be finite, got inf.": lambda: pg.audit(torch.sin, 0, math.inf),
    "ValueError: audit: points must be at least 33, got 32.": lambda: pg.audit(torch.sin, 0, 1, points=32),
    "ValueError: audit: at must be finite, got nan.": lambda: pg.audit(torch.sin, 0, 1, at=[math.nan]),
    "ValueError: audit: f must return one number for each of the 601 numbers in x": lambda: pg.audit(torch.sum, 0, 1),
    "ValueError: audit: f must be differentiable, got values from": lambda: pg.audit(lambda x: x.detach(), 0, 1),
    "ValueError: audit: f must be differentiable": lambda: pg.audit(lambda x: (x > 0).double(), 0, 1),
    "ValueError: audit: f must take one float64 tensor, got TypeError: ": lambda: pg.audit(lambda x, y: x, 0, 1),
    "ValueError: audit: f must return the same values for the same x": lambda: pg.audit(torch.nn.Dropout(), 0, 1),
    "ValueError: audit: f must give the same gradient for the same x": lambda: pg.audit(RANDOM, 0, 1),
    "ValueError: audit: f must be element-wise, got a y that depends on other elements of x at 100% of the points. Give the shape": (
        lambda: pg.audit(lambda x: torch.softmax(x, 0), 0, 1)
    ),
    "ValueError: audit: shape must be the sizes of a tensor, each": lambda: pg.audit(torch.sin, 0, 1, shape=()),
    "ValueError: audit: shape must be the sizes of a tensor": lambda: pg.audit(torch.sin, 0, 1, shape=(0,)),
    "ValueError: audit: low and high must hold 4096 numbers of float64 between two of 601 points": (
        lambda: pg.audit(torch.sin, 1e15 - 1, 1e15 + 2)
    ),
    "ValueError: audit: low and high must hold 4096 numbers": lambda: pg.audit(torch.sin, -1e-306, 1e-306),
    "ValueError: audit: low and high must be a finite distance apart": lambda: pg.audit(torch.sin, -1.7e308, 1.7e308),
}


@folded
@pytest.mark.parametrize("text", BAD)
def test_bad_calls(text: str) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        BAD[text]()
    assert f"{raised.typename}: {raised.value}".startswith(text)


# --- small, large, far away, coarse, steep ----------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-200, 1e-20, 1e-7, 1.0, 1e8, 1e200, 5e307])
def test_a_clamp_is_found_in_every_unit(scale: float) -> None:
    found = pg.audit(lambda x: torch.clamp(x, -0.25 * scale, 0.25 * scale), -0.75 * scale, 0.75 * scale)
    assert [kink.low for kink in found.kinks] == pytest.approx([-0.25 * scale, 0.25 * scale], rel=1e-12)
    for shares in found.shares.values():
        assert shares["flat"] == pytest.approx(2 / 3)
        assert shares["exact"] == pytest.approx(1 / 3)
    assert found.rule is None or found.rule.startswith("clamp(")


@folded
@pytest.mark.parametrize("y", [1e-18, 1e-9, 1.0, 1e12, 1e250])
@pytest.mark.parametrize("x", [1e-12, 1.0, 1e6])
def test_a_gradient_ten_times_too_large_is_biased_in_every_unit(x: float, y: float) -> None:
    f = of(lambda v: v * (y / x), lambda grad, v: grad * (10 * y / x))
    assert pg.audit(f, -3 * x, 3 * x).shares == {"grad > 0": {"biased": 1.0}, "grad < 0": {"biased": 1.0}}
    exact = pg.audit(lambda v: v * (y / x), -3 * x, 3 * x)
    assert exact.shares == {"grad > 0": {"exact": 1.0}, "grad < 0": {"exact": 1.0}}


@pytest.mark.parametrize("offset", [1e3, -1e6, 1e9])
def test_a_range_far_from_zero_is_looked_at(offset: float) -> None:
    found = pg.audit(lambda x: torch.clamp(x, offset, offset + 1), offset - 1, offset + 2)
    assert [kink.low for kink in found.kinks] == [offset, offset + 1]


@folded
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("f", [torch.tanh, torch.sin, torch.exp, torch.square], ids=lambda f: f.__name__)
def test_an_exact_function_that_computes_in_float32_is_not_accused(f: Callable[[Tensor], Tensor], scale: float) -> None:
    found = pg.audit(lambda x: f(x.float() / scale), -2 * scale, 2 * scale)
    assert found.double_backward.word == "consistent"


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_wrong_second_derivative_is_seen_in_every_unit_and_dtype(dtype: torch.dtype, scale: float) -> None:
    class Forgets(torch.autograd.Function):
        """cos without its own derivative."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return (x.to(dtype) / scale).sin()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return (grad * (x.to(dtype) / scale).cos().detach() / scale).double()

    assert pg.audit(Forgets, -2 * scale, 2 * scale).double_backward.word == "inconsistent"


def test_a_steep_function_of_any_size_ends() -> None:
    for f in (lambda x: torch.sigmoid(1000 * x), lambda x: torch.sigmoid(1e9 * x), lambda x: torch.tanh(1e300 * x)):
        assert pg.audit(f, -3, 3).rule is None


@pytest.mark.parametrize("at", [0.0, 0.3003])
@pytest.mark.parametrize("scale", [0.04, 0.004])
def test_a_peak_between_two_points_is_drawn_to_its_top(scale: float, at: float) -> None:
    found = pg.audit(lambda x: pg.heaviside(x - at, rule=rules.fast_sigmoid(scale=scale)), -1, 3)
    beside = ~torch.isin(found.curves.x, torch.tensor([kink.low for kink in found.kinks], dtype=torch.float64))
    for side in (found.curves.positive, found.curves.negative):
        assert side[beside].max().item() > 0.97
    assert found.points < 1200
