"""The numbers, text and figure of an audit, compared with functions whose backward is known."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

import pseudograd as pg
from pseudograd import rules
from pseudograd.geometry import SHARES
from pseudograd.look.audit import Audit
from pseudograd.look.audit_figure import merge_regions
from pseudograd.look.audit_record import AuditRecord
from pseudograd.testing.measure.numeric import narrow_dtype_of
from pseudograd.torch_table.eras import ERAS, installed_era

from ..choices import folded, one_in, slow_but
from ..written import assert_written, error_of
from . import functions
from .functions import Silu, clamped, inside, inward, make_function


def _kinds(audit: Audit) -> list[tuple[str, str]]:
    return [(region.positive.kind, region.negative.kind) for region in audit.regions]


def report(f: object, low: float, high: float, points: int = 101, **how: Any) -> str:
    """The text, without the version of torch and what functorch refuses, whose words change; and the shares, with more digits."""
    audit = pg.audit(f, low, high, points=points, **how)
    lines = [line.replace(torch.__version__, "2.13") for line in str(audit).splitlines() if "functorch" not in line]
    assert all(len(line) <= 180 and line == line.rstrip() for line in lines)
    shares = (f"{kind} {share:.4f}" for side in audit.shares.values() for kind, share in side.items())
    return "\n".join([*lines, f"  {audit.points} points: {', '.join(shares)}"])


def test_reports_are_written_out() -> None:
    assert_written(
        Path(__file__).with_name("audits.txt"), {**vars(functions), "report": report, "pg": pg, "rules": rules}
    )


def test_a_kink_has_its_x_to_the_last_digit_and_the_slope_of_both_signs() -> None:
    era = ERAS[installed_era()].edge
    at_edges = {edge: ((share, share), (share, share)) for edge, share in SHARES.items()} | {"inward": ((0, 1), (1, 0))}
    for edge, expected in at_edges.items():
        at_min, at_max = pg.audit(lambda x, edge=edge: pg.clamp(x, -0.7, 1 / 3, edge=edge), -2, 2, points=101).kinks  # type: ignore[misc]
        assert (at_min.low, at_max.low) == (-0.7, 1 / 3)
        assert at_min.slope == (pytest.approx(0, abs=1e-6), pytest.approx(1))
        assert tuple((kink.positive.least, kink.negative.least) for kink in (at_min, at_max)) == expected
    audit = pg.audit(lambda x: torch.clamp(x, -0.7, 1 / 3), -2, 2)
    assert [(kink.positive.least, kink.negative.least) for kink in audit.kinks] == [(SHARES[era],) * 2] * 2
    assert audit.rule == f'clamp(x, -0.7, {1 / 3}, rule="zero", edge="{era}")'


def test_a_smooth_function_is_exact_and_has_no_kinks() -> None:
    for f in (silu, lambda x: torch.sigmoid(40 * x), lambda x: torch.sin(20 * x), torch.nn.Tanhshrink()):
        audit = pg.audit(f, -3, 3, points=201)
        assert audit.kinks == ()
        assert set(audit.shares["grad > 0"]) <= {"exact", "flat"}
        answers = (audit.linear.word, audit.double_backward.word, audit.forward_mode.word)
        assert answers == ("yes", "consistent", "agrees")
        assert audit.rule == ('silu(x, rule="exact")' if f is silu else None)


def test_linear_in_grad_tells_sign_and_size_apart() -> None:
    assert pg.audit(lambda x: pg.clamp(x, -1, 1, rule="leaky"), -2, 2).linear == ("yes", 0.0, "")
    for pull in (
        lambda g, x: g.clamp(-1.5, 1.5),
        lambda g, x: g.clamp(-5e3, 5e3),
        lambda g, x: g.where(g.abs() > 1e-5, 0),
    ):
        audit = pg.audit(make_function(clamped, pull), -2, 2)
        assert audit.rule is None
        assert audit.linear.word == "no"
        assert "its size matters at 100%" in audit.linear.detail
        assert "the sign of grad" not in audit.linear.detail
    by_sign = pg.audit(make_function(clamped, inward), -2, 2).linear
    assert "its size" not in by_sign.detail
    assert by_sign.share == pytest.approx(0.5, abs=0.02)
    assert pg.audit(make_function(torch.clone, lambda g, x: g - g.mean()), -2, 2).linear.word == "yes"  # up to rounding


def test_a_gradient_that_depends_on_other_elements_is_not_element_wise() -> None:
    mixed = make_function(clamped, lambda g, x: torch.where(inside(x), g, g - g.mean()))
    answer = pg.audit(mixed, -2, 2, points=201).element_wise
    assert (answer.word, answer.share) == ("no", pytest.approx(0.5, abs=0.02))
    assert pg.audit(make_function(clamped, inward), -2, 2, points=101).element_wise == ("yes", 0.0, "")


def test_a_write_into_the_gradient_is_told_before_the_name() -> None:
    audit = pg.audit(make_function(clamped, lambda g, x: g.mul_(inside(x))), -2, 2, points=101)
    first, second = str(audit).splitlines()[1:3]
    assert first.startswith("  writes into the gradient that it is given: grad = ")
    assert second == '  except for that, the same as clamp(x, -1, 1, rule="zero", edge="closed")'
    for guard, text in (
        (lambda g: g.nan_to_num_(0.0), "grad = inf is 1.798e+308"),
        (lambda g: g.clamp_(-9, 9), "is 9"),
    ):
        audit = pg.audit(make_function(clamped, lambda g, x, guard=guard: guard(g)), -2, 2, points=101)  # type: ignore[misc]
        assert f"{text} afterwards" in audit.writes[0]


def test_a_gradient_that_depends_on_the_number_of_elements_has_no_name() -> None:
    for divide in (
        lambda g: g / g.numel(),
        lambda g: g + g.mean(),
        lambda g: g / g.abs().max(),
        lambda g: g * (1 + (len(g) > 40)),
    ):
        audit = pg.audit(make_function(clamped, lambda g, x, divide=divide: divide(g)), -2, 2, points=101)  # type: ignore[misc]
        assert (audit.rule, audit.element_wise.word) == (None, "no")


def _cubed(x: Tensor) -> Tensor:
    return x**3


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * grad * x * x  # type: ignore[no-any-return]


def test_double_backward_is_compared_with_the_gradient() -> None:
    for f, word in (
        (make_function(_cubed, lambda g, x: 3 * g * x * x), "consistent"),
        (make_function(_cubed, lambda g, x: (3 * g.float() * x.float() ** 2).to(g.dtype)), "consistent"),
        (lambda x: (x * x + 1e-12).sqrt(), "consistent"),
        (make_function(_cubed, lambda g, x: 3 * g * x * x.detach()), "inconsistent"),
        (make_function(_cubed, lambda g, x: (3 * g * x * x).detach()), "inconsistent"),
        (_Once, "refused"),
    ):
        audit = pg.audit(f, -2, 2)
        assert (audit.double_backward.word, audit.shares["grad > 0"]) == (word, {"exact": 1.0})
        if word == "inconsistent":
            assert audit.double_backward.share == pytest.approx(1, abs=0.01)


class _WrongForwardMode(torch.autograd.Function):
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


def test_forward_mode_and_vmap_are_compared_with_the_gradient() -> None:
    audit = pg.audit(_WrongForwardMode, -2, 2, points=101)
    assert (audit.forward_mode.word, audit.forward_mode.share, audit.vmap.word) == ("differs", 1, "agrees")
    old = pg.audit(make_function(clamped, inward), -2, 2, points=101)
    assert (old.forward_mode.word, old.vmap.word) == ("refused", "refused")
    new = pg.audit(lambda x: pg.clamp(x, -1, 1, rule="zero"), -2, 2, points=101)
    assert (new.forward_mode.word, new.vmap.word) == ("agrees", "agrees")


def test_half_precision_overflows_underflows_or_is_refused() -> None:
    def no_half(x: Tensor) -> Tensor:
        if x.dtype is torch.float16:
            raise TypeError("not in float16")
        return x * 2

    large = make_function(torch.tanh, lambda g, x: g * 1e5 * (1 - torch.tanh(x) ** 2) / 1e5)
    small = make_function(lambda x: x * 1.0, lambda g, x: g * 1e-9 * 1e9)
    for f, text in ((large, "overflows"), (small, "underflows"), (no_half, "refused: TypeError: not in float16")):
        audit = pg.audit(f, -1, 1, points=101)
        assert str(audit.float16).startswith(text)
        assert audit.bfloat16.word == "as float64"


def _spike(grad: Tensor, x: Tensor) -> Tensor:
    e = torch.exp(-25 * x)
    return grad * 25 * e / (e + 1) ** 2


def test_a_gradient_that_is_nan_or_another_one_in_float32_is_told() -> None:
    """float64 holds exp(125), float32 does not."""
    audit = pg.audit(make_function(lambda x: (x > 0).to(x), _spike), -5, 5, points=101)
    for answer in (audit.float32, audit.bfloat16):
        assert (answer.word, answer.detail[:28]) == ("overflows", "makes NaN, such as grad = 1 ")
    assert audit.rule_note.startswith("float32 makes NaN, such as grad = 1 at x = -5")
    doubled = make_function(torch.tanh, lambda g, x: g * (1 - x.tanh() ** 2) * (2 if x.dtype is torch.float32 else 1))
    audit = pg.audit(doubled, -2, 2, points=101)
    assert (audit.float32.word, audit.float16.word, audit.rule) == ("differs", "as float64", None)
    assert "gives another gradient instead of" in audit.float32.detail


def test_a_function_that_computes_in_float32_is_exact() -> None:
    for f, kinks in ((torch.tanh, []), (lambda x: (3 * x).clamp(0, 6), [0, 2]), (lambda x: x * 1, [])):
        for returned in (torch.float32, torch.float64):
            audit = pg.audit(lambda x, f=f, returned=returned: f(x.float()).to(returned), -2, 3, points=201)  # type: ignore[misc]
            assert [kink.low for kink in audit.kinks] == kinks
            assert set(audit.shares["grad > 0"]) <= {"exact", "flat"}
    # Most of it is constant, so few points show rounding.
    assert not pg.audit(lambda x: x.float().tanh().to(x.dtype), -12, 12).kinks


def _in_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (x.float().unsqueeze(-1) @ torch.ones(1, 1)).squeeze(-1)


HALF: dict[str, Any] = {
    "float16 of x": lambda x: torch.relu(x.half()).float() * 0.1,
    "bfloat16 of x": lambda x: x.bfloat16().sigmoid().to(x.dtype),
    "float16 of y": lambda x: x.tanh().half(),
    "bfloat16 of a matmul": _in_autocast,
    "float16 of the gradient": make_function(torch.tanh, lambda g, x: g * (1 - x.half().tanh() ** 2).to(g.dtype)),
}


@folded
@pytest.mark.parametrize("name", HALF)
def test_the_steps_of_half_precision_are_no_derivative(name: str) -> None:
    dtype = name.split()[0]
    with pytest.raises(
        ValueError, match=rf"f must not compute in {dtype}, got steps .*: the report has a line for {dtype}\.$"
    ):
        pg.audit(HALF[name], -3, 3, points=201)


@folded
@pytest.mark.parametrize("steps", [4, 10, 128, 256, 1000])
def test_steps_of_one_size_are_no_half_precision(steps: int) -> None:
    x = torch.linspace(-3, 3, 201, dtype=torch.float64)
    assert narrow_dtype_of(lambda x: (x * steps).round() / steps, x) is None


@pytest.mark.parametrize("refuses", [TypeError("no float64"), AssertionError()])
def test_a_function_that_refuses_float64_is_audited_in_float32(refuses: Exception) -> None:
    def clamp(x: Tensor) -> Tensor:
        if x.dtype is torch.float64:
            raise refuses
        return pg.clamp(x, -0.3, 1)

    audit = pg.audit(clamp, -2, 2, points=201)
    assert audit.rule == 'clamp(x, -0.3, 1, rule="inward", edge="closed")'
    assert audit.float32.word == "refuses float64, so all of this is measured in float32"
    assert audit.float16.word == "as float64"


def test_a_module_is_audited_in_float64_and_left_as_it_was() -> None:
    module = torch.nn.Sequential(torch.nn.PReLU(init=0.25), torch.nn.Hardtanh(-0.5, 0.5))
    audit = pg.audit(module, -4, 4)
    assert [kink.low for kink in audit.kinks] == [-2, 0, 0.5]
    assert all(p.dtype is torch.float32 and p.grad is None for p in module.parameters())
    assert (audit.float16.word, audit.name) == ("as float64", "Sequential")


def test_an_in_place_function_is_audited_wherever_gradients_are_off() -> None:
    with torch.no_grad():
        assert len(pg.audit(lambda x: x.clamp_(-1, 1), -2, 2).kinks) == 2
    with torch.inference_mode():
        assert pg.audit(torch.sin, -2, 2).shares["grad > 0"] == {"exact": 1.0}


def test_a_function_of_whole_tensors_is_audited_along_a_line() -> None:
    x, direction, weight = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def along(f: Callable[[Tensor], Tensor]) -> Audit:
        return pg.audit(lambda t: (f(x + t.unsqueeze(-1) * direction) * weight).sum(-1), -2, 2, points=33)

    right = along(lambda x: torch.softmax(x, dim=-1))
    assert (right.rule, right.shares["grad > 0"]) == (None, {"exact": 1.0})
    assert (right.linear.word, right.double_backward.word, right.forward_mode.word) == ("yes", "consistent", "agrees")
    wrong = along(lambda x: torch.softmax(x, -1) + 0.02 * (torch.softmax(x, -1).detach() - torch.softmax(x, -1)))
    assert wrong.shares["grad < 0"] == {"biased": 1.0}
    with pytest.raises(
        ValueError, match=r"along a line: lambda t: torch.stack\(\[f\(x \+ s \* direction\) for s in t\]\)"
    ):
        pg.audit(lambda x: x.square().mean(), -2, 2)
    loss = pg.audit(lambda t: torch.stack([(x + s * direction).square().mean() for s in t]), -2, 2, points=33)
    assert loss.shares["grad > 0"] == {"exact": 1.0}


def test_json_has_everything_and_only_plain_values() -> None:
    audit = pg.audit(Silu, -4, 4, points=101)
    plain = json.loads(json.dumps(audit.to_json(), allow_nan=False))
    assert (plain["kind"], plain["torch"]) == ("pseudograd audit", torch.__version__)
    assert plain["regions"][1]["positive"] == {"kind": "cut", "least": 0.0, "most": 0.0}
    assert plain["shares"] == audit.shares
    assert plain["not_finite"][0] == {"x": "nan", "grad": 1.0, "y": "nan", "grad_x": 0.0}
    assert plain["vmap"]["word"] == "refused"
    assert {*plain} == {"kind", "torch"} | {*vars(audit)} - {"curves"}


@pytest.mark.parametrize(("count", "last"), [(24, "b"), (25, "and 1 more"), (30, "and 6 more")])
def test_a_long_table_says_how_many_rows_are_left_out(count: int, last: str) -> None:
    region = SimpleNamespace(cells=lambda: ("b", "1", "1", "1"))
    lines = AuditRecord._table(SimpleNamespace(regions=[region] * count))  # type: ignore[arg-type]
    assert len(lines) == min(count, 24) + 1 + (count > 24)
    assert lines[-1].startswith(last)


def test_regions_of_one_kind_are_drawn_as_one_unless_a_kink_lies_between() -> None:
    parts = [(0, 1, "flat"), (1, 2, "cut"), (2, 3, "cut"), (3, 3, "cut"), (3, 4, "cut")]
    regions = [SimpleNamespace(low=low, high=high, positive=SimpleNamespace(kind=kind)) for low, high, kind in parts]
    drawn = merge_regions(SimpleNamespace(regions=regions), "positive")  # type: ignore[arg-type]
    assert drawn == [(0, 1, "flat"), (1, 3, "cut"), (3, 4, "cut")]


RANDOM = make_function(clamped, lambda g, x: g * torch.rand_like(x))


def test_bad_calls_get_the_written_errors() -> None:
    names = {"torch": torch, "pg": pg, "RANDOM": RANDOM, "math": math, "error_of": error_of}
    assert_written(Path(__file__).with_name("bad_audits.txt"), names)


@folded
@pytest.mark.parametrize("scale", slow_but([1e-200, 1e-7, 1e8, 5e307], [1e-200, 1e-20, 1e-7, 1.0, 1e8, 1e200, 5e307]))
def test_a_clamp_is_found_in_every_unit(scale: float) -> None:
    audit = pg.audit(lambda x: torch.clamp(x, -0.25 * scale, 0.25 * scale), -0.75 * scale, 0.75 * scale, points=101)
    assert [kink.low for kink in audit.kinks] == pytest.approx([-0.25 * scale, 0.25 * scale], rel=1e-12)
    for shares in audit.shares.values():
        assert shares == {"flat": pytest.approx(2 / 3), "exact": pytest.approx(1 / 3)}
    assert audit.rule is None or audit.rule.startswith("clamp(")


@folded
@pytest.mark.parametrize(("x", "y"), one_in(3, [1e-12, 1.0, 1e6], [1e-18, 1.0, 1e12, 1e250]))
def test_a_gradient_ten_times_too_large_is_biased_in_every_unit(x: float, y: float) -> None:
    f = make_function(lambda v: v * (y / x), lambda grad, v: grad * (10 * y / x))
    assert pg.audit(f, -3 * x, 3 * x, points=101).shares == {"grad > 0": {"biased": 1.0}, "grad < 0": {"biased": 1.0}}
    exact = pg.audit(lambda v: v * (y / x), -3 * x, 3 * x, points=101)
    assert exact.shares == {"grad > 0": {"exact": 1.0}, "grad < 0": {"exact": 1.0}}


@folded
@pytest.mark.parametrize(("dtype", "scale"), one_in(2, [torch.float32, torch.float64], [1e-3, 1.0, 1e3]))
def test_a_second_derivative_is_judged_in_every_unit_and_dtype(dtype: torch.dtype, scale: float) -> None:
    for f in (torch.tanh, torch.square):
        audit = pg.audit(lambda x, f=f: f(x.to(dtype) / scale), -2 * scale, 2 * scale, points=101)  # type: ignore[misc]
        assert audit.double_backward.word == "consistent"

    def backward(grad: Tensor, x: Tensor) -> Tensor:
        """cos without its own derivative."""
        return (grad * (x.to(dtype) / scale).cos().detach() / scale).double()

    wrong = make_function(lambda x: (x.to(dtype) / scale).sin(), backward)
    assert pg.audit(wrong, -2 * scale, 2 * scale, points=101).double_backward.word == "inconsistent"


@folded
@pytest.mark.parametrize("at", [0.0, 0.3003])
@pytest.mark.parametrize("scale", [0.04, 0.004])
def test_a_peak_between_two_points_is_drawn_to_its_top(scale: float, at: float) -> None:
    audit = pg.audit(lambda x: pg.heaviside(x - at, rule=rules.fast_sigmoid(scale=scale)), -1, 3)
    beside = ~torch.isin(audit.curves.x, torch.tensor([kink.low for kink in audit.kinks], dtype=torch.float64))
    for side in (audit.curves.positive, audit.curves.negative):
        assert side[beside].max().item() > 0.97
    assert audit.points < 1200
