"""The kernels in C give the formula's numbers, for every processor, dtype, layout and bound, and plain ATen's planes bit for bit."""

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd import engine, kernels
from pseudograd.geometry import SHARES, Interval
from pseudograd.kernels import bits, native, table
from pseudograd.kernels.residuals import INPUTS
from pseudograd.rewrite.edges import PINNED, rule_named
from pseudograd.rule import OPS, PRIMITIVES, Call, call_for
from pseudograd.torch_table.eras import ERAS

from ..choices import folded, one_in
from .ways import (
    DTYPES,
    FOR_EVERYTHING,
    LAYOUTS,
    RULES_WITH_A_CODE,
    SIZES,
    Problem,
    assert_ways_agree,
    codes_from,
    every_combination,
    needs_native,
    numbers,
    same_bits,
)

pytestmark = needs_native
HOW: list[tuple[Any, Any]] = [(pg.rules.leaky_inward(low=1.0, high=0.5), "closed")]  # x below has the code of x inside
HOW += [(rule, edge) for rule in RULES_WITH_A_CODE for edge in OPS["clamp"].edges]
PINS = [rule_named(edge, era) for edge in (*ERAS, *SHARES) for era in ERAS if edge not in ERAS or edge == era]
BOUNDS = [
    *((-1.0, 1.0), (None, 1.0), (-1.0, None), (0.0, None), (None, -0.0), (0.5, 0.5)),
    *((-torch.inf, 1.0), (0.1, torch.inf), (None, 0.3), (None, -torch.inf)),
]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def ways_at(level: int) -> tuple[str, ...]:
    """The plain formula on codes is the same on every processor."""
    return ("native", "native code", "code") if level == 0 else ("native", "native code")


class Kind(NamedTuple):
    """A function of torch, and which of x, min and max it gets."""

    name: str
    takes: tuple[bool, bool, bool]

    def call(self, pin: str, has_numbers: bool = False) -> Call:
        pinned = PINNED[f"torch.{self.name}"]
        return call_for(PRIMITIVES[pinned[0] if has_numbers else pinned[1]], pin)

    def inputs(self, *values: Tensor) -> tuple[Tensor | None, ...]:
        """fmin and fmax take two, the others three."""
        chosen = tuple(value if takes else None for value, takes in zip(values, self.takes, strict=True))
        return tuple(value for value in chosen if value is not None) if self.name in ("fmin", "fmax") else chosen


BOTH, X_AND_MIN, X_AND_MAX = (True, True, True), (True, True, False), (True, False, True)
KINDS = {
    "two tensors": Kind("clamp", BOTH),
    "a min": Kind("clamp", X_AND_MIN),
    "a max": Kind("clamp", X_AND_MAX),
    "clamp_min": Kind("clamp_min", X_AND_MIN),
    "clamp_max": Kind("clamp_max", X_AND_MAX),
    "fmin": Kind("fmin", X_AND_MAX),
    "fmax": Kind("fmax", X_AND_MIN),
}


def assert_planes_are_the_plain_ones(call: Call, inputs: tuple[object, ...], wants: tuple[bool, ...]) -> bool:
    """So one pass may be the kernel's and the other the plain formula's. False where the call keeps no code."""
    with codes_from(FOR_EVERYTHING):
        if kernels.residual_of(call, inputs, wants) is not bits.BITS:
            return False
        y, (planes, *others) = bits.BITS.encode(call, inputs, wants)
        our_y, (our_planes, *our_others) = kernel_in_c().forward(call, inputs, wants)
    assert same_bits(our_y, y)
    assert torch.equal(our_planes, planes)
    assert our_others == others
    assert planes.nbytes == bits.BITS.nbytes(call, inputs, wants)
    return True


def kernel_in_c() -> kernels.Kernel:
    (kernel,) = (kernel for kernel in table._kernels if kernel.name == "native" and kernel.residual is bits.BITS)
    return kernel


# --- between numbers --------------------------------------------------------------------------------------------------


def clamp_in_place(call: Call, x: Tensor, low: object, high: object) -> Tensor:
    """On a copy of x that is no leaf."""
    copy = x * 1
    version = copy._version
    assert engine.run_in_place(call, copy, low, high) is copy
    assert copy._version > version
    return copy


def _clamp(call: Call, x: Tensor, low: object, high: object) -> Tensor:
    return pg.clamp(x, low, high, rule=call.rule.name, edge=call.edge, maximize=call.maximize)


@every_dtype
def test_between_numbers(dtype: torch.dtype, level: int) -> None:
    calls = [call_for(OPS["clamp"], *how, maximize) for how in HOW for maximize in (False, True)]
    calls += [KINDS["two tensors"].call(pin, has_numbers=True) for pin in PINS]
    problems, has_planes = [], 0
    for number, call in enumerate(calls[(level + 3 * DTYPES.index(dtype)) % 6 :: 6]):
        x, grad = numbers(dtype, SIZES[number % len(SIZES)])
        x = torch.cat([x, x.new_full((5,), 0.3)])  # exactly at a bound
        grad = torch.cat([grad, grad.new_tensor([1.0, -2.0, torch.inf, torch.nan, 0.0])])
        of_torch = call.rule.find_range is not None
        grad = grad + 0.0 if of_torch else grad  # of a gradient -0.0 a blocked zero may have either sign
        start = number + DTYPES.index(dtype) // 2  # so that another dtype has the other f
        for position, bounds in enumerate(BOUNDS[number % 2 :: 2], start):
            f = partial((engine.run if of_torch else _clamp, clamp_in_place)[position % 2], call)
            problems.append(Problem((call.label, call.edge, bounds), f, (x, *bounds), grad, is_exact=of_torch))
            has_planes += assert_planes_are_the_plain_ones(call, (x, *bounds), bits.X_ALONE)
    assert has_planes > len(problems) // 2
    assert_ways_agree(problems, ways_at(level))


@every_dtype
@pytest.mark.parametrize("flushes", [False, True])
def test_elastic_reads_x_and_rounds_at_every_step_as_the_formula_does(
    dtype: torch.dtype, level: int, flushes: bool, calls: list[str]
) -> None:
    between = [bounds for bounds in BOUNDS if None not in bounds] + [(0.0, 1.0), (-0.7, 3e4), (-1e-300, 1e-300)]
    torch.set_flush_denormal(flushes)
    try:
        assert_ways_agree(
            [
                Problem(
                    (bounds, width),
                    partial(pg.clamp, rule=pg.rules.elastic(width), maximize=maximize),
                    (x, *bounds),
                    grad,
                )
                for (bounds, maximize), size, width in zip(
                    itertools.product(between, (False, True)),
                    itertools.cycle(SIZES),
                    itertools.cycle((0.25, 1e-3, 3e4)),
                )
                for x, grad in [numbers(dtype, size)]
            ],
            ways=["native"],
        )
    finally:
        torch.set_flush_denormal(False)
    assert "pull_x" in calls


@folded
@pytest.mark.parametrize(("layout", "layout_of_grad"), one_in(2, LAYOUTS, [*LAYOUTS, "expanded"]))
def test_layouts(layout: str, layout_of_grad: str) -> None:
    """Of x and of grad, recording, in place and with nothing kept."""
    flat_x, flat_grad = numbers(torch.float32, 840)
    x = LAYOUTS[layout](flat_x.reshape(2, 3, 4, -1))
    grad = torch.empty(x.shape).copy_(flat_grad.reshape(x.shape))
    if layout_of_grad == "expanded":
        grad = torch.tensor(0.5).expand(x.shape)
    elif "sizes of one" not in layout_of_grad and "slice" not in layout_of_grad:
        grad = LAYOUTS[layout_of_grad](grad)
    hows = (("inward", "closed"), ("leaky", "half"), ("sign", "open"), ("identity", "closed"))
    calls = [call_for(OPS["clamp"], *how) for how in hows]
    functions = (_clamp, clamp_in_place) if layout_of_grad in ("expanded", layout) else (_clamp,)
    assert_ways_agree(Problem(call.label, partial(f, call), (x, -1.0, 1.0), grad) for call in calls for f in functions)


@folded
@every_dtype
@pytest.mark.parametrize("slope", [1e-3, 0.1, 1.0009765625, 3.0])
def test_every_product_is_rounded_as_torch_rounds_it(slope: float, dtype: torch.dtype, level: int) -> None:
    """Every number of a half precision as grad: subnormal and overflowing products among them."""
    half = dtype if dtype.itemsize == 2 else torch.bfloat16
    grad = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(half).to(dtype)
    f = partial(pg.clamp, rule=pg.rules.leaky(slope), edge="half")
    assert_ways_agree([Problem(slope, f, (torch.full_like(grad, 2.0), -1.0, 1.0), grad)], ["native", "native code"])


# --- between tensors --------------------------------------------------------------------------------------------------

SHAPES = [(), (3, 1, 1), (4, 1), (5,), (2, 3, 4, 5), (1,), (2, 1, 1, 1)]


def _problems_between_tensors(dtype: torch.dtype, shift: int) -> Iterator[tuple[Tensor, ...]]:
    """x, min, max and grad, in other shapes and layouts from one to the next."""
    flat_x, flat_grad = numbers(dtype, 120)
    values = torch.tensor([-1.0, 0.5, torch.nan, -torch.inf, 0.0, 1.0, 3.0], dtype=dtype)  # some cross
    layouts = list(LAYOUTS.values())[:4]
    for number in itertools.count(shift):
        if number % 3 == 0:
            yield tuple(column[-[4096, *SIZES][number % 6] :] for column in every_combination(dtype))
        shape = torch.Size(SHAPES[number % len(SHAPES)])
        low, high = (values.repeat(120)[start : start + shape.numel()].reshape(shape) for start in (0, 3))
        yield layouts[number % 4](flat_x.reshape(2, 3, 4, 5)), low, high, flat_grad.reshape(2, 3, 4, 5)


@every_dtype
def test_between_tensors(dtype: torch.dtype, level: int) -> None:
    """Of every function of torch, with bounds that are learned and bounds that are not."""
    shift = level + 3 * DTYPES.index(dtype)
    clamps = [call_for(OPS["clamp"], *how) for how in HOW]
    calls = [(kind, call) for kind in list(KINDS.values())[:3] for call in clamps if call.edge != "inward"]
    calls += [(kind, kind.call(pin)) for kind in KINDS.values() for pin in PINS]
    problems, has_planes = [], 0
    for (kind, call), (*values, grad) in zip(calls[shift % 6 :: 6], _problems_between_tensors(dtype, shift)):  # noqa: B905
        inputs = kind.inputs(*values)
        every = tuple(value is not None for value in inputs)
        x_alone = (True, *[False] * (len(inputs) - 1))
        is_exact = call.rule.find_range is not None and grad.dim() == 1
        for wants in {every, x_alone, every if shift % 2 else (False, *every[1:])}:
            f = partial(engine.run, call)
            problems.append(Problem((kind, call.label, call.edge), f, inputs, grad, wants, is_exact))
            has_planes += assert_planes_are_the_plain_ones(call, inputs, wants)
    assert has_planes > len(problems) // 4
    assert_ways_agree(problems, ways_at(level))


@folded
@every_dtype
def test_values_between_tensors(dtype: torch.dtype, level: int) -> None:
    """Every triple of special values: x along a row, its bounds a single number for the row; torch alone decides where zeros differ."""
    special = numbers(dtype, 256)[0].unique()
    for zeros in ([0.0], [-0.0], [0.0, -0.0]):
        values = torch.cat([special[special != 0], torch.tensor(zeros * 4, dtype=dtype)])
        x, low, high = (t.permute(1, 2, 0).contiguous() for t in torch.meshgrid(values, values, values, indexing="ij"))
        ours = native.operators.clamp_between(x, low[..., :1], high[..., :1])
        assert ours.numel() == 0 if len(zeros) == 2 else same_bits(ours, torch.clamp(x, low, high))


def test_one_pair_of_zeros_is_enough_and_crossed_bounds_have_them_too() -> None:
    for position in (0, 63, 64, 4999):
        for values in ((-0.0, 0.0, 1.0), (0.0, -1.0, -0.0), (-3.0, 0.0, -0.0), (3.0, -0.0, 0.0)):
            tensors = torch.full((5000,), -3.0), torch.full((5000,), -1.0), torch.ones(5000)
            for tensor, value in zip(tensors, values, strict=True):
                tensor[position] = value
            y = pg.clamp(tensors[0].clone().requires_grad_(), *tensors[1:]).detach()
            assert same_bits(y, torch.clamp(*tensors))


@every_dtype
def test_values_beside_one_bound_are_torchs_own_bit_for_bit(dtype: torch.dtype, level: int) -> None:
    """Zeros of both signs, and NaN on both sides, which fmax and fmin see otherwise; and the memory in torch's order."""
    x, bound, *_ = every_combination(dtype)
    without_zeros = (x != 0) & (bound != 0)
    images = [torch.randn(2, 3, 40, 40).to(dtype, memory_format=f) for f in (torch.contiguous_format, torch.channels_last)]  # fmt: skip
    shapes = ((3, 1, 1), (2, 3, 40, 40), (40,), ())
    pairs = [(x, bound), (x[without_zeros], bound[without_zeros])]
    pairs += [(image, torch.full(shape, 0.5, dtype=dtype)) for image in images for shape in shapes]
    for f in (torch.clamp_min, torch.clamp_max, torch.clamp, torch.fmax, torch.fmin):
        for values, beside in pairs:
            expected = f(values, beside)
            with pg.pin_edge("half"):
                for _ in range(2):  # the second is prepared
                    y = f(values.clone().requires_grad_(), beside).detach()
                    assert same_bits(y, expected)
                    assert y.stride() == expected.stride()


# --- what C declines, and what a row says -----------------------------------------------------------------------------


def test_the_kernels_decline_bounds_that_they_cannot_read() -> None:
    """Of another dtype, larger than x, beside a number; numbers that are crossed, NaN or too large; an edge that reads grad."""
    x, (small,) = torch.linspace(-2, 2, 5000), [torch.linspace(-2, 2, 5000).requires_grad_()]
    of_numbers, of_tensors = (KINDS["two tensors"].call(PINS[0], has_numbers) for has_numbers in (True, False))
    for call, bounds in (
        *((of_numbers, pair) for pair in ((1.0, -1.0), (torch.nan, 1.0), (None, 1e300), (10**400, None), (x, 1.0))),
        *((of_tensors, pair) for pair in ((x.double(), x.double()), (x, x.expand(2, -1)), (x, x.to_sparse()))),
        (of_tensors, (x, x.to("meta"))),
    ):
        assert kernels.residual_of(call, (x, *bounds), bits.X_ALONE) is INPUTS
    wide = torch.zeros(2, 5000)
    assert torch.autograd.grad(engine.run(of_tensors, small, wide, wide + 1).sum(), small)[0].shape == (5000,)
    with pytest.raises(RuntimeError, match="overflow"):
        engine.run(of_numbers, small.half(), None, 1e6)
    reads_grad = call_for(OPS["clamp"], "zero", "inward")
    assert native._pull_inputs(native.operators, x, [x, x, x], (True, True, True), reads_grad) is None


def test_a_code_has_as_many_bits_as_it_must() -> None:
    planes = {}
    for (kind, of), pin, is_learned in itertools.product(KINDS.items(), PINS, (False, True)):
        inputs = of.inputs(*[torch.zeros(1)] * 3)
        wants = tuple(position == 0 or (is_learned and value is not None) for position, value in enumerate(inputs))
        code = bits.find_code(of.call(pin), inputs, wants)
        planes[kind, pin, is_learned] = code.planes
    assert {count for (_, _, is_learned), count in planes.items() if not is_learned} == {1, 2}
    assert {count for (kind, _, is_learned), count in planes.items() if is_learned and kind != "two tensors"} == {1, 2}
    assert max(planes.values()) == 3
    assert bits.least_elements == 4096


def test_a_code_between_0_and_1_is_not_that_of_the_only_bound_1() -> None:
    """In a key of a memory, 0.0 and 1.0 are equal to False and True."""
    x = torch.tensor([-torch.inf, -1.0, 0.5, 1.0, 2.0]).repeat(20_000).requires_grad_()
    for low in (0.0, None):
        y = pg.clamp(x, low, 1.0, rule="zero", edge="half")
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert grad[:5].tolist() == [0.0 if low == 0.0 else 1.0] * 2 + [1.0, 0.5, 0.0]


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_share_the_work(threads: int) -> None:
    """More elements than are worth one thread; the last thread's share ends inside a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, grad = numbers(torch.float32, 200_003)
        assert_ways_agree(
            [
                Problem(bounds, pg.clamp, (laid, *bounds), grad)
                for laid in (x, torch.stack([x, x], -1)[:, 0])
                for bounds in ((-1.0, 1.0), (torch.tensor(-1.0), torch.linspace(0, 1, 200_003)))
            ],
            ways=["native", "native code"],
        )
    finally:
        torch.set_num_threads(before)


# --- few bits, and the slopes of steps --------------------------------------------------------------------------------

STEPS = [
    *(partial(f, rule=pg.rules.fewbit(bits=bits)) for f in (pg.gelu, pg.silu) for bits in (2, 3)),
    *(partial(pg.ops.leaky_relu, negative_slope=slope) for slope in (0.25, -0.5)),
    *(pg.ops.hardsigmoid, pg.sign, partial(pg.heaviside, rule=pg.rules.window(scale=0.1, height=3.0))),
]
CURVES = [
    partial(f, rule=rule(**shape))
    for f in (pg.sign, pg.heaviside)
    for rule in (pg.rules.triangle, pg.rules.arctan, pg.rules.fast_sigmoid)
    for shape in ({}, {"scale": 0.3, "height": 1.7}, {"scale": 1e-30}, {"scale": 1e30, "height": 2e-30})
]


@every_dtype
def test_steps_and_curves(dtype: torch.dtype, level: int) -> None:
    """Numbers whose square is near the end of the range are among those of curves."""
    farthest = math.sqrt(torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).max) / 8
    around = [share * farthest for share in (0.95, 1.0, -1.0, 1.05)]
    far = torch.tensor([1e18, 2e18, 3e18, 1e19, 1e150, 2e153, *around], dtype=torch.float64).to(dtype)
    steps = [Problem(f, f, (x,), grad) for size in SIZES for x, grad in [numbers(dtype, size)] for f in STEPS]
    curves = []
    for f, size in zip(CURVES, itertools.cycle(SIZES)):
        x, grad = numbers(dtype, size)
        curves.append(Problem(f, f, (torch.cat([x, far]),), torch.cat([grad, torch.ones_like(far)])))
    assert_ways_agree(steps, ["native code"], reference="code")
    assert_ways_agree([*steps, *curves], ["native"])


GRIDS = [
    (0.1, 0, -128, 127),
    (0.25, 3, 0, 7),
    (1.0, 0, -8, 7),
    (1e-3, -5, -100, 100),
    (3.7e4, 7, 0, 255),
    (1e-38, 0, 0, 1),
]
WAYS_ON_A_GRID = [{}, {"rule": "inward"}, {"rule": "leaky"}, {"rule": "sign"}, {"rule": "identity"}, {"edge": "open"}]
WAYS_ON_A_GRID += [{"rule": "elastic"}, {"rule": pg.rules.leaky_inward(low=0.3, high=0.1)}]


@every_dtype
def test_on_a_grid_and_around_0(dtype: torch.dtype, level: int) -> None:
    """With numbers between two places, and at both ends of the grid."""
    problems = []
    for (scale, zero, low, high), size in zip(GRIDS, itertools.cycle(SIZES)):
        x, grad = numbers(dtype, size)
        ends = [((end - zero) + half) * scale for end in (low, high) for half in (-0.5, 0, 0.5)]
        near = [end * (1 + ulps * torch.finfo(dtype).eps) for end in ends for ulps in range(-3, 4)]
        between = torch.tensor([*near, *((place + 0.5) * scale for place in range(-20, 20))]).to(dtype)
        x, grad = torch.cat([x * scale, x, between]), torch.cat([grad, grad, torch.ones_like(between)])
        for ways in WAYS_ON_A_GRID:
            f = partial(pg.fake_quantize, scale=scale, zero_point=zero, quant_min=low, quant_max=high, **ways)
            problems.append(Problem((scale, ways), f, (x,), grad))
        problems += [Problem(("abs", edge), partial(pg.abs, edge=edge), (x,), grad) for edge in (0, 1, -1)]
    assert_ways_agree(problems, ["native"])


def test_the_ends_of_a_range_on_a_grid() -> None:
    """-4.5 and -6.5 are rounded to the grid, 3.5 and 1.5 away from it."""
    assert native._range_on_grid((4.0, 0.0, -4.0, 3.0, 0.25), torch.float32) == (-1.125, 0.875 - 2.0**-24)
    assert native._range_on_grid((4.0, 2.0, -4.0, 3.0, 0.25), torch.float32) == (-1.625, 0.375 - 2.0**-25)
    assert native._range_on_grid((1e-6, 0.0, -4.0, 3.0, 1e6), torch.float16) is None


def _problems_of_formulas(dtype: torch.dtype, size: int) -> Iterator[Problem]:
    """With a tensor behind x of its own shape, or one number for all, in the dtype of x or in another one."""
    x, grad = numbers(dtype, size)
    a, b, other = x.roll(1), grad.abs().roll(7), torch.bfloat16 if dtype is torch.float32 else torch.float32
    logs = torch.tensor([0.8, 1.5, 1.75], dtype=torch.float64).log().to(dtype)  # of the bounds and the ceiling
    ratios = torch.cat([logs * (1 + ulps * torch.finfo(dtype).eps) for ulps in range(-3, 4)]).repeat(9)
    ratios = torch.cat([x, ratios])[-size:] if size >= 2 * len(ratios) else x
    for (rule, edge, low, high, value), space, ceiling, wants in zip(
        itertools.product(
            ("inward", "zero", "identity", pg.rules.leaky_inward(low=0.3, high=0.1)) * 2,
            ("closed", "open", "half"),
            (0.2, None),
            (0.5, None),
            ("objective", "clipped"),
        ),
        itertools.cycle(("ratio", "log", "log")),
        itertools.cycle((None, 1.75, None, 1.75, 1.75)),
        itertools.cycle(((True, False), (True, False), (True, True))),
    ):
        if low is not None or high is not None:
            how = {"rule": rule, "edge": edge, "low": low, "high": high, "value": value}
            f = partial(pg.policy.loss, **how, space=space, ceiling=ceiling)
            for advantage in (a, torch.tensor(-1.5, dtype=other)):
                yield Problem((how, space, ceiling), f, (ratios, advantage), grad, wants)
    near = torch.tensor([0.0, 0.125, -0.125, 0.25, -1.0, 0.875, 1.0, 1.125, -1.125], dtype=dtype).repeat(-(-size // 9))
    for (how, scale), zero, x_ in itertools.product(
        zip(WAYS_ON_A_GRID, itertools.cycle((b, torch.tensor(0.25, dtype=other)))),
        (0, 3, torch.tensor(1), a),
        (x, near[:size]),
    ):
        f = partial(pg.fake_quantize, quant_min=-4, quant_max=3, **how)
        yield Problem(("grid", how), f, (x_, scale, zero), grad, (True, True, zero is a))
    for rule, to_x, level in itertools.product(OPS["jumprelu"].rules, (False, True), (b, b.to(other), 0.3)):
        f = partial(pg.jumprelu, bandwidth=1.0, rule=rule, window_to_x=to_x)
        yield Problem((rule, to_x), f, (x, level), grad, (True, isinstance(level, Tensor), False))
    for step, rule, (scale, height) in itertools.product(
        (pg.sign, pg.heaviside), ("sigmoid", "gaussian"), ((1.0, 1.0), (0.3, 2.0), (1e-30, 0.5))
    ):
        f = partial(step, rule=getattr(pg.rules, rule)(scale=scale, height=height))
        yield Problem((rule, scale), f, (x,), grad)


def _problems_of_inverting(dtype: torch.dtype, size: int) -> Iterator[Problem]:
    x, grad = numbers(dtype, size)
    a, b, wants = x.roll(1), x.roll(3), itertools.cycle(((False, False), (True, True), (False, True)))
    between = [(a, b), (a, a + b.abs()), (a, 1.0), (-0.7, b), (a.clone(), torch.tensor(0.5, dtype=dtype))]
    numbers_only = [(-1.0, 1.0), (-0.7, 1.1), (-0.7, 3e4), (0.3, 0.3), (-torch.inf, 1.0)]
    for bounds, maximize in itertools.product(numbers_only + between, (False, True)):
        f = partial(pg.clamp, rule="inverting", maximize=maximize)
        wanted = [isinstance(bound, Tensor) and want for bound, want in zip(bounds, next(wants), strict=True)]
        yield Problem((bounds, maximize), f, (x, *bounds), grad, (True, *wanted))


@every_dtype
def test_formulas_of_an_element(dtype: torch.dtype, level: int, calls: list[str]) -> None:
    """Some of the problems at each size, and tensors in other orders of memory."""
    problems = [
        p for size in (*SIZES, 4100) for p in itertools.islice(_problems_of_formulas(dtype, size), size % 5, None, 5)
    ]
    problems += [p for size in SIZES for p in _problems_of_inverting(dtype, size)]
    x = torch.linspace(-2, 2, 72, dtype=dtype).reshape(3, 4, 6)
    for layout in (lambda t: t, lambda t: t.mT.contiguous().mT, lambda t: torch.stack([t, t], -1)[..., 0]):
        moved, row, one = layout(x), x[1, :, :1], x[0, :1, 2:3]
        loss = lambda *tensors: pg.policy.loss(*tensors, rule="leaky").contiguous()  # noqa: E731
        quantize = lambda *tensors: pg.fake_quantize(*tensors, -4, 3).contiguous()  # noqa: E731
        problems.append(Problem("rows", loss, (moved, row), layout(x + 0.5), (True, False, False)))
        problems.append(Problem("rows", quantize, (moved, row.abs(), one), x, (True, False, False)))
    assert_ways_agree(problems, ["native", "native code"])
    assert "formula" in calls


@folded
@pytest.mark.parametrize("has_high", [False, True])
@pytest.mark.parametrize("has_low", [False, True])
@every_dtype
def test_a_bit_for_what_is_in_an_interval(dtype: torch.dtype, has_low: bool, has_high: bool, level: int) -> None:
    x, _ = numbers(dtype, 320)
    for low, high in ((-1.0, 1.0), (0.0, torch.inf), (-torch.inf, 0.5), (-0.0, 0.0), (3.0, -3.0)):
        interval = Interval(low, high, has_low, has_high)
        plane = native.operators.steps(x, torch.tensor([float(part) for part in interval], dtype=torch.float64))
        held = [byte >> bit & 1 for byte in plane.tolist() for bit in range(8)][: len(x)]
        expected = [
            (low < v < high) or (has_low and v == low and v <= high) or (has_high and v == high and low <= v)
            for v in x.tolist()
        ]
        if low <= high and not (low == high and has_low != has_high):
            assert held == expected
        assert held == interval.holds(x).tolist()
