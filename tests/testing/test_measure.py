"""The measurements that audit reports and the contract asserts, of functions whose answers are known."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.look.measure import measure, regions_of
from pseudograd.rule import OPS
from pseudograd.testing.contract import transforms
from pseudograd.testing.contract.cases import Case, cases_of
from pseudograd.testing.measure.behaviour import (
    SecondDerivative,
    _differ,
    _is_changed,
    count_talk,
    cross_talk,
    gradient_of,
    list_writes,
    second_order,
    underflow,
)
from pseudograd.testing.measure.gradients import additivity, gradient_by_backward_of_first
from pseudograd.testing.measure.inputs import DTYPES, random_pairs
from pseudograd.testing.measure.numeric import (
    STEEP,
    _resolution_between,
    _size,
    _slope_change,
    breaks,
    jumps_of,
    narrow_dtype_of,
    resolution_of,
    rounding_of,
    second_differences,
    short_decimal,
    simplest,
    slope_of,
    slopes_agree,
    smallest_distance,
)

from ..choices import folded
from ..look.functions import clamped, inside, make_function
from ..written import assert_written, shown

GRID = torch.linspace(-2, 2, 201, dtype=torch.float64)
EPS = torch.finfo(torch.float64).eps


def written_names() -> dict[str, Any]:
    measurements = breaks, resolution_of, slope_of, jumps_of, rounding_of, second_differences, narrow_dtype_of, simplest
    measurements += (
        smallest_distance,
        short_decimal,
        cross_talk,
        count_talk,
        underflow,
        second_order,
        measure,
        regions_of,
    )
    functions = *measurements, make_function, clamped, inside, shown
    grid = torch.arange(-128, 129, dtype=torch.float64) / 64  # exact: no number below depends on how linspace rounds
    return {"pg": pg, "torch": torch, "GRID": grid, "EPS": EPS} | {
        function.__name__: function for function in functions
    }


def test_measurements_are_written_out() -> None:
    assert_written(Path(__file__).with_name("numbers.txt"), written_names())


@pytest.mark.parametrize(
    ("f", "derivative"),
    [(torch.sin, torch.cos), (torch.exp, torch.exp), (lambda x: torch.sin(20 * x), lambda x: 20 * torch.cos(20 * x))],
    ids=["sin", "exp", "fast"],
)
def test_a_slope_is_the_derivative_and_its_error_says_how_far_it_is_off(
    f: Callable[[Tensor], Tensor], derivative: Callable[[Tensor], Tensor]
) -> None:
    measured = slope_of(f, GRID, torch.full_like(GRID, 5e-4), EPS)
    off = (measured.value - derivative(GRID)).abs()
    assert (off <= measured.error).all()
    assert (off <= 1e-8 * 20**5).all()
    narrow = slope_of(lambda x: f(x.float()), GRID, torch.full_like(GRID, 0.02), torch.finfo(torch.float32).eps)
    assert ((narrow.value - derivative(GRID)).abs() <= narrow.error).all()


def test_kinks_and_jumps_wherever_they_are() -> None:
    for place in (0.123456789, -1.0, 0.0, GRID[70].item(), 0.5 * (GRID[10] + GRID[11]).item(), 1 / 3):
        kink = breaks(lambda x, place=place: 5 + (x - place).abs(), GRID, EPS)  # type: ignore[misc]
        assert not kink.is_jump.any()
        assert (kink.low <= place + 1e-7).all()
        assert (kink.high >= place - 1e-7).all()
        assert (kink.left + 1).abs().max() < 1e-6
        assert (kink.right - 1).abs().max() < 1e-6
        jump = breaks(lambda x, place=place: (x > place).double() - 0.5 - place + x, GRID, EPS)  # type: ignore[misc]
        assert jump.is_jump.all()
        assert (jump.low == place).all() or place == 0
        assert (jump.left - 1).abs().max() < 1e-6


def test_a_kink_is_found_wherever_it_lies_in_a_cell() -> None:
    """At random places, and at all sixteenths of a cell, where its halves, their halves and so on begin."""
    generator = torch.Generator().manual_seed(0)
    random = torch.rand(16, dtype=torch.float64, generator=generator) * 3 - 1.5
    inner = GRID[100] + (GRID[101] - GRID[100]) * torch.linspace(0, 1, 17, dtype=torch.float64)
    for place in torch.cat([random, inner]).tolist():
        measured = breaks(lambda x, place=place: torch.sin(3 * x) + 0.05 * (x - place).relu(), GRID, EPS)  # type: ignore[misc]
        assert len(measured.low) in (1, 2), place
        assert ((measured.low - 1e-7 <= place) & (place <= measured.high + 1e-7)).all(), place


def test_what_is_smooth_has_no_breaks() -> None:
    for f in (torch.sin, lambda x: torch.sigmoid(40 * x), lambda x: torch.sin(60 * x), lambda x: x**5):
        assert len(breaks(f, GRID, EPS).low) == 0
    eps = torch.finfo(torch.float32).eps
    assert len(breaks(lambda x: 1e3 + torch.sin(x.float()), GRID, eps).low) == 0  # steps of rounding alone


def test_a_slope_changes_by_what_is_more_than_the_bend() -> None:
    """Of x^2, of |x|, where there is no value, and of a cell without a width."""

    def change(*numbers: float) -> float:
        """numbers: low, f(low) and the slope there; high, f(high) and the slope there; and the bend."""
        return _slope_change(*(torch.tensor([number], dtype=torch.float64) for number in numbers)).item()

    assert change(1, 1, 2, 3, 9, 6, 2) == 0
    assert change(-1, 1, -1, 2, 2, 1, 0) == pytest.approx(2 + 2 / 3)  # the mean slope is 1/3
    assert change(0, math.nan, 1, 1, 1, 1, 0) == 0
    assert change(2, 5, 1, 2, 5, 1, 0) == 2  # the mean slope is 0


def test_what_computes_in_float32_has_the_breaks_of_float32() -> None:
    def narrow(x: Tensor) -> Tensor:
        return x.float().clamp(-0.7, 0.3)

    eps = resolution_of(narrow, GRID)
    assert eps == torch.finfo(torch.float32).eps
    measured = breaks(narrow, GRID, eps)
    assert {round((a + b) / 2, 2) for a, b in zip(measured.low.tolist(), measured.high.tolist(), strict=True)} == {
        -0.7,
        0.3,
    }


def test_jumps_are_between_two_neighbouring_numbers() -> None:
    low, high = jumps_of(lambda x: torch.where(x <= 1 / 3, 0.0, 2.0) + torch.sin(x), GRID)
    assert low.tolist() == [1 / 3]
    assert high.tolist() == [math.nextafter(1 / 3, 1)]
    assert len(jumps_of(torch.exp, GRID)[0]) == 0
    assert jumps_of(lambda x: torch.where(x <= 1 / 3, 1.0, 1.0 + 0.9 * STEEP), GRID)[0].numel() == 0
    assert jumps_of(lambda x: torch.where(x <= 1 / 3, 1.0, 1.0 + 1.1 * STEEP), GRID)[0].tolist() == [1 / 3]


@pytest.mark.parametrize("side", [-1, 1])
def test_a_jump_to_where_rounding_does_as_much_is_none(side: int) -> None:
    """The last digits of x make half of the jump, on one side of it."""

    def noisy(x: Tensor) -> Tensor:
        return torch.where(side * x > side / 3, 2 + 0.5 * torch.sin(1e17 * x), 0.0)

    assert len(jumps_of(noisy, GRID)[0]) == 0


def test_second_differences_are_taken_over_five_steps() -> None:
    x = torch.tensor([-3.0, 0.0, 2.0], dtype=torch.float64)
    assert second_differences(torch.square, x, x.new_tensor(0.01)).tolist() == pytest.approx([2 * 0.059**2] * 3)
    for share in (0.37, 0.73, 1.3, 2.6, 5.9):  # over this one the cosine goes from its top to its bottom
        measured = second_differences(lambda x, share=share: torch.cos(math.pi / share * x), x[1:2], x.new_ones(1))  # type: ignore[misc]
        assert measured.item() == pytest.approx(4, abs=1e-6)
    assert second_differences(lambda x: x / 0, x, x.new_ones(3)).tolist() == [0, 0, 0]
    assert rounding_of(torch.square, x, 0.01).tolist() == pytest.approx([2 * (0.059 * a) ** 2 for a in (3, 0, 2)])


def test_the_distance_that_is_near_the_size_of_rounding_and_slopes_that_agree() -> None:
    assert smallest_distance(2.0**-52, -1.0, 3.0) == 2.0**-26 * 4 + 256 * 2.0**-52 * 3
    assert smallest_distance(2.0**-52, -3.0, 1.0) == smallest_distance(2.0**-52, -1.0, 3.0)
    x, y, slope = (torch.tensor(numbers) for numbers in ([2.0, -2.0, 2.0], [-3.0, 5.0, 0.0], [0.5, math.nan, -4.0]))
    assert _size(x, y, slope).tolist() == pytest.approx([4 + 1e-6, 5 + 1e-6, 8 + 1e-6])
    assert [slopes_agree(-1.0, -1.0 + off) for off in (0.0019, -0.0019, 0.0021, -0.0021)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.2999999, 0.3000001, 0.3),
        (0.0, 0.1, 0),
        (0.06, 0.1, 0.1),
        (-1e-20, 1e-21, 0),
        (1.0, math.nextafter(1, 2), 1),
        (1 / 3, 1 / 3, 1 / 3),
    ],
)
def test_the_simplest_number(low: float, high: float, expected: float) -> None:
    assert simplest(low, high) == expected


@pytest.mark.parametrize(
    ("middle", "apart", "size", "expected"),
    [
        (0.3, 1e-16, 1.0, 0.3),
        (-12.5, 0.0, 20.0, -12.5),
        (1 / 3, 1e-9, 1.0, 0.333333333),  # no decimal is short for these: the simplest from low to high
        *((0.3 + off * EPS, 0.0, 1.0, 0.3 if abs(off) <= 4 else 0.3 + off * EPS) for off in (-4.5, -4, 4, 4.5)),
        (3e-16, 1e-17, 1.0, 0.0),
        (2e-15, 1e-17, 1.0, 2e-15),
        (2e-15, 1e-17, 5.0, 2e-15),  # a size above 1 counts as 1
        (2e-15, 1e-17, 0.01, 2e-15),
    ],
)
def test_the_number_that_a_person_wrote(middle: float, apart: float, size: float, expected: float) -> None:
    assert short_decimal(middle - apart / 2, middle + apart / 2, size) == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_neighbours_that_a_narrower_dtype_tells_apart_have_its_resolution(dtype: torch.dtype) -> None:
    """The jump of a function that computes in it is at its number, and the next one of float64 is rounded to it."""
    at = torch.tensor(0.3, dtype=dtype)
    low, high = at.item(), torch.nextafter(at, at + 1).item()
    while math.nextafter(low, 1) != high:
        middle = (low + high) / 2
        low, high = (middle, high) if torch.tensor(middle, dtype=torch.float64).to(dtype) == at else (low, middle)
    assert _resolution_between(low, high) == torch.finfo(dtype).eps
    assert _resolution_between(at.item(), math.nextafter(at.item(), 1)) == EPS
    assert short_decimal(low, high, 0.1) == 0.3


def test_cross_talk_is_seen_at_the_elements_that_have_it() -> None:
    x, grad = torch.linspace(-1, 1, 9, dtype=torch.float64), torch.linspace(1, 2, 9, dtype=torch.float64)
    for f, values, gradients in (
        (torch.sin, 0, 0),
        (lambda x: torch.softmax(x, 0), 9, 9),
        (lambda x: x - x.mean().detach(), 9, 0),
        (lambda x: x + (x.mean() - x.mean().detach()), 0, 9),
    ):
        measured = cross_talk(f, x, grad)
        assert (int(measured.of_values.sum()), int(measured.of_gradients.sum())) == (values, gradients)


def test_what_depends_on_the_number_of_elements_is_seen() -> None:
    x, grad = torch.linspace(-1, 1, 9, dtype=torch.float64), torch.linspace(1, 2, 9, dtype=torch.float64)
    for f, values, gradients in (
        (torch.sin, 0, 0),
        (lambda x: x / len(x), 8, 9),  # 0 / 9 is 0 / 5
        (lambda x: x + (x - x.detach()) / x.numel(), 0, 9),
    ):
        measured = count_talk(f, x, grad)
        assert (int(measured.of_values.sum()), int(measured.of_gradients.sum())) == (values, gradients)


def test_what_changed_and_what_differs() -> None:
    before, after = torch.tensor([1.0, math.nan, 1.0, math.nan]), torch.tensor([1.0, 1.0, math.nan, math.nan])
    assert _is_changed(before, after).tolist() == [False, True, True, False]
    a, eps = torch.tensor([1.0, 1.0, math.nan, math.nan, 1.0]), torch.finfo(torch.float32).eps
    assert _differ(a, a * torch.tensor([1 + 63 * eps, 1 - 65 * eps, 1, math.nan, math.nan])).tolist() == [
        *(False, True, False, False, False)
    ]


def test_gradients_for_two_grads_and_for_their_sum_at_finite_inputs() -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, 2.0], dtype=torch.float64)
    for size in (1.0, 4.0):
        ((a, b, both),) = additivity(lambda x: x.square() / 2, (x,), x.shape, size)
        assert a.tolist() == [
            size * grad / 8 * at for grad, at in zip((-15.5, -5.5, 5.5, 16.5), (4, -4, 0.5, 2), strict=True)
        ]
        assert (b.tolist(), both.tolist()) == ((-3 * a).tolist(), (-2 * a).tolist())
    assert additivity(lambda x, bound: x * 2, (x, x), x.shape)[1:] == []  # what gets no gradient is left out


def test_the_gradient_of_the_first_input_alone() -> None:
    x, other, grad = torch.ones(2), torch.full((2,), 3.0), torch.tensor([1.0, -2.0])
    (grad_x,) = gradient_by_backward_of_first(torch.mul, (x, other), grad)
    assert grad_x.tolist() == [3, -6]
    for f in (lambda x, other: other * 2, lambda x, other: other.requires_grad_() * 2):
        assert gradient_by_backward_of_first(f, (x, other.clone()), grad) == [None]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_pairs_are_near_the_range_and_of_every_size(dtype: torch.dtype) -> None:
    (x, bound, number), grad = random_pairs((torch.zeros(3), torch.tensor([1.0, 2.0, 3.0]), 0.5), dtype)
    assert x.shape == bound.shape == grad.shape == (256,)
    assert (x.dtype, grad.dtype, number) == (dtype, dtype, 0.5)
    assert bound.tolist() == ([1, 2, 3] * 86)[:256]
    assert 1.5 < x[:128].double().std() < 2.5
    info = torch.finfo(dtype)
    for values in (x[128:], grad):
        sizes = values.double().abs()
        assert sizes.nan_to_num(0, 0).max() > info.max**0.5
        assert sizes[sizes > 0].min() < info.tiny**0.5
        assert set(values.sign().nan_to_num().unique().tolist()) >= {-1.0, 1.0}
    assert x[128:].nan_to_num().tolist() != grad[:128].nan_to_num().tolist()


def _wipe(x: Tensor) -> Tensor:
    x.detach().clamp_(-1, 1)
    return x * 1


WRITES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "an op": (torch.relu, ""),
    "a gradient that is passed on": (make_function(torch.round, lambda g, x: g), ""),
    "a gradient of its own": (make_function(torch.round, lambda g, x: (g * 2).mul_(inside(x))), ""),
    "a copy": (lambda x: x.clone().clamp_(-1, 1), ""),
    "an op in place": (lambda x: x.clamp_(-1, 1), "its input: x = "),
    "its input": (_wipe, "its input: x = "),
    "grad": (make_function(clamped, lambda g, x: g.mul_(inside(x))), "the gradient that it is given: grad = "),
    "x in backward": (make_function(torch.square, lambda g, x: x.mul_(2) * g), "its input in backward: x = "),
    "y in backward": (make_function(torch.tanh, lambda g, x: g, lambda y: y.zero_()), "its y: y = "),
    "what it saved": (lambda x: make_function(torch.square, lambda g, x: x.mul_(2) * g)(x * 1), "what it saved"),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_into_what_belongs_to_others_is_seen(name: str) -> None:
    f, expected = WRITES[name]
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)
    writes = list_writes(f, x)
    assert (len(writes), "".join(writes)[: len(expected)]) == (bool(expected), expected)
    assert torch.equal(x, torch.linspace(-2, 2, 9, dtype=torch.float64))


def test_underflow_of_the_product_and_of_nothing_else() -> None:
    def product(x: Tensor) -> Tensor:
        clamped = x.detach().clamp(-1, 1)
        y = x.clone()
        y.register_hook(lambda grad: grad * (grad * (x.detach() - clamped) >= 0))
        return y + (clamped - x.detach())

    def whole(x: Tensor) -> Tensor:
        return pg.clamp(x, -1, 1)

    x = torch.tensor([-1.5, -1.01, 0.5, 1.01, 1.5], dtype=torch.float64)
    for dtype in (torch.float16, torch.bfloat16):
        broken, right = (underflow(f, whole, x, dtype, [-1, 1]) for f in (product, whole))
        assert broken.leaks.any()
        assert not broken.lost.any()
        outward = ((broken.x > 1) & (broken.grad < 0)) | ((broken.x < -1) & (broken.grad > 0))
        assert not (broken.leaks & ~outward).any()
        assert torch.equal(broken.narrow[broken.leaks], broken.grad[broken.leaks])
        assert not (right.leaks | right.lost | right.overflows).any()
    small = underflow(lambda x: x * 1e-6, lambda x: x * 1e-6, x, torch.float16)
    assert not small.lost.any()  # what the dtype cannot hold is not lost


@pytest.mark.parametrize(("factor", "overflowing"), [(1.0, [0.3, 1.0]), (1.5, [0.3]), (0.5, [0.3, 1.0])])
def test_overflow_is_told_where_grad_and_result_are_at_most_one(factor: float, overflowing: list[float]) -> None:
    measured = underflow(lambda x: x * math.inf, lambda x: x * factor, torch.tensor([0.5]), torch.float16)
    large = measured.grad[measured.overflows & (measured.grad > 0.1)]
    torch.testing.assert_close(large, torch.tensor(overflowing, dtype=torch.float16))


def test_second_derivatives_of_a_gradient() -> None:
    x, grad = torch.linspace(-1, 1, 21, dtype=torch.float64), torch.full((21,), -2.0, dtype=torch.float64)
    by_x, by_grad = second_order(torch.sin, x, grad, 1e-6)
    assert torch.allclose(by_x.value, 2 * torch.sin(x))
    assert torch.allclose(by_grad.value, torch.cos(x))
    assert not (by_x.wrong | by_grad.wrong).any()
    wrong, _ = second_order(lambda x: torch.sin(x.detach()) + torch.cos(x.detach()) * (x - x.detach()), x, grad, 1e-6)
    assert torch.equal(wrong.wrong, x.abs() > 1e-3)
    assert torch.equal(gradient_of(torch.relu, x, -2.0), torch.where(x > 0, -2.0, 0.0))


def test_second_derivatives_are_off_by_what_is_rounded() -> None:
    x, grad = torch.tensor([-3.0, 0.5, 2.0], dtype=torch.float64), torch.full((3,), -2.0, dtype=torch.float64)
    step = 1e-6 * (1e-10 / EPS) ** (1 / 3)
    for f, sizes in ((lambda x: 3 * x, [6, 6, 6]), (torch.square, [24, 4, 16])):  # |grad_x| + |x| times its slope
        by_x, by_grad = second_order(f, x, grad, 1e-6, eps=1e-10, scale=2.0)
        assert by_x.error.tolist() == pytest.approx([16e-10 * size / (2 * step) for size in sizes], rel=1e-3)
        slopes = gradient_of(f, x, grad).abs().tolist()
        assert by_grad.error.tolist() == pytest.approx([16e-10 * size / step for size in slopes])
        assert max(second.error.max() for second in second_order(f, x, grad, 1e-6)) < 1e-6
    # At x = 2e-4 the slope of |x| changes within the step.
    assert not second_order(lambda x: x * x.abs(), x.new_tensor([2e-4]), grad[:1], 1e-3)[0].is_known


def test_a_second_derivative_is_wrong_beyond_its_error() -> None:
    expected, error = torch.tensor([-3.0]).double(), torch.tensor([0.25]).double()
    for off, is_wrong in ((0.99, False), (1.01, True), (math.nan, True)):
        for sign in (-1, 1):
            second = SecondDerivative(expected + sign * (0.25 + off * 5e-4), expected, torch.tensor([True]), error, 2.0)
            assert second.wrong.item() == is_wrong
            assert not second._replace(is_known=torch.tensor([False])).wrong


@folded
@pytest.mark.parametrize("name", OPS)
def test_no_op_has_cross_talk(name: str) -> None:
    for case in cases_of(OPS[name]):
        if not case.parameters and not case.maximize and case.edge in (case.op.default_edge, None):
            transforms.check_element_wise(case, case.samples()[0])


def test_the_check_for_cross_talk_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = cases_of(OPS["reverse_grad"])
    monkeypatch.setattr(Case, "__call__", lambda self, x, *others: x + 0.5 * (x.mean() - x.mean().detach()))
    with pytest.raises(AssertionError, match="cross-talk of_gradients at x = "):
        transforms.check_element_wise(case, case.samples()[0])
