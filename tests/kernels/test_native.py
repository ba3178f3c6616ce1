"""The kernels in C: the same bits as the formula and the plain code, for every processor, layout and bound; and who is kept from them."""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd import engine, kernels
from pseudograd.geometry import Interval
from pseudograd.kernels import bits, native
from pseudograd.rule import OPS, call_for, prepared
from pseudograd.testing.contract.cases import cases_of

from ..choices import every_pair, folded, one_in
from ..engine.two_bits import TWO_BITS
from .ways import FOR_EVERYTHING, LEVELS, WITH_A_CODE, codes_from, needs_native, way

pytestmark = needs_native

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SIZES = [1, 2, 63, 64, 65, 128, 1000]
BY_PROGRAMS = [2, 128]
of_all_sizes = pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([size for size in SIZES if size not in BY_PROGRAMS], id="sizes"),
        pytest.param(BY_PROGRAMS, marks=pytest.mark.program, id="other sizes"),
    ],
)
BOUNDS = [
    (-1.0, 1.0),
    (None, 1.0),
    (-1.0, None),
    (0.0, None),
    (None, -0.0),
    (0.5, 0.5),
    (-torch.inf, 1.0),
    (0.1, torch.inf),
]


def numbers(dtype: torch.dtype, count: int) -> tuple[Tensor, Tensor]:
    """x and grad: every pair of special values, then random ones."""
    tiny = torch.finfo(dtype).tiny
    special = [
        -torch.inf,
        -3.0,
        -1.0,
        -0.5,
        -tiny,
        -tiny / 4,
        -0.0,
        0.0,
        tiny / 4,
        tiny,
        0.1,
        0.5,
        1.0,
        3.0,
        torch.inf,
        torch.nan,
    ]
    pairs = torch.cartesian_prod(*[torch.tensor(special, dtype=torch.float64)] * 2)
    random = torch.randn(count, 2, generator=torch.Generator().manual_seed(count), dtype=torch.float64) * 1.5
    both = torch.cat([pairs[torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0))], random])[:count]
    return both[:, 0].to(dtype).contiguous(), both[:, 1].to(dtype).contiguous()


def same(found: Tensor, expected: Tensor) -> bool:
    """Equal, NaN where NaN, of one shape and layout. The sign of a blocked zero is free."""
    nan = found.isnan() & expected.isnan()
    return found.shape == expected.shape and bool(((found == expected) | nan).all())


def same_bits(found: Tensor, expected: Tensor) -> bool:
    known = ~expected.isnan()
    return same(found, expected) and torch.equal(found.signbit()[known], expected.signbit()[known])


def strides(x: Tensor) -> list[int]:
    """Of the dimensions in which something lies."""
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1]


def gradient(f: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    leaf = x.detach().requires_grad_()
    y = f(leaf)
    return y.detach(), torch.autograd.grad(y, leaf, grad)[0]


HOW = [(rule, edge) for rule in WITH_A_CODE for edge in OPS["clamp"].edges]


@of_all_sizes
@pytest.mark.parametrize(("how", "dtype", "level"), one_in(6, HOW, DTYPES, LEVELS), indirect=["level"])
def test_every_processor_gives_the_formula(
    how: tuple[str, str], dtype: torch.dtype, level: None, sizes: list[int]
) -> None:
    rule, edge = how
    for size, (low, high), maximize in itertools.product(sizes, BOUNDS, (False, True)):
        x, grad = numbers(dtype, size)

        def f(x: Tensor, low: Any = low, high: Any = high, maximize: bool = maximize) -> Tensor:
            return pg.clamp(x, low, high, rule=rule, edge=edge, maximize=maximize)

        with way("formula"):
            y, expected = gradient(f, x, grad)
        for kernel in ("native", "native code", "code"):
            with way(kernel):
                found_y, found = gradient(f, x, grad)
            assert same_bits(found_y, y), (kernel, size, low, high, maximize)
            assert same(found, expected), (kernel, size, low, high, maximize)


@of_all_sizes
@pytest.mark.parametrize(("dtype", "level", "flushes"), every_pair(DTYPES, LEVELS, [False, True]), indirect=["level"])
def test_every_processor_gives_the_formula_of_elastic(
    dtype: torch.dtype, level: None, sizes: list[int], flushes: bool, calls: list[str]
) -> None:
    """Which reads x, and rounds at every step as the formula does."""
    between = [bounds for bounds in BOUNDS if None not in bounds] + [(0.0, 1.0), (-0.7, 3e4), (-1e-300, 1e-300)]
    torch.set_flush_denormal(flushes)
    try:
        for size, bounds, width, maximize in itertools.product(sizes, between, (0.25, 1e-3, 3e4), (False, True)):
            x, grad = numbers(dtype, size)

            def f(x: Tensor, bounds: Any = bounds, width: float = width, maximize: bool = maximize) -> Tensor:
                return pg.clamp(x, *bounds, rule=pg.rules.elastic(width=width), maximize=maximize)

            with way("formula"):
                _, expected = gradient(f, x, grad)
            assert same(gradient(f, x, grad)[1], expected), (size, bounds, width, maximize)
    finally:
        torch.set_flush_denormal(False)
    assert "pull_x" in calls


@of_all_sizes
@pytest.mark.parametrize(("how", "dtype", "level"), every_pair(HOW, DTYPES, LEVELS), indirect=["level"])
def test_the_code_is_the_plain_one_bit_for_bit(
    how: tuple[str, str], dtype: torch.dtype, level: None, sizes: list[int]
) -> None:
    """So one pass may be the kernel's and the other the plain formula's."""
    rule, edge = how
    for size, bounds in itertools.product(sizes, BOUNDS):
        x, _ = numbers(dtype, size)
        call = call_for(OPS["clamp"], rule, edge)
        if bits.code_of_numbers(call, *bounds, dtype) is None:
            continue
        y, kept = bits.BITS.encode(call, (x, *bounds), (True, False, False))
        made = native.operators.encode(x, native.settings_of(kept[2], bits.X, *bounds, dtype))
        assert same_bits(made[0], y)
        assert torch.equal(made[1], kept[0]), (size, bounds)
        assert made[2] == kept[1]


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(1, 3).contiguous().transpose(1, 3),
    "every second column": lambda x: torch.stack([x, x], -1)[..., 0],
    "flipped sizes of one": lambda x: x.reshape(1, 2, 1, -1).permute(2, 1, 0, 3),
    "a slice": lambda x: torch.cat([x, x])[1:3],
}


@folded
@pytest.mark.parametrize("of_grad", [*LAYOUTS, "expanded"])
@pytest.mark.parametrize("of_x", LAYOUTS)
def test_layouts(of_x: str, of_grad: str, level: None) -> None:
    flat_x, flat_grad = numbers(torch.float32, 840)
    x = LAYOUTS[of_x](flat_x.reshape(2, 3, 4, -1))
    if of_grad == "expanded":
        grad = torch.tensor(0.5).expand(x.shape)
    else:
        dense = torch.empty(x.shape)
        dense.copy_(flat_grad.reshape(x.shape))
        grad = LAYOUTS[of_grad](dense) if "sizes of one" not in of_grad and "slice" not in of_grad else dense
    for how in ("native", "native code"):
        for rule, edge in (("inward", "closed"), ("leaky", "half"), ("sign", "open")):
            with way("formula"):
                y, expected = gradient(lambda x: pg.clamp(x, -1, 1, rule=rule, edge=edge), x, grad)  # noqa: B023
            with way(how):
                found_y, found = gradient(lambda x: pg.clamp(x, -1, 1, rule=rule, edge=edge), x, grad)  # noqa: B023
            assert same(found, expected)
            assert same_bits(found_y, y)
            assert found_y.stride() == y.stride()


SHAPES = {
    "numbers": (),
    "channels": (3, 1, 1),
    "rows": (4, 1),
    "columns": (5,),
    "full": (2, 3, 4, 5),
    "one": (1,),
    "first": (2, 1, 1, 1),
}


@pytest.mark.parametrize(
    ("layout", "shape", "dtype", "level"),
    every_pair(["contiguous", "channels_last", "every second column"], SHAPES, DTYPES, LEVELS),
    indirect=["level"],
)
def test_tensor_bounds(layout: str, shape: str, dtype: torch.dtype, level: None) -> None:
    flat_x, flat_grad = numbers(dtype, 120)
    x, grad = LAYOUTS[layout](flat_x.reshape(2, 3, 4, 5)), flat_grad.reshape(2, 3, 4, 5)
    count = torch.Size(SHAPES[shape]).numel()
    # Crossed with the others here and there.
    some = torch.tensor([-1.0, 0.5, torch.nan, -torch.inf, 0.0, 1.0, 3.0], dtype=dtype)
    low, high = (some.repeat(count)[shift : shift + count].reshape(SHAPES[shape]) for shift in (0, 3))
    for (rule, edge), bounds in itertools.product(HOW, [(low, high), (low, None), (None, high)]):
        with way("formula"):
            y, expected = gradient(lambda x: pg.clamp(x, *bounds, rule=rule, edge=edge), x, grad)  # noqa: B023
        for how in ("native", "native code"):  # the second has kernels for few elements too
            with way(how):
                found_y, found = gradient(lambda x: pg.clamp(x, *bounds, rule=rule, edge=edge), x, grad)  # noqa: B023
            assert same(found, expected), (rule, edge)
            assert same_bits(found_y, y)


@folded
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_code_between_tensors_is_the_plain_one_bit_for_bit(shape: str, dtype: torch.dtype, level: None) -> None:
    x = numbers(dtype, 120)[0].reshape(2, 3, 4, 5)
    count = torch.Size(SHAPES[shape]).numel()
    some = torch.tensor([-1.0, 0.5, torch.nan, -torch.inf, 0.0, 1.0, 3.0], dtype=dtype)
    low, high = (some.repeat(count)[shift : shift + count].reshape(SHAPES[shape]) for shift in (0, 3))
    tested = 0
    for (rule, edge), layout in itertools.product(HOW, ("contiguous", "channels_last", "transposed")):
        call, there = call_for(OPS["clamp"], rule, edge), LAYOUTS[layout](x)
        if bits.find_code(call, (there, low, high), bits.X_ALONE) is None:
            continue
        y, (code, order, plan) = bits.BITS.encode(call, (there, low, high), (True, False, False))
        settings = native.settings_of(plan)
        made = native.operators.encode_between(there, low, high, settings)
        is_unsure = made[2] & native._UNSURE  # of the sign of zeros, which torch decides
        assert (same if is_unsure else same_bits)(made[0], y)
        assert torch.equal(made[1], code)
        assert made[2] ^ is_unsure == order
        tested += 1
    assert tested >= 3 * 8


@pytest.mark.parametrize("way_of_code", ["code", "native code"])
def test_between_tensors_that_change_after_the_call(way_of_code: str) -> None:
    """The code says where x was; torch, which keeps the tensors, would raise."""
    x, low, high = torch.linspace(-2, 2, 5000).requires_grad_(), torch.full((5000,), -1.0), torch.ones(())
    with way(way_of_code):
        y = pg.clamp(x, low, high)
        low.fill_(5.0), high.fill_(7.0)
        (found,) = torch.autograd.grad(y, x, torch.ones(5000))
    assert torch.equal(found, (x.detach() >= -1).float())


def test_bounds_that_are_not_plain_reach_no_operator(calls: list[str]) -> None:
    x, grad = numbers(torch.float32, 5000)
    low = torch.complex(torch.zeros(5000), torch.ones(5000)).conj().imag  # -1 with the negative bit
    with way("formula"):
        expected_y, expected = gradient(lambda x: pg.clamp(x, low.clone(), torch.ones(5000)), x, grad)
    del calls[:]
    y = pg.clamp(leaf := x.clone().requires_grad_(), low, torch.ones(5000))
    assert calls == []
    assert same_bits(y, expected_y)
    assert same(torch.autograd.grad(y, leaf, grad)[0], expected)


@folded
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_between_tensors(dtype: torch.dtype, level: None) -> None:
    """Every triple of special values: x along a row, its bounds one number for the row. Zeros keep torch's sign."""
    special = numbers(dtype, 10_000)[0][:256].unique(sorted=False)
    special = torch.cat([special, torch.tensor([-0.0, torch.nan], dtype=dtype)])
    x, low, high = torch.meshgrid(special, special, special, indexing="ij")
    x, low, high = (t.permute(1, 2, 0) for t in (x, low, high))
    found = native.operators.clamp_between(x.contiguous(), low[..., :1], high[..., :1])
    assert same_bits(found, torch.clamp(x.contiguous(), low.contiguous(), high.contiguous()))


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_one_bound_for_many_neighbours_has_values_of_its_own(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.Size] = []
    own = native.operators.clamp_between

    def counted(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
        y = own(x, low, high)
        asked.append(y.shape)
        return y

    monkeypatch.setattr(native.operators, "clamp_between", counted)
    x = LAYOUTS[layout](torch.linspace(-3, 3, 2 * 4 * 32 * 32).reshape(2, 4, 32, 32)).requires_grad_()
    low, high = torch.linspace(-2, -1, 4).reshape(4, 1, 1), torch.linspace(0, 1, 4).reshape(4, 1, 1)
    low.requires_grad_()  # else the call keeps a code, which is made with the values
    y = pg.clamp(x, low, high)
    assert torch.equal(y, torch.clamp(x, low, high))
    assert y.stride() == x.stride()
    assert asked == [x.shape if layout == "contiguous" else torch.Size([0])]
    pg.clamp(x, -1, 1), pg.clamp(x, low, None), pg.clamp(x[:, :1, :2], low, high)
    assert len(asked) == 1  # of numbers, of one bound and of few elements it is not asked
    with torch.no_grad():
        pg.clamp(x, low, high)
    assert len(asked) == 1


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_the_work(threads: int) -> None:
    """More elements than are worth one thread; the last thread's share ends inside a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, grad = numbers(torch.float32, 200_003)
        for layout in (lambda x: x, lambda x: torch.stack([x, x], -1)[:, 0]):
            for bounds in ((-1.0, 1.0), (torch.tensor(-1.0), torch.linspace(0, 1, 200_003))):
                with way("formula"):
                    _, expected = gradient(lambda x: pg.clamp(x, *bounds), layout(x), grad)  # noqa: B023
                for how in ("native", "native code"):
                    with way(how):
                        assert same(gradient(lambda x: pg.clamp(x, *bounds), layout(x), grad)[1], expected)  # noqa: B023
    finally:
        torch.set_num_threads(before)


# --- what is kept -----------------------------------------------------------------------------------------------------


def saved(f: Callable[[Tensor], Any], x: Tensor) -> list[Tensor]:
    packed: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(t), t)[1], lambda t: t):
        f(x)
    return packed


@folded
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("f", "bits"),
    [
        (lambda x: pg.clamp(x, -1, 1), 2),
        (lambda x: pg.clamp(x, -1, 1, rule="zero"), 1),
        (lambda x: pg.clamp(x, -1, 1, rule="zero", edge="open"), 1),
        (lambda x: pg.clamp(x, -1, 1, rule="zero", edge="half"), 2),
        (lambda x: pg.clamp(x, -1, 1, rule="leaky"), 1),
        (lambda x: pg.clamp(x, -1, 1, rule="sign"), 2),
        (lambda x: pg.lower_bound(x, 0), 1),
        (lambda x: pg.upper_bound(x, 0), 1),
        (lambda x: pg.relu(x), 1),
        (lambda x: pg.relu6(x), 1),
        (lambda x: pg.hardtanh(x), 1),
        (lambda x: pg.clamp(x, -1, 1, rule="identity"), 0),
        (lambda x: pg.clamp(x.mul(1), -1, 1), 2),
        (lambda x: pg.clamp_(x.add(1), -1, 1), 2),
        (lambda x: pg.clamp(x, x.new_full((64,), -1), x.new_full((16, 1), 1)), 2),
        (lambda x: pg.clamp(x, x.new_full((), -1), torch.ones_like(x), rule="zero", edge="open"), 1),
        (lambda x: pg.clamp(x, -1, x.new_full((1, 1, 1), 1), rule="sign"), 2),
        (lambda x: pg.clamp(x, -1, x.new_full((8, 1, 64), 1)), 2),
        (lambda x: pg.clamp(pg.clamp(x, -2, 2, rule="identity"), -1, 1), 2),
        (lambda x: pg.clamp(x.reshape(64, 1, 2, 64).permute(2, 3, 0, 1), -1, 1), 2),
        (lambda x: pg.clamp(x.as_strided((1, 2, 64, 64), (3, 1, 128, 2)), -1, 1), 2),
    ],
)
def test_bits_for_each_element(f: Callable[[Tensor], Any], bits: int, dtype: torch.dtype) -> None:
    x = torch.randn(8, 16, 64, dtype=dtype, requires_grad=True)
    kept = [t for t in saved(f, x) if t.numel() > 1]
    assert sum(t.nbytes for t in kept) == x.numel() * bits // 8


@folded
@pytest.mark.parametrize(
    "f",
    [
        lambda x: pg.clamp(x, -1, 1, rule="elastic"),
        lambda x: pg.clamp(x, -1, 1, rule="inverting"),
        lambda x: pg.clamp(x, -1, 1, rule="sign", edge="inward"),
        lambda x: pg.clamp(x, torch.tensor(-1.0), None),
        lambda x: pg.clamp(x, torch.tensor(-1.0), torch.tensor(1.0, requires_grad=True)),
        lambda x: pg.clamp(x, torch.tensor(-1.0, requires_grad=True), torch.tensor(1.0)),
        lambda x: pg.clamp(x, torch.zeros(2, 100, 100), torch.tensor(1.0)),
        lambda x: pg.clamp(x, torch.zeros(100, dtype=torch.float16), torch.ones(100, dtype=torch.float16)),
        lambda x: pg.clamp(x, torch.zeros(100), torch.tensor(1.0), edge="inward"),
        lambda x: pg.clamp(x, torch.zeros(100), torch.tensor(1.0), rule="elastic"),
        lambda x: pg.clamp(x.sigmoid(), 0.2, 0.8),
        lambda x: pg.clamp(x.exp(), 0.2, 0.8),
        lambda x: pg.clamp(x[:10], 0.2, 0.8),
        lambda x: pg.clamp(x[:, ::2], 0.2, 0.8),
        lambda x: pg.clamp(x[::99, :].repeat(1, 50).as_strided((2, 4000), (5000, 1)), 0.2, 0.8),
    ],
)
def test_who_keeps_x(f: Callable[[Tensor], Any]) -> None:
    """Rules that ask how far x is; a tensor alone, with a gradient, larger than x, of another dtype, or with an edge that asks where two
    bounds meet; an x that its op keeps anyway; few elements; memory with holes.
    """
    x = torch.randn(100, 100, requires_grad=True)
    assert all(t.is_floating_point() for t in saved(f, x))


def test_a_chain_after_sigmoid_costs_nothing_more() -> None:
    """sigmoid keeps its result, and clamp the same tensor again: no byte more."""
    x = torch.randn(100, 100, requires_grad=True)
    kept = {t.data_ptr(): t.nbytes for t in saved(lambda x: pg.clamp(x.sigmoid(), 0.2, 0.8), x)}
    assert sum(kept.values()) == x.nbytes


# --- in place ---------------------------------------------------------------------------------------------------------


@folded
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("edge", OPS["clamp"].edges)
def test_in_place(edge: str, layout: str) -> None:
    flat_x, flat_grad = numbers(torch.float32, 840)
    x, grad = LAYOUTS[layout](flat_x.reshape(2, 3, 4, -1)), flat_grad
    grad = grad.reshape(x.shape)
    with way("formula"):
        y, expected = gradient(lambda x: pg.clamp(x * 1, -1, 1, edge=edge), x, grad)
    for how in ("native code", "code", "native"):
        made: list[Tensor] = []

        def f(x: Tensor, made: list[Tensor] = made) -> Tensor:
            made.append(x * 1)
            version = made[0]._version
            assert pg.clamp_(made[0], -1, 1, edge=edge) is made[0]
            assert made[0]._version > version
            return made[0]

        with way(how):
            found_y, found = gradient(f, x, grad)
        assert same_bits(found_y, y)
        assert same(found, expected)


def test_in_place_on_a_leaf_and_on_views() -> None:
    leaf = torch.randn(5000, requires_grad=True)
    before = leaf.detach().clone()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        pg.clamp_(leaf, -1, 1)
    with pytest.raises(RuntimeError, match="view of a leaf"):
        pg.clamp_(leaf.view(50, 100), -1, 1)
    assert torch.equal(leaf.detach(), before)
    base = leaf * 1
    pg.clamp_(base.view(50, 100)[:25], -1, 1)
    base.sum().backward()
    expected = torch.ones(5000)
    expected[:2500][before[:2500] < -1] = 0
    assert torch.equal(leaf.grad, expected)
    assert torch.equal(base.detach()[:2500], before[:2500].clamp(-1, 1))


# --- few elements -----------------------------------------------------------------------------------------------------


@pytest.fixture
def doors() -> Iterator[list[str]]:
    """Which lowerings ran, by what made the nodes."""
    seen: list[str] = []

    def note(y: Tensor | None) -> None:
        if y is not None and y.grad_fn is not None:
            lowering: Any = type(y.grad_fn)
            seen.append(lowering._forward_cls.__qualname__.split(".")[0].removeprefix("_"))

    prepared.clear()
    with engine.watch(lambda: note):
        yield seen
    prepared.clear()


def _x(**how: Any) -> Tensor:
    return torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0], **how).requires_grad_()


EXPANDED: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: torch.randn(3).expand(5, 3),
    "columns": lambda: torch.randn(5, 1).expand(5, 3),
    "between": lambda: torch.randn(5, 1, 3).permute(2, 1, 0).expand(3, 4, 5),
    "all": lambda: torch.randn(()).expand(2, 3, 4),
    "many": lambda: torch.randn(3).expand(5000, 3),
}


@folded
@pytest.mark.parametrize("rule", ["inward", "identity", "elastic"])
@pytest.mark.parametrize("kind", EXPANDED)
def test_an_expanded_x_gives_the_layout_of_torch(kind: str, rule: str) -> None:
    """A program calls .view on the result."""
    for _ in range(2):
        x = EXPANDED[kind]().requires_grad_()
        y, expected = pg.clamp(x, -1, 1, rule=rule), torch.clamp(x, -1, 1)
        assert torch.equal(y, expected)
        assert strides(y) == strides(expected)


ZERO = torch.zeros(())
MANY_RULES: list[Callable[[Tensor], Tensor]] = [
    *(lambda x, rule=rule: pg.clamp(x, -1, 1, rule=rule) for rule in ("inward", "sign", "elastic", "identity")),
    lambda x: pg.clamp(x, ZERO, 1.0 + ZERO),
    lambda x: pg.clamp(x, ZERO),
    lambda x: pg.clamp_(x * 1.0, -1, 1),
    lambda x: pg.sign(x, rule="triangle"),
    lambda x: pg.silu(x, rule="fewbit"),  # torch.gelu refuses tensors of many dimensions
    pg.sign,
]


@pytest.mark.parametrize("is_permuted", [False, True])
@pytest.mark.parametrize("dimensions", [15, 16, 40])
@pytest.mark.parametrize("ones", [4, 13])
def test_tensors_of_more_dimensions_than_the_operators_count(
    ones: int, dimensions: int, is_permuted: bool, calls: list[str]
) -> None:
    """2 to the power of `ones` elements; the dimensions between them are of size 1."""
    shape = [*[2, 1] * min(ones, dimensions - ones), *[2] * max(0, 2 * ones - dimensions)]
    shape += [1] * (dimensions - len(shape))
    x, grad = (value.reshape(shape) for value in numbers(torch.float32, 2**ones))
    if is_permuted:
        x = x.permute(*range(1, dimensions), 0)
    for f in MANY_RULES:
        expected = torch.func.vjp(f, x.clone())[1](grad.reshape(x.shape))[0]
        for _ in range(2):
            assert same(gradient(f, x, grad.reshape(x.shape))[1], expected)
    assert bool(set(calls) - {"clamp_between"}) == (dimensions == 15)  # which declines them itself


@pytest.mark.parametrize(("dimensions", "ran"), [(15, ["pull_x"]), (16, [])])
def test_a_slope_is_computed_in_c_up_to_15_dimensions(dimensions: int, ran: list[str], calls: list[str]) -> None:
    x = torch.tensor([-0.5, 0.25]).reshape([2] + [1] * (dimensions - 1))
    found = gradient(lambda x: pg.sign(x, rule="triangle"), x, torch.full_like(x, 3.0))[1]
    assert found.flatten().tolist() == [1.5, 2.25]
    assert calls == ran


@folded
@pytest.mark.parametrize("size", [8, 5000])
@pytest.mark.parametrize("f", MANY_RULES, ids=range(len(MANY_RULES)))
def test_hooks_that_hand_out_another_dtype(f: Callable[[Tensor], Tensor], size: int) -> None:
    """What a program saves memory by: x is kept in half precision."""
    x, grad = torch.linspace(-2, 2, size), torch.linspace(-1, 3, size)
    expected = torch.func.vjp(f, x.half().float())[1](grad)[0]
    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half() if t.is_floating_point() else t, lambda t: t):
            found = gradient(f, x.half().float(), grad)[1]
        assert found.dtype is torch.float32
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_a_small_call_is_prepared_once(doors: list[str]) -> None:
    for _ in range(3):
        pg.clamp(_x(), -1, 1)
    assert doors == ["Pseudograd", "keeping_x", "keeping_x"]
    pg.clamp(_x(dtype=torch.float64), -1, 1)
    pg.clamp(torch.nn.Parameter(torch.zeros(3)), -1, 1)
    assert doors[3:] == ["Pseudograd"] * 2
    with kernels.off("native"):
        pg.clamp(_x(), -1, 1)
    pg.clamp(_x(), -1, 1)
    assert doors[5:] == ["Pseudograd"] * 2


@pytest.mark.parametrize(("size", "way"), [(5, "keeping_x"), (5000, "keeping_code")])
def test_a_function_of_its_own_comes_with_the_second_call_and_goes_with_the_memory(size: int, way: str) -> None:
    prepared.clear()
    x = torch.zeros(size, requires_grad=True) * 1.0
    pg.clamp(x, -1, 1)
    (ready,) = prepared.values()
    assert way not in vars(ready)
    y = pg.clamp(pg.clamp(x, -1, 1), -1, 1)
    assert way in vars(ready)
    of_its_own = weakref.ref(type(y.grad_fn))
    prepared.clear()
    del ready, y
    gc.collect()
    assert of_its_own() is None


@folded
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_identity_is_prepared_and_keeps_nothing(layout: str, dtype: torch.dtype, doors: list[str], level: None) -> None:
    def f(x: Tensor) -> Tensor:
        return pg.clamp(x, -1, 0.5, rule="identity")

    f(torch.zeros(1, dtype=dtype, requires_grad=True))
    for size in (24, 7200):
        x, grad = (LAYOUTS[layout](value.reshape(2, 3, 4, -1)) for value in numbers(dtype, size))
        del doors[:]
        y, found = gradient(f, x, grad)
        assert doors == ["passing"]
        expected = torch.clamp(x, -1, 0.5)
        assert same_bits(y, expected)
        assert strides(y) == strides(expected)
        assert same(found, grad)
        leaf = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(f(leaf).square().sum(), leaf, create_graph=True)
        assert same(torch.autograd.grad(first.sum(), leaf)[0], torch.full_like(x, 2.0).where((x > -1) & (x < 0.5), 2.0))
        assert saved(f, leaf) == []


@folded
@pytest.mark.parametrize("size", [256, 5000])
@pytest.mark.parametrize("rule", ["zero", "inward", "sign", "leaky", "elastic", "identity"])
@pytest.mark.parametrize(
    "bounds",
    [
        *((1.0, -1.0), (0.5, 0.5), (torch.inf, -torch.inf)),
        *((torch.nan, 1.0), (-1.0, torch.nan), (torch.nan, None), (None, torch.nan)),
    ],
)
def test_bounds_that_only_a_rewritten_call_may_have(bounds: tuple[float, float], rule: str, size: int) -> None:
    """torch.clamp gives max for crossed numbers and NaN for NaN; our own clamp takes neither."""

    def f(x: Tensor) -> Tensor:
        with pg.override(clamp=rule):
            return torch.clamp(x, *bounds)

    x, grad = numbers(torch.float32, size)
    expected = torch.func.vjp(f, x)[1](grad)[0]
    y, found = gradient(f, x, grad)
    assert same(y, torch.clamp(x, *bounds))
    assert same(found, expected)


def test_every_node_has_the_one_name() -> None:
    nodes = [pg.clamp(_x(), -1, 1).grad_fn for _ in range(2)]
    nodes += [pg.clamp(_x(), -1, 1, rule="identity").grad_fn for _ in range(2)]
    nodes += [pg.clamp_(torch.zeros(5000, requires_grad=True) * 1, -1, 1).grad_fn]
    assert {type(node).__name__ for node in nodes} == {"PseudogradBackward"}


def test_arguments_that_are_found_as_others_are(doors: list[str]) -> None:
    """-0.0 is 0.0 to a table, and 1 is True."""
    for zero in (0.0, -0.0, 0.0, -0.0):
        y = pg.clamp(torch.full((3,), -1.0).requires_grad_(), zero, 1.0)
        assert torch.equal(y.detach().signbit(), torch.full((3,), zero).signbit())
        assert y.signbit().all() == (str(zero) == "-0.0")
        y = pg.clamp(torch.full((3,), 1.0).requires_grad_(), -1.0, zero)
        assert y.signbit().all() == (str(zero) == "-0.0")
    pg.clamp(_x(), -1, 1, maximize=False)
    for wrong in (0, 1, None):
        with pytest.raises(TypeError, match="maximize"):
            pg.clamp(_x(), -1, 1, maximize=wrong)
    for wrong in ([], {}):
        with pytest.raises(TypeError):
            pg.clamp(_x(), wrong, 1)
        with pytest.raises((TypeError, ValueError)):
            pg.clamp(_x(), -1, 1, rule=wrong)
        with pytest.raises((TypeError, ValueError)):
            pg.clamp(_x(), -1, 1, edge=wrong)


@pytest.mark.parametrize("size", [5, 5000])
def test_ascent_first_is_not_remembered_for_descent(size: int) -> None:
    """The memory of calls does not know `maximize`; bounds that no other test asks for."""
    x, grad = torch.linspace(-3, 3, size), torch.linspace(-1, 2, size)
    for how in ({"maximize": True}, {"maximize": True}, {}, {"maximize": True}):
        expected = torch.func.vjp(lambda x: pg.clamp(x, -0.7125, 0.8125, **how), x)[1](grad)[0]  # noqa: B023
        assert same(gradient(lambda x: pg.clamp(x, -0.7125, 0.8125, **how), x, grad)[1], expected)  # noqa: B023


def test_a_rule_that_is_registered_again_is_prepared_again() -> None:
    for share in (0.25, 0.75):

        @pg.register_rule("clamp", formula=f"{share} * grad", source="a test", is_linear=True)
        def prepared_again(grad, x, y, min, max, share=share):  # type: ignore[no-untyped-def]
            return share * grad

        for _ in range(2):
            x = _x()
            pg.clamp(x, -1, 1, rule="prepared_again").sum().backward()
            assert x.grad is not None
            assert x.grad.tolist() == [share, 1, 1, 1, share]
    for op in OPS.values():
        op.rules.pop("prepared_again", None)  # type: ignore[attr-defined]


# --- who is kept from raw pointers ------------------------------------------------------------------------------------


# They are looked up when they are first asked for, so their names are read where they are registered.
OPERATORS = re.findall(r'^    {"(\w+)", "\1\(', native.LIBRARY.with_name("operators.c").read_text(), re.MULTILINE)
OPERATORS = [name for name in OPERATORS if name not in ("choose", "version")]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Which operators in C ran."""
    seen: list[str] = []
    for name in OPERATORS:
        right = getattr(native.operators, name)
        monkeypatch.setattr(
            native.operators, name, lambda *args, right=right, name=name: (seen.append(name), right(*args))[1]
        )
    prepared.clear()
    yield seen
    prepared.clear()


FIRST: dict[str, tuple[Callable[[Tensor], Tensor], list[str]]] = {
    "few": (lambda x: pg.clamp(x, -1, 1), ["pull_x"]),
    "many": (lambda x: pg.clamp(x, -1, 1), ["encode", "pull_code"]),
    "in place": (lambda x: pg.clamp_(x * 1.0, -1, 1), ["encode_", "pull_code"]),
    "tensors": (lambda x: pg.clamp(x, ZERO - 1, ZERO + 1), ["encode_between", "pull_code"]),
    "one tensor": (lambda x: pg.clamp(x, ZERO - 1), ["pull_bounds"]),
    "elastic": (lambda x: pg.clamp(x, -1, 1, rule="elastic"), ["pull_x"]),
    "narrow elastic": (lambda x: pg.clamp(x, -1, 1, rule=pg.rules.elastic(0.25)), ["pull_x"]),
    "gelu": (lambda x: pg.gelu(x, rule="fewbit"), ["steps", "pull_code"]),
    "window": (pg.sign, ["steps", "pull_code"]),
    "triangle": (lambda x: pg.sign(x, rule="triangle"), ["pull_x"]),
}


@pytest.mark.parametrize("kind", FIRST)
def test_the_first_call_of_all_runs_in_c(kind: str, calls: list[str]) -> None:
    f, expected = FIRST[kind]
    gradient(f, *numbers(torch.float32, 10 if kind == "few" else 5000))
    assert calls == expected


GRADS: dict[str, Callable[[Tensor], Tensor]] = {
    "negative": lambda g: torch.complex(torch.zeros_like(g), -g).conj().imag,
    "zero": lambda g: torch._efficientzerotensor(g.shape),
    "sparse": lambda g: g.to_sparse(),
    "subclass": lambda g: g.as_subclass(Sub),
}


class Sub(Tensor):
    pass


@pytest.mark.parametrize("kind", GRADS)
@pytest.mark.parametrize("size", [5, 5000])
def test_grads_that_are_not_plain(kind: str, size: int, calls: list[str]) -> None:
    x, grad = numbers(torch.float32, size)
    grad = torch.nan_to_num(grad, posinf=2.0, neginf=-2.0)
    for _ in range(2):
        leaf = x.clone().requires_grad_()
        y = pg.clamp(leaf, -1, 1)
        del calls[:]
        y.backward(GRADS[kind](grad))
        assert calls == []
        dense = torch.zeros_like(grad) if kind == "zero" else grad
        with way("formula"):
            _, expected = gradient(lambda x: pg.clamp(x, -1, 1), x, dense)
        assert leaf.grad is not None
        assert same(leaf.grad.to_dense() if leaf.grad.is_sparse else leaf.grad.as_subclass(Tensor), expected)


def _fake() -> Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(5000)


TENSORS: dict[str, Callable[[], Tensor]] = {
    "meta": lambda: torch.zeros(5000, device="meta"),
    "fake": _fake,
    "negative": lambda: torch.complex(torch.zeros(5000), torch.ones(5000)).conj().imag,
    "subclass": lambda: torch.zeros(5000).as_subclass(Sub),
    "sparse": lambda: torch.zeros(5000).to_sparse(),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_that_are_not_plain(kind: str, calls: list[str]) -> None:
    x = TENSORS[kind]().detach().requires_grad_()
    with getattr(x, "fake_mode", contextlib.nullcontext()):
        y = pg.relu(x) if kind == "sparse" else pg.clamp(x, -1, 1)  # for which torch.clamp has no values
        (y.to_dense() if kind == "sparse" else y).sum().backward()
    assert calls == []


@pytest.mark.skipif(not hasattr(Tensor, "has_names"), reason="this torch has no named tensors")
@pytest.mark.filterwarnings("ignore:Named tensors")
@pytest.mark.parametrize("size", [5, 5000])
def test_named_tensors(size: int, calls: list[str]) -> None:
    for rule in ("inward", "identity"):
        for _ in range(2):
            x = torch.linspace(-2, 2, size).rename("a").requires_grad_()  # type: ignore[attr-defined]
            y = pg.clamp(x, -1, 1, rule=rule)
            assert y.names == ("a",)  # type: ignore[attr-defined]
            y.rename(None).sum().backward()  # type: ignore[attr-defined]
            expected = torch.ones(size) if rule == "identity" else (x.detach().rename(None) >= -1).float()  # type: ignore[attr-defined]
            assert torch.equal(x.grad, expected)


def test_mkldnn_is_torch_s_error(calls: list[str]) -> None:
    with pytest.raises(RuntimeError):
        pg.clamp(torch.zeros(5000).to_mkldnn().requires_grad_(), -1, 1)
    assert calls == []


@pytest.mark.parametrize("size", [5, 5000])
def test_transforms_and_modes(size: int, calls: list[str]) -> None:
    """Neither functorch, nor a dispatch mode, nor a second derivative may lose sight of what is computed."""
    from torch.utils.flop_counter import FlopCounterMode

    x, grad = numbers(torch.float32, size)
    pg.clamp(x.clone().requires_grad_(), -1, 1)
    del calls[:]
    torch.func.vjp(lambda x: pg.clamp(x, -1, 1), x)[1](grad)
    torch.vmap(torch.func.grad(lambda x: pg.clamp(x, -1, 1).sum()))(x)
    with FlopCounterMode(display=False):
        gradient(lambda x: pg.clamp(x, -1, 1), x, grad)
        gradient(lambda x: pg.clamp(x, ZERO, ZERO + 1, rule="elastic"), x, grad)
    leaf = x.clone().requires_grad_()
    with FlopCounterMode(display=False):
        y = pg.clamp(leaf, -1, 1)
    torch.autograd.grad(y, leaf, grad, create_graph=True)
    torch.autograd.grad(y, leaf, torch.stack([grad, grad]), is_grads_batched=True)
    assert calls == []


def test_operators_that_get_what_does_not_fit_give_nothing() -> None:
    """They cannot raise; they must not write."""
    x, code = torch.zeros(100), torch.zeros(32, dtype=torch.uint8)
    code_of_inward = bits.code_of_numbers(call_for(OPS["clamp"], "inward", "closed"), -1.0, 1.0, torch.float32)
    assert code_of_inward is not None
    settings = native.settings_of(code_of_inward, bits.X, -1.0, 1.0, torch.float32)
    run = native.operators
    for found in (
        run.clamp(x, settings[:8]),
        run.clamp(x, settings.float()),
        run.clamp(torch.zeros(3, dtype=torch.int64), settings),
        run.clamp(torch.zeros([1] * 16), settings),
        run.encode(x.to(torch.uint8), settings)[0],
        run.pull_code(x, code[:31], settings, 0),
        run.pull_code(x, torch.zeros(64, dtype=torch.uint8)[::2], settings, 0),
        run.pull_code(x, torch.zeros(1, dtype=torch.uint8).expand(32), settings, 0),
        run.pull_code(x, code.to(torch.int16), settings, 0),
        run.pull_code(x, code.to(torch.int8), settings, 0),
        run.pull_code(x, code, settings, 1),
        run.pull_code(x.reshape(10, 10), code, settings, 0x11),
        run.pull_x(x, x.double(), settings),
        run.pull_x(x, x[:50], settings),
        run.pull_bounds(x, x, x[:3], x, settings),
        run.pull_bounds(x, x, x, x.double(), settings),
        run.clamp_between(x, x[0], x[1].double()),
        run.clamp_between(x, x[0], x[:3]),
        run.clamp_between(x[::2], x[0], x[1]),
        run.clamp_between(x[0], x[:1], x[:1].reshape(1, 1)),
        run.clamp_between(x.long(), x[0].long(), x[1].long()),
        run.clamp_between(torch.zeros([1] * 16), x[0], x[1]),
        run.encode_between(x, x[0], x[1], settings[:8])[0],
        run.encode_between(x, x[:3], x[1], settings)[0],
        run.encode_between(x, x, x.double(), settings)[1],
        run.encode_between(x[::2], x[::2], x[::2], settings)[0],
        run.encode_between(x[0], x[:1], x[:1].reshape(1, 1), settings)[1],
    ):
        assert found.numel() == 0
    x = torch.arange(10.0).expand(3, 10)
    assert run.encode_(x, settings)[0].numel() == 0
    assert x[0].tolist() == list(range(10))


# --- what a hook of saved tensors hands back --------------------------------------------------------------------------


def every_second(code: Tensor) -> Tensor:
    wider = code.new_full((*code.shape[:-1], 2 * code.shape[-1]), 7)
    wider[..., ::2] = code
    return wider[..., ::2]


def padded(code: Tensor) -> Tensor:
    wider = code.new_full((*code.shape[:-1], code.shape[-1] + 64), 7)
    wider[..., :-64] = code
    return wider[..., :-64]


def turned(code: Tensor) -> Tensor:
    """The elements of a matrix column by column."""
    return code.t().contiguous().t()


HANDED_BACK: dict[str, Callable[[Tensor], Tensor]] = {
    "every second byte": every_second,
    "rows of a wider matrix": padded,
    "turned": turned,
    "in a row": lambda code: code.reshape(1, -1)[0] if code.dim() == 1 else code,
    "int8": lambda code: code.to(torch.int8),
    "int16": lambda code: code.to(torch.int16),
    "int64": lambda code: code.to(torch.int64),
    "float16": lambda code: code.to(torch.float16),
    "moved by one byte": lambda code: torch.cat([code.new_ones(1), code.reshape(-1)])[1:].view(code.shape),
}
WITH_A_CODE: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda x: pg.clamp(x, -1, 1),
    "clamp, half": lambda x: pg.clamp(x, -1, 1, edge="half"),
    "clamp_": lambda x: pg.clamp_(x * 1, -1, 1),
    "between tensors": lambda x: pg.clamp(x, torch.full_like(x, -1), torch.full_like(x, 1)),
    "between channels": lambda x: pg.clamp(x, torch.full((1,), -1.0), torch.full((1,), 1.0)),
    "leaky_relu": lambda x: pg.ops.leaky_relu(x, 0.2),
    "gelu": lambda x: pg.gelu(x, rule="fewbit"),
    "silu": lambda x: pg.silu(x, rule="fewbit"),
    "round": lambda x: pg.round(x, rule="trust"),
}


@folded
@pytest.mark.parametrize("without", ["", "native"])
@pytest.mark.parametrize("how", HANDED_BACK)
@pytest.mark.parametrize("name", WITH_A_CODE)
def test_a_code_in_other_strides_or_of_another_dtype_says_the_same(name: str, how: str, without: str) -> None:
    """A kernel reads it as bytes that follow each other, so it must ask."""
    f, x = WITH_A_CODE[name], torch.linspace(-4, 4, 5001)
    x[::7] = 1.0

    def gradient() -> Tensor:
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(f(leaf), leaf, torch.linspace(-1, 1, 5001))[0]

    plain = gradient()
    handed: list[Tensor] = []

    def hand_back(kept: Tensor) -> Tensor:
        if kept.dtype is not torch.uint8:
            return kept
        handed.append(HANDED_BACK[how](kept))
        return handed[-1]

    with kernels.off(*[without] if without else []), torch.autograd.graph.saved_tensors_hooks(lambda t: t, hand_back):
        found = gradient()
    assert len(handed) == 1
    assert torch.equal(found, plain)


@pytest.mark.parametrize("name", WITH_A_CODE)
def test_a_code_that_lost_bytes_is_an_error(name: str) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t[..., :8] if t.dtype is torch.uint8 else t):
        leaf = torch.linspace(-4, 4, 5001).requires_grad_()
        y = WITH_A_CODE[name](leaf)
        with pytest.raises(RuntimeError):
            torch.autograd.grad(y, leaf, torch.ones(5001))


# --- the sign of zero between tensors ---------------------------------------------------------------------------------


ZEROS = list(itertools.product((-0.0, 0.0), (-0.0, 0.0, -1.0), (-0.0, 0.0, 1.0)))


@pytest.mark.parametrize(
    ("zeros", "dtype", "shape", "level"),
    every_pair(ZEROS, DTYPES, [(4096,), (4099,), (70, 71), (40000,)], LEVELS),
    indirect=["level"],
)
def test_a_zero_between_tensors_has_torchs_sign(
    zeros: tuple[float, ...], dtype: torch.dtype, shape: tuple[int, ...], level: None
) -> None:
    x, low, high = (torch.full(shape, zero, dtype=dtype) for zero in zeros)
    for bounds in ((low, high), (low[:1], high[:1]), (low[..., :1], high), (low.reshape(-1)[0], high)):
        expected = torch.clamp(x, *bounds)
        y = pg.clamp(x.clone().requires_grad_(), *bounds).detach()
        assert torch.equal(y.signbit(), expected.signbit())


def test_one_pair_of_zeros_is_enough_and_crossed_bounds_have_them_too() -> None:
    x, low, high = torch.full((5000,), -3.0), torch.full((5000,), -1.0), torch.ones(5000)
    for place in (0, 63, 64, 4999):
        for at in ((-0.0, 0.0, 1.0), (0.0, -1.0, -0.0), (-3.0, 0.0, -0.0), (3.0, -0.0, 0.0)):
            given = [one.clone() for one in (x, low, high)]
            for one, value in zip(given, at, strict=True):
                one[place] = value
            y = pg.clamp(given[0].requires_grad_(), *given[1:]).detach()
            expected = torch.clamp(*given).detach()
            assert torch.equal(y, expected)
            assert torch.equal(y.signbit(), expected.signbit())


# --- with and without -------------------------------------------------------------------------------------------------

PROGRAM = """
import pseudograd as pg, torch
from pseudograd import kernels
x = torch.linspace(-2, 2, 5000).requires_grad_()
pg.clamp(x, -1, 1).backward(torch.ones(5000))
row = next(row for row in kernels.status() if row["kernel"] == "native")
print(int(x.grad.sum()), row["state"], row["why"], sep="|")
"""


@pytest.mark.program
@pytest.mark.parametrize(
    ("change", "state", "why"),
    [
        pytest.param("", "active", " on CPU", marks=pytest.mark.slow),
        ("PSEUDOGRAD_NATIVE=0", "not active", "turned off by PSEUDOGRAD_NATIVE=0"),
    ],
)
def test_it_can_be_turned_off(change: str, state: str, why: str) -> None:
    environment = {**os.environ, **dict([change.split("=")] if change else [])}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, env=environment)
    total, found, text = done.stdout.strip().split("|")
    assert (total, found) == ("3750", state), done.stderr
    assert text.endswith(why)


def test_without_a_library_or_with_a_broken_one(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "none.so")
    assert native._load()[:2] == (
        "not active",
        "not part of this build: install a wheel for this platform, or from source with gcc or clang",
    )
    (tmp_path / "none.so").write_text("no library")
    state, why, operators = native._load()
    assert (state, operators) == ("not active", None)
    assert "does not load" in why
    monkeypatch.setattr(torch, "__version__", "2.8.0+cpu")
    assert "older than 2.10" in native._load()[1]


def test_a_library_of_other_sources_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its operators may read other settings, and write where they should not."""
    monkeypatch.setattr(native, "_VERSION", native._VERSION + 1)
    state, why, operators = native._load()
    assert (state, operators) == ("not active", None)
    assert why == (
        f"the library was built from other sources: its version is {native._VERSION - 1}, this package needs {native._VERSION}. "
        "Install pseudograd again, or run python setup.py build_ext --inplace"
    )


def test_the_version_is_that_of_the_sources() -> None:
    (found,) = re.findall(r"enum \{ VERSION = (\d+) \}", native.LIBRARY.with_name("rules.h").read_text())
    assert int(found) == native._VERSION == native.operators.version()


@pytest.mark.parametrize("version", ["2.10.0", "2.10.0a0+git1234567", "2.11", "3.0.1.dev20300101+cpu"])
def test_it_loads_for_torch_from_2_10_on_and_takes_the_best_loops(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    state, why, operators = native._load()
    assert state == "active"
    best = next(name for name, number in LEVELS.items() if number == operators.choose(2))
    assert why == best


@pytest.mark.parametrize("bounds", [(-1, 1), (torch.full((5000,), -1.0), torch.ones(()))], ids=["numbers", "tensors"])
def test_codes_are_kept_by_every_kind_of_checkpoint(bounds: tuple[Any, Any]) -> None:
    from torch.utils.checkpoint import checkpoint

    x, grad = numbers(torch.float32, 5000)
    with way("formula"):
        _, expected = gradient(lambda x: pg.clamp(x * 1, *bounds).sin(), x, grad)
    for use_reentrant in (False, True):
        for passes in itertools.product((True, False), repeat=2):
            leaf = x.clone().requires_grad_()
            with kernels.off(*[] if passes[0] else ["native"]):
                y = checkpoint(lambda x: pg.clamp(x * 1, *bounds).sin(), leaf, use_reentrant=use_reentrant)
            with kernels.off(*[] if passes[1] else ["native"]):
                y.backward(grad)
            assert leaf.grad is not None
            assert same(leaf.grad, expected)


def test_a_code_is_kept_from_4096_elements_on() -> None:
    """As docs/memory.md says."""
    for size, kept in ((4095, 4 * 4095), (4096, 2 * 4096 // 8)):
        assert (
            sum(one.nbytes for one in saved(lambda x: pg.clamp(x, -1, 1), torch.zeros(size, requires_grad=True)))
            == kept
        )


def test_a_code_is_kept_up_to_15_dimensions() -> None:
    """As many as a number of 64 bits can order."""
    for dimensions, dtype in ((15, torch.uint8), (16, torch.float32)):
        x = torch.zeros([8192] + [1] * (dimensions - 1), requires_grad=True)
        assert [one.dtype for one in saved(lambda x: pg.clamp(x, -1, 1), x)] == [dtype]


@pytest.mark.parametrize(("size", "ran"), [(4096, ["clamp_between"]), (4095, [])])
def test_a_value_between_tensors_is_computed_in_c_from_4096_elements_on(
    size: int, ran: list[str], calls: list[str]
) -> None:
    """Where x is kept; of fewer, torch's own takes less time to call."""
    x, low, high = torch.linspace(-1, 1, size), torch.zeros(()), torch.ones((), requires_grad=True)
    y = pg.clamp(x.requires_grad_(), low, high, rule="zero", edge="half")
    assert calls == ran
    assert torch.equal(y, torch.clamp(x, low, high))


def test_a_call_is_prepared_for_the_code_whatever_other_residuals_come_after_it(doors: list[str]) -> None:
    kernels.register(TWO_BITS)
    try:
        for _ in range(2):
            pg.clamp(torch.zeros(5000, requires_grad=True), -1, 1)
    finally:
        kernels.remove(TWO_BITS)
    assert doors == ["Pseudograd", "keeping_code"]


def test_codes_from_zero_elements_on() -> None:
    with codes_from(FOR_EVERYTHING):
        for shape in ((0,), (2, 0, 3), ()):
            x = torch.full(shape, 3.0, requires_grad=True)
            pg.clamp(x, -1, 1).sum().backward()
            assert x.grad is not None
            assert x.grad.shape == torch.Size(shape)


@folded
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("slope", [1e-3, 0.1, 1.0009765625, 3.0])
def test_every_product_of_half_precision_is_rounded_as_torch_rounds_it(
    slope: float, dtype: torch.dtype, level: None
) -> None:
    """Every number of the dtype as grad: subnormal and overflowing products among them."""
    grad = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    x = torch.full_like(grad, 2.0)
    how = {"rule": pg.rules.leaky(slope), "edge": "half"}
    with way("formula"):
        _, expected = gradient(lambda x: pg.clamp(x, -1, 1, **how), x, grad)
    for computed in ("native", "native code"):
        with way(computed):
            assert same(gradient(lambda x: pg.clamp(x, -1, 1, **how), x, grad)[1], expected)


# --- few bits ---------------------------------------------------------------------------------------------------------

FEW = [
    (lambda x, bits=bits, f=f: f(x, rule=pg.rules.fewbit(bits=bits))) for f in (pg.gelu, pg.silu) for bits in (2, 3)
] + [
    lambda x: pg.ops.leaky_relu(x, 0.25),
    lambda x: pg.ops.leaky_relu(x, -0.5),
    pg.ops.hardsigmoid,
    pg.sign,
    lambda x: pg.heaviside(x, rule=pg.rules.window(scale=0.1, height=3.0)),
]


@folded
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("which", range(len(FEW)))
def test_few_bits_are_the_plain_ones(which: int, dtype: torch.dtype, level: None) -> None:
    f = FEW[which]
    for size in (1, 63, 64, 65, 1000):
        x, grad = numbers(dtype, size)
        with way("code"):
            plain = saved(f, x.clone().requires_grad_())
            y, expected = gradient(f, x, grad)
        with way("native code"):
            made = saved(f, x.clone().requires_grad_())
            found_y, found = gradient(f, x, grad)
        assert same_bits(found_y, y)
        assert same(found, expected)
        words = [kept[0].numpy().view("<u8").reshape(-1, -(-size // 64)).copy() for kept in (made, plain)]
        for kept in words:  # what lies behind the last element has no meaning
            kept[:, -1] &= (1 << (size - 1) % 64 + 1) - 1
        assert (words[0] == words[1]).all()


def test_few_bits_give_a_gradient_for_each_input_and_no_more(calls: list[str]) -> None:
    """Autograd takes more without a word."""
    lengths = set()
    for case in [case for op in OPS.values() for case in cases_of(op)]:
        if case.rule.steps is not None:
            call, inputs = case.call(), next(iter(case.samples())).build(torch.float32)
            wants = (True, *[False] * (len(inputs) - 1))
            with way("native code"):
                if (made := kernels.forward(bits.BITS, call, inputs, wants)) is None:
                    continue  # steps that C does not know
                found = kernels.backward(bits.BITS, torch.ones_like(made[0]), made[1], wants, call)
            assert found is not None
            assert len(found) == len(inputs)
            lengths.add(len(found))
    assert len(lengths) > 1
    assert set(calls) == {"steps", "pull_code"}


def test_steps_that_do_not_fit_give_nothing() -> None:
    x, three, four = torch.zeros(100), torch.zeros(3, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    steps = native.operators.steps
    assert steps(x, three).shape == (32,)
    assert steps(x.reshape(5, 1, 20).permute(2, 1, 0), three).shape == (32,)
    assert steps(x, four).shape == (16,)
    for numbers in (three, four):
        for wrong in (x.reshape(10, 10)[:, :5], x[:10].expand(10, 10), x[::2], x.long()):
            assert steps(wrong, numbers).numel() == 0
        assert steps(x, numbers.float()).numel() == 0
    for count in (0, 2, 5, 8):
        assert steps(x, torch.zeros(count, dtype=torch.float64)).numel() == 0


@folded
@pytest.mark.parametrize("has_high", [False, True])
@pytest.mark.parametrize("has_low", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_bit_for_what_is_in_an_interval(dtype: torch.dtype, has_low: bool, has_high: bool, level: None) -> None:
    x, _ = numbers(dtype, 320)
    for low, high in ((-1.0, 1.0), (0.0, torch.inf), (-torch.inf, 0.5), (-0.0, 0.0), (3.0, -3.0)):
        interval = Interval(low, high, has_low, has_high)
        plane = native.operators.steps(x, torch.tensor([float(part) for part in interval], dtype=torch.float64))
        found = [byte >> place & 1 for byte in plane.tolist() for place in range(8)]
        expected = [
            (low < v < high) or (has_low and v == low and v <= high) or (has_high and v == high and low <= v)
            for v in x.tolist()
        ]
        if low <= high and not (low == high and has_low != has_high):
            assert found[: len(x)] == expected
        assert found[: len(x)] == interval.holds(x).tolist()


# --- the slopes of steps ----------------------------------------------------------------------------------------------

SLOPES = [
    (f, rule, given)
    for f in (pg.sign, pg.heaviside)
    for rule in ("triangle", "arctan", "fast_sigmoid")
    for given in ({}, {"scale": 0.3, "height": 1.7}, {"scale": 1e-30}, {"scale": 1e30, "height": 2e-30})
]


@pytest.mark.parametrize(
    ("which", "dtype", "level"), every_pair(range(len(SLOPES)), DTYPES, LEVELS), indirect=["level"]
)
def test_slopes_are_those_of_the_formula(which: int, dtype: torch.dtype, level: None) -> None:
    f, rule, given = SLOPES[which]
    row = getattr(pg.rules, rule)(**given)
    farthest = math.sqrt(torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).max) / 8
    around = [share * farthest for share in (0.95, 1.0, -1.0, 1.05)]
    far = torch.tensor([1e18, 2e18, 3e18, 1e19, 1e150, 2e153, *around], dtype=torch.float64).to(dtype)
    for size in (1, 63, 320):
        x, grad = numbers(dtype, size)
        x, grad = torch.cat([x, far]), torch.cat([grad, torch.ones_like(far)])
        with way("formula"):
            y, expected = gradient(lambda x: f(x, rule=row), x, grad)
        with way("native"):
            found_y, found = gradient(lambda x: f(x, rule=row), x, grad)
        assert same_bits(found_y, y)
        assert same(found, expected)


def asks_for_huge_pages(x: Tensor) -> bool:
    """Has Linux been asked for huge pages for the middle of x?"""
    middle, is_there = x.data_ptr() + x.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_there = int(found[1], 16) <= middle < int(found[2], 16)
        elif is_there and line.startswith("VmFlags:"):
            return "hg" in line.split()
    raise LookupError("this memory is not in /proc/self/smaps")


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no huge pages")
@pytest.mark.parametrize("rule", ["inward", "elastic"])  # which keep a code and x
def test_large_results_lie_in_huge_pages(rule: str) -> None:
    x = torch.linspace(-2, 2, 10_000_001).requires_grad_()  # 40 MB, which the system hands out for this tensor alone
    pg.clamp(x, -1, 1, rule=rule)  # after which such a call is prepared
    y = pg.clamp(x, -1, 1, rule=rule)
    (grad_x,) = torch.autograd.grad(y, x, y.detach())
    assert [asks_for_huge_pages(one) for one in (x, y, grad_x)] == [False, True, True]
    with kernels.off("native"), torch.no_grad():
        assert torch.equal(y, pg.clamp(x, -1, 1))
    x = torch.zeros(2**25 + 1, requires_grad=True)  # a bit over 128 MiB
    assert not asks_for_huge_pages(pg.clamp(x, -1, 1, rule=rule))
