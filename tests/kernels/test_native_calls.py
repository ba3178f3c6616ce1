"""The kernels in C: what a call keeps, which calls are prepared, what is kept from raw pointers, and which library is loaded."""

import contextlib
import gc
import itertools
import re
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import pseudograd as pg
from pseudograd import kernels
from pseudograd.kernels import bits, native
from pseudograd.rule import OPS, call_for, prepared
from pseudograd.testing.measure.gradients import saved_by

from ..choices import folded, slow_but
from .ways import (
    DTYPES,
    FOR_EVERYTHING,
    LAYOUTS,
    LEVELS,
    Function,
    codes_from,
    gradient,
    needs_native,
    numbers,
    same,
    same_bits,
    strides,
    way,
)

pytestmark = needs_native
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
few_and_many = pytest.mark.parametrize("size", [5, 5000])


def _x(size: int = 5, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.linspace(-2, 2, size, dtype=dtype).requires_grad_()


# --- what is kept -----------------------------------------------------------------------------------------------------

# Of other rules, edges and ops: test_what_is_saved in test_contract.py.
BITS_FOR_EACH_ELEMENT: list[tuple[int, Function]] = [
    (2, lambda x: pg.clamp(x, -1, 1)),
    (2, lambda x: pg.clamp_(x.add(1), -1, 1)),
    (2, lambda x: pg.clamp(x, x.new_full((64,), -1), x.new_full((16, 1), 1))),
    (1, lambda x: pg.clamp(x, x.new_full((), -1), torch.ones_like(x), rule="zero", edge="open")),
    (2, lambda x: pg.clamp(x, -1, x.new_full((1, 1, 1), 1), rule="sign")),
    (2, lambda x: pg.clamp(x, -1, x.new_full((8, 1, 64), 1))),
    (2, lambda x: pg.clamp(pg.clamp(x, -2, 2, rule="identity"), -1, 1)),
    (2, lambda x: pg.clamp(x.reshape(64, 1, 2, 64).permute(2, 3, 0, 1), -1, 1)),
    (2, lambda x: pg.clamp(x.as_strided((1, 2, 64, 64), (3, 1, 128, 2)), -1, 1)),
    (2, lambda x: pg.clamp(x.reshape([8192] + [1] * 14), -1, 1)),  # a number of 64 bits can order 15 dimensions
]


@folded
@every_dtype
@pytest.mark.parametrize(("count", "f"), BITS_FOR_EACH_ELEMENT, ids=range(len(BITS_FOR_EACH_ELEMENT)))
def test_bits_for_each_element(f: Function, count: int, dtype: torch.dtype) -> None:
    x = torch.randn(8, 16, 64, dtype=dtype, requires_grad=True)
    assert sum(t.nbytes for t in saved_by(f, (x,)) if t.numel() > 1) == x.numel() * count // 8


KEEPS_X: dict[str, Function] = {
    "asks how far x is": lambda x: pg.clamp(x, -1, 1, rule="elastic"),
    "more than four cases": lambda x: pg.clamp(x, -1, 1, rule="sign", edge="inward"),
    "a tensor alone": lambda x: pg.clamp(x, torch.tensor(-1.0), None),
    "a learned max": lambda x: pg.clamp(x, torch.tensor(-1.0), torch.tensor(1.0, requires_grad=True)),
    "larger than x": lambda x: pg.clamp(x, torch.zeros(2, 100, 100), torch.tensor(1.0)),
    "another dtype": lambda x: pg.clamp(x, torch.zeros(100).half(), torch.ones(100).half()),
    "where do two bounds meet?": lambda x: pg.clamp(x, torch.zeros(100), torch.tensor(1.0), edge="inward"),
    "exp has it": lambda x: pg.clamp(x.exp(), 0.2, 0.8),
    "less than 4096 elements": lambda x: pg.clamp(x.view(-1)[:4095], 0.2, 0.8),
    "every second column": lambda x: pg.clamp(x[:, ::2], 0.2, 0.8),
    "holes": lambda x: pg.clamp(x[::99, :].repeat(1, 50).as_strided((2, 4000), (5000, 1)), 0.2, 0.8),
    "16 dimensions": lambda x: pg.clamp(x.reshape([10000] + [1] * 15), 0.2, 0.8),
}


@folded
@pytest.mark.parametrize("name", KEEPS_X)
def test_what_keeps_x(name: str) -> None:
    x = torch.randn(100, 100, requires_grad=True)
    saved = saved_by(KEEPS_X[name], (x,))
    assert all(t.is_floating_point() for t in saved)
    if name == "less than 4096 elements":
        with codes_from(FOR_EVERYTHING):
            for shape in ((0,), (2, 0, 3), ()):
                x = torch.full(shape, 3.0, requires_grad=True)
                assert torch.autograd.grad(pg.clamp(x, -1, 1).sum(), x)[0].shape == torch.Size(shape)
    if "has it" in name:  # the same tensor again costs nothing
        assert sum({t.data_ptr(): t.nbytes for t in saved}.values()) == x.nbytes


@pytest.mark.parametrize("way_of_code", ["code", "native code"])
def test_a_code_says_where_x_was_before_its_bounds_changed(way_of_code: str) -> None:
    """Torch, which keeps the tensors, would raise."""
    x, low, high = _x(5000), torch.full((5000,), -1.0), torch.ones(())
    with way(way_of_code):
        y = pg.clamp(x, low, high)
        low.fill_(5.0), high.fill_(7.0)
        (grad_x,) = torch.autograd.grad(y, x, torch.ones(5000))
    assert torch.equal(grad_x, (x.detach() >= -1).float())


def test_a_bound_that_the_graph_is_not_asked_for_gets_nothing() -> None:
    low, x = torch.full((5000,), -1.0, requires_grad=True), _x(5000)
    for context in (lambda: pg.override(clamp="inward"), lambda: pg.pin_edge("half")):
        with context():
            for _ in range(3):
                (grad_low,) = torch.autograd.grad(torch.clamp_min(x, low).sum(), low)
                assert grad_low.tolist() == (x < -1).float().tolist()


def test_in_place_a_tensor_alone_is_a_bound_under_a_pin() -> None:
    x, bound = _x(5000), torch.linspace(-1, 1, 5000)
    for bounds in ((bound, None), (None, bound)):
        with pg.pin_edge("half"):
            y, expected = (x * 1).clamp_(*bounds), torch.clamp(x, *bounds)
        assert torch.equal(y, expected)
        assert torch.equal(*(torch.autograd.grad(value.sum(), x)[0] for value in (y, expected)))


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
    assert torch.equal(leaf.grad, torch.ones(5000).masked_fill((before < -1) & (torch.arange(5000) < 2500), 0))
    assert torch.equal(base.detach()[:2500], before[:2500].clamp(-1, 1))


@pytest.mark.parametrize("bounds", [(-1, 1), (torch.full((5000,), -1.0), torch.ones(()))], ids=["numbers", "tensors"])
def test_codes_are_kept_by_every_kind_of_checkpoint(bounds: tuple[object, object]) -> None:
    """Also where C computes in one of its passes alone."""
    x, grad = numbers(torch.float32, 5000)

    def f(x: Tensor) -> Tensor:
        return pg.clamp(x * 1, *bounds).sin()

    with way("formula"):
        _, expected = gradient(f, x, grad)
    for use_reentrant, *passes in itertools.product((True, False), repeat=3):
        leaf = x.clone().requires_grad_()
        with kernels.switch_off(*[] if passes[0] else ["native"]):
            y = checkpoint(f, leaf, use_reentrant=use_reentrant)
        with kernels.switch_off(*[] if passes[1] else ["native"]):
            y.backward(grad)
        assert same(leaf.grad, expected)


def _spread(code: Tensor) -> Tensor:
    """Every second byte of a row."""
    wider = code.new_full((*code.shape[:-1], 2 * code.shape[-1]), 7)
    wider[..., ::2] = code
    return wider[..., ::2]


HANDED_BACK: dict[str, Function] = {
    "every second byte": _spread,
    "in a row": lambda code: code.reshape(1, -1)[0],
    **{str(dtype): lambda code, dtype=dtype: code.to(dtype) for dtype in (torch.int8, torch.int64, torch.float16)},
    "moved by one byte": lambda code: torch.cat([code.new_ones(1), code.reshape(-1)])[1:].view(code.shape),
}
KEEPS_A_CODE: dict[str, Function] = {
    "clamp": lambda x: pg.clamp(x, -1, 1),
    "clamp, half": lambda x: pg.clamp(x, -1, 1, edge="half"),
    "clamp_": lambda x: pg.clamp_(x * 1, -1, 1),
    "between tensors": lambda x: pg.clamp(x, torch.full_like(x, -1), torch.full_like(x, 1)),
    "between channels": lambda x: pg.clamp(x, torch.full((1,), -1.0), torch.full((1,), 1.0)),
    "leaky_relu": lambda x: pg.ops.leaky_relu(x, 0.2),
    "gelu": lambda x: pg.gelu(x, rule="fewbit"),
    "round": lambda x: pg.round(x, rule="trust"),
}


@folded
@pytest.mark.parametrize("switched_off", ["", "native"])
@pytest.mark.parametrize("how", HANDED_BACK)
@pytest.mark.parametrize("name", KEEPS_A_CODE)
def test_a_code_that_a_hook_hands_back_otherwise_says_the_same(name: str, how: str, switched_off: str) -> None:
    """A kernel reads it as bytes that follow each other, so it must look."""
    x, grad, handed = torch.linspace(-4, 4, 5001), torch.linspace(-1, 1, 5001), []
    x[::7] = 1.0
    _, expected = gradient(KEEPS_A_CODE[name], x, grad)

    def hand_back(saved: Tensor) -> Tensor:
        if saved.dtype is torch.uint8:
            handed.append(saved)
            return HANDED_BACK[how](saved)
        return saved

    off = kernels.switch_off(*[switched_off] if switched_off else [])
    with off, torch.autograd.graph.saved_tensors_hooks(lambda t: t, hand_back):
        assert torch.equal(gradient(KEEPS_A_CODE[name], x, grad)[1], expected)
    assert len(handed) == 1
    lost = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t[..., :8] if t.dtype is torch.uint8 else t)
    with lost, pytest.raises(RuntimeError):
        gradient(KEEPS_A_CODE[name], x, grad)


# --- which calls are prepared -----------------------------------------------------------------------------------------

ZERO = torch.zeros(())
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


MANY_RULES: list[Function] = [
    *(lambda x, rule=rule: pg.clamp(x, -1, 1, rule=rule) for rule in ("inward", "sign", "elastic", "identity")),
    lambda x: pg.clamp(x, ZERO, 1.0 + ZERO),
    lambda x: pg.clamp(x, ZERO),
    lambda x: pg.clamp_(x * 1.0, -1, 1),
    lambda x: pg.sign(x, rule="triangle"),
    lambda x: pg.fake_quantize(x, 0.5, quant_min=-4, quant_max=3),
    lambda x: pg.silu(x, rule="fewbit"),  # torch.gelu refuses tensors of many dimensions
    pg.sign,
]


@pytest.mark.parametrize("dimensions", [15, 16, 40])
@pytest.mark.parametrize("ones", [4, 13])
def test_tensors_of_more_dimensions_than_the_operators_count(ones: int, dimensions: int, calls: list[str]) -> None:
    """2 to the power of `ones` elements; the dimensions between them are of size 1."""
    shape = [*[2, 1] * min(ones, dimensions - ones), *[2] * max(0, 2 * ones - dimensions)]
    shape += [1] * (dimensions - len(shape))
    x, grad = (value.reshape(shape) for value in numbers(torch.float32, 2**ones))
    for laid in (x, x.permute(*range(1, dimensions), 0)):
        for f in MANY_RULES:
            y, pull = torch.func.vjp(f, laid.clone())
            expected = y, *pull(grad.reshape(laid.shape))
            for _ in range(2):
                assert all(map(same, gradient(f, laid, grad.reshape(laid.shape)), expected))
    assert bool(set(calls) - {"clamp_between", "quantize"}) == (dimensions == 15)  # which decline them themselves
    assert ("pull_x" in calls) == (dimensions == 15)


@folded
@pytest.mark.parametrize("size", [8, 5000])
@pytest.mark.parametrize("f", MANY_RULES, ids=range(len(MANY_RULES)))
def test_hooks_that_hand_out_another_dtype(f: Function, size: int) -> None:
    """A program keeps x in half precision, to save memory."""
    x, grad = torch.linspace(-2, 2, size).half().float(), torch.linspace(-1, 3, size)
    expected = torch.func.vjp(f, x)[1](grad)[0]
    for _ in range(2):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half() if t.is_floating_point() else t, lambda t: t):
            grad_x = gradient(f, x, grad)[1]
        assert grad_x.dtype is torch.float32
        torch.testing.assert_close(grad_x, expected, rtol=1e-3, atol=1e-3)


def test_a_call_is_prepared_once(lowerings: list[str]) -> None:
    for _ in range(3):
        pg.clamp(_x(), -1, 1)
    assert lowerings == ["Pseudograd", "function_saving_x", "function_saving_x"]
    pg.clamp(_x(dtype=torch.float64), -1, 1)
    pg.clamp(torch.nn.Parameter(torch.zeros(3)), -1, 1)
    with kernels.switch_off("native"):
        pg.clamp(_x(), -1, 1)
    pg.clamp(_x(), -1, 1)
    assert lowerings[3:] == ["Pseudograd"] * 4
    other = bits.BITS.replaced(name="other", priority=0)  # a residual that comes after its own changes nothing
    kernels.register(other)
    try:
        for _ in range(2):
            pg.clamp(_x(5000), -1, 1)
    finally:
        kernels.remove(other)
    assert lowerings[7:] == ["Pseudograd", "function_saving_code"]
    nodes = [pg.clamp(_x(), -1, 1, rule=rule).grad_fn for rule in ("inward", "identity") for _ in range(2)]
    nodes += [pg.clamp_(_x(5000) * 1, -1, 1).grad_fn]
    assert {type(node).__name__ for node in nodes} == {"PseudogradBackward"}


def test_a_call_on_a_grid_is_prepared_by_the_first() -> None:
    prepared.clear()
    pg.fake_quantize(_x(), 0.25)
    (ready,) = prepared.values()
    assert ready


@pytest.mark.parametrize("size", [5, 5000])
@pytest.mark.parametrize("rule", ["inward", "zero"])
def test_a_call_between_tensors_is_prepared_once(rule: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, grad = numbers(torch.float32, size)
    low, high = torch.full((1,), -1.0), torch.linspace(0, 2, size)

    def gradients(*asking: int) -> list[Tensor]:
        tensors = [tensor.detach().requires_grad_(k in asking) for k, tensor in enumerate((x, low, high))]
        y = pg.clamp(*tensors, rule=rule)
        return [y.detach(), *torch.autograd.grad(y, [tensors[k] for k in asking], grad)]

    wanted = [(0,), (0, 1, 2), (2,)]
    with kernels.switch_off("native", "portable"):
        expected = [gradients(*asking) for asking in wanted]
    prepared.clear()
    gradients(0)
    with monkeypatch.context() as patch:
        patch.setattr("pseudograd.engine.run", None)
        for asking, those in zip(wanted, expected, strict=True):
            assert all(map(same, gradients(*asking), those))
    assert pg.clamp(x.requires_grad_(), low.double(), high).dtype is torch.float64  # which is read anew
    with pytest.raises(ValueError, match="broadcast"):
        pg.clamp(x, low, torch.ones(3))


@pytest.mark.parametrize(("size", "way"), [(5, "apply_saving_x"), (5000, "apply_saving_code")])
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


@pytest.mark.parametrize("size", [10, 5000])
def test_what_is_remembered_of_a_call_holds_no_tensor_of_it(size: int) -> None:
    for context in (lambda: pg.override(clamp="inward"), lambda: pg.pin_edge("half")):
        with context():
            bound = torch.ones(size)
            for _ in range(3):
                torch.clamp(torch.zeros(size, requires_grad=True), -bound, bound)
            gone = weakref.ref(bound)
            del bound
            gc.collect()
            assert gone() is None


@folded
@every_dtype
@pytest.mark.parametrize("layout", LAYOUTS)
def test_identity_is_prepared_and_keeps_nothing(layout: str, dtype: torch.dtype, lowerings: list[str]) -> None:
    def f(x: Tensor) -> Tensor:
        return pg.clamp(x, -1, 0.5, rule="identity")

    f(torch.zeros(1, dtype=dtype, requires_grad=True))
    for size in (24, 7200):
        x, grad = (LAYOUTS[layout](value.reshape(2, 3, 4, -1)) for value in numbers(dtype, size))
        del lowerings[:]
        y, grad_x = gradient(f, x, grad)
        assert lowerings == ["function_saving_nothing"]
        assert same_bits(y, torch.clamp(x, -1, 0.5))
        assert strides(y) == strides(torch.clamp(x, -1, 0.5))
        assert same(grad_x, grad)
        leaf = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(f(leaf).square().sum(), leaf, create_graph=True)
        assert same(torch.autograd.grad(first.sum(), leaf)[0], torch.full_like(x, 2.0))
        assert saved_by(f, (leaf,)) == []


@pytest.mark.parametrize("rule", ["zero", "inward", "sign", "leaky", "elastic", "identity"])
def test_bounds_that_only_a_rewritten_call_may_have(rule: str) -> None:
    """torch.clamp gives max for crossed numbers and NaN for NaN; our own clamp takes neither."""
    nan, inf = torch.nan, torch.inf
    for size in (256, 5000):
        x, grad = numbers(torch.float32, size)
        for bounds in ((1.0, -1.0), (0.5, 0.5), (inf, -inf), (nan, 1.0), (-1.0, nan), (nan, None), (None, nan)):
            with pg.override(clamp=rule):
                expected = torch.func.vjp(lambda x: torch.clamp(x, *bounds), x)[1](grad)[0]  # noqa: B023
                y, grad_x = gradient(lambda x: torch.clamp(x, *bounds), x, grad)  # noqa: B023
            assert same(y, torch.clamp(x, *bounds))
            assert same(grad_x, expected)


def test_a_memory_tells_equal_arguments_apart() -> None:
    """-0.0 is 0.0 to a table, and 1 is True."""
    for zero in (0.0, -0.0, 0.0, -0.0):
        for at, bounds in ((-1.0, (zero, 1.0)), (1.0, (-1.0, zero))):
            y = pg.clamp(torch.full((3,), at).requires_grad_(), *bounds)
            assert y.signbit().all() == y.signbit().any() == (str(zero) == "-0.0")
    pg.clamp(_x(), -1, 1, maximize=False)
    for wrong in (0, 1, None):
        with pytest.raises(TypeError, match="maximize"):
            pg.clamp(_x(), -1, 1, maximize=wrong)
    for wrong in ([], {}):
        with pytest.raises(TypeError):
            pg.clamp(_x(), wrong, 1)
        for how in ("rule", "edge"):
            with pytest.raises((TypeError, ValueError)):
                pg.clamp(_x(), -1, 1, **{how: wrong})
    for size in (5, 5000):  # the memory does not know `maximize`; bounds that no other test asks for
        x, grad = torch.linspace(-3, 3, size), torch.linspace(-1, 2, size)
        for maximize in (True, True, False, True):
            f = partial(pg.clamp, min=-0.7125, max=0.8125, maximize=maximize)
            assert same(gradient(f, x, grad)[1], torch.func.vjp(f, x)[1](grad)[0])


# --- what is kept from raw pointers -----------------------------------------------------------------------------------

FIRST: dict[str, tuple[Function, list[str]]] = {
    "few": (lambda x: pg.clamp(x[:10], -1, 1), ["pull_x"]),
    "many": (lambda x: pg.clamp(x, -1, 1), ["encode", "pull_code"]),
    "in place": (lambda x: pg.clamp_(x * 1.0, -1, 1), ["encode_", "pull_code"]),
    "tensors": (lambda x: pg.clamp(x, ZERO - 1, ZERO + 1), ["encode_between", "pull_code"]),
    "one tensor": (lambda x: pg.clamp(x, ZERO - 1), ["pull_bounds"]),
    "elastic": (lambda x: pg.clamp(x, -1, 1, rule="elastic"), ["pull_x"]),
    "narrow elastic": (lambda x: pg.clamp(x, 0, 0.5, rule="elastic"), ["pull_x"]),
    "inverting": (lambda x: pg.clamp(x, 0, 0.5, rule="inverting"), ["formula"]),
    "grid": (lambda x: pg.fake_quantize(x, 0.25, quant_min=-4, quant_max=3), ["quantize", "pull_x"]),
    "too large a grid": (lambda x: pg.fake_quantize(x, 1.0, quant_min=-(2**25), quant_max=2**25), []),
    "a scale that may learn": (lambda x: pg.fake_quantize(x, ZERO + 0.25, quant_min=-4, quant_max=3), ["formula"] * 2),
    "sigmoid": (lambda x: pg.sign(x, rule="sigmoid"), ["formula", "formula"]),
    "jumprelu": (lambda x: pg.jumprelu(x, ZERO + 0.5, bandwidth=0.5), ["formula", "formula"]),
    "gelu": (lambda x: pg.gelu(x, rule="fewbit"), ["steps", "pull_code"]),
    "window": (pg.sign, ["steps", "pull_code"]),
    "triangle": (lambda x: pg.sign(x, rule="triangle"), ["pull_x"]),
}


@folded
@pytest.mark.parametrize("kind", FIRST)
def test_the_first_call_of_all_runs_in_c(kind: str, calls: list[str]) -> None:
    f, expected = FIRST[kind]
    prepared.clear()
    del calls[:]
    leaf = _x(5000)
    f(leaf).sum().backward()
    assert calls == expected


def test_a_bound_for_many_neighbours_has_values_of_its_own(calls: list[str]) -> None:
    """Where x is kept, from 4096 elements on; not of numbers, of a single bound, nor where nothing is recorded."""
    low, high = torch.linspace(-2, -1, 4).reshape(4, 1, 1), torch.linspace(0, 1, 4).reshape(4, 1, 1)
    low.requires_grad_()  # else the call keeps a code, which is made with the values
    for x in (
        _x(4096).view(1, 4, 32, 32),
        _x(2 * 4096).view(2, 4, 32, 32).contiguous(memory_format=torch.channels_last),
    ):
        del calls[:]
        y = pg.clamp(x, low, high)
        assert torch.equal(y, torch.clamp(x, low, high))
        assert y.stride() == x.stride()
        assert calls == ["clamp_between"]
        pg.clamp(x, -1, 1), pg.clamp(x, low, None), pg.clamp(x[:, :, :1], low, high)
        with torch.no_grad():
            pg.clamp(x, low, high)
        assert calls.count("clamp_between") == 1


class Sub(Tensor):
    pass


GRADS: dict[str, Function] = {
    "negative": lambda g: torch.complex(torch.zeros_like(g), -g).conj().imag,
    "zero": lambda g: torch._efficientzerotensor(g.shape),
    "sparse": lambda g: g.to_sparse(),
    "subclass": lambda g: g.as_subclass(Sub),
}


@few_and_many
@pytest.mark.parametrize("kind", GRADS)
def test_grads_that_are_not_plain(kind: str, size: int, calls: list[str]) -> None:
    x, grad = numbers(torch.float32, size)
    grad = torch.nan_to_num(grad, posinf=2.0, neginf=-2.0)
    with way("formula"):
        _, expected = gradient(lambda x: pg.clamp(x, -1, 1), x, torch.zeros_like(grad) if kind == "zero" else grad)
    # For a prepared call torch itself makes the zeros and the sign real, and refuses what has no memory.
    for is_prepared in (False, True):
        leaf = x.clone().requires_grad_()
        y = pg.clamp(leaf, -1, 1)
        del calls[:]
        y.backward(GRADS[kind](grad))
        assert calls == [] or is_prepared
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
    "mkldnn": lambda: torch.zeros(5000).to_mkldnn(),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_that_are_not_plain(kind: str, calls: list[str]) -> None:
    x = TENSORS[kind]().detach().requires_grad_()
    is_refused = pytest.raises(RuntimeError) if kind == "mkldnn" else contextlib.nullcontext()  # by torch itself
    with is_refused, getattr(x, "fake_mode", contextlib.nullcontext()):
        y = pg.relu(x) if kind == "sparse" else pg.clamp(x, -1, 1)  # for which torch.clamp has no values
        (y.to_dense() if kind == "sparse" else y).sum().backward()
        if kind == "negative":
            assert torch.equal(pg.clamp(_x(5000), x.detach(), torch.ones(5000)), _x(5000).clamp(-1, 1))
    assert calls == []


@few_and_many
def test_transforms_and_modes(size: int, calls: list[str]) -> None:
    """Neither functorch, nor a dispatch mode, nor a second derivative may lose sight of what is computed."""
    x, grad = numbers(torch.float32, size)
    pg.clamp(x.clone().requires_grad_(), -1, 1)
    del calls[:]
    torch.func.vjp(lambda x: pg.clamp(x, -1, 1), x)[1](grad)
    torch.vmap(torch.func.grad(lambda x: pg.clamp(x, -1, 1).sum()))(x)
    leaf = x.clone().requires_grad_()
    with FlopCounterMode(display=False):
        gradient(lambda x: pg.clamp(x, -1, 1), x, grad)
        gradient(lambda x: pg.clamp(x, ZERO, ZERO + 1, rule="elastic"), x, grad)
        y = pg.clamp(leaf, -1, 1)
    torch.autograd.grad(y, leaf, grad, create_graph=True)
    torch.autograd.grad(y, leaf, torch.stack([grad, grad]), is_grads_batched=True)
    assert calls == []


def test_operators_that_get_what_does_not_fit_give_nothing() -> None:
    """They cannot raise; they must not write."""
    x, code, many = torch.zeros(100), torch.zeros(32, dtype=torch.uint8), torch.zeros([1] * 16)
    code_of_inward = bits.code_of_numbers(call_for(OPS["clamp"], "inward", "closed"), -1.0, 1.0, torch.float32)
    settings = native.settings_of(code_of_inward, bits.X, -1.0, 1.0, torch.float32)
    run = native.operators
    for result in (
        *(run.clamp(wrong, settings) for wrong in (torch.zeros(3, dtype=torch.int64), many)),
        *(run.clamp(x, wrong) for wrong in (settings[:8], settings.float())),
        run.encode(x.to(torch.uint8), settings)[0],
        run.pull_code(x, code[:31], settings, 0),
        run.pull_code(x, torch.zeros(64, dtype=torch.uint8)[::2], settings, 0),
        run.pull_code(x, torch.zeros(1, dtype=torch.uint8).expand(32), settings, 0),
        *(run.pull_code(x, code.to(wrong), settings, 0) for wrong in (torch.int8, torch.int16)),
        run.pull_code(x, code, settings, 1),
        run.pull_code(x.reshape(10, 10), code, settings, 0x11),
        *(run.pull_x(x, wrong, settings) for wrong in (x.double(), x[:50])),
        run.pull_bounds(x, x, x[:3], x, settings),
        run.pull_bounds(x, x, x, x.double(), settings),
        run.clamp_between(x, x[0], x[1].double()),
        run.clamp_between(x, x[0], x[:3]),
        run.clamp_between(x[0], x[:1], x[:1].reshape(1, 1)),
        run.clamp_between(x.long(), x[0].long(), x[1].long()),
        *(run.clamp_between(wrong, x[0], x[1]) for wrong in (x[::2], many)),
        run.encode_between(x, x[0], x[1], settings[:8])[0],
        run.encode_between(x, x[:3], x[1], settings)[0],
        run.encode_between(x, x, x.double(), settings)[1],
        run.encode_between(x[::2], x[::2], x[::2], settings)[0],
        run.encode_between(x[0], x[:1], x[:1].reshape(1, 1), settings)[1],
        run.encode_(torch.zeros(10).expand(3, 10), settings)[0],
    ):
        assert result.numel() == 0
    three, four = torch.zeros(3, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    assert run.steps(x, three).shape == run.steps(x.reshape(5, 1, 20).permute(2, 1, 0), three).shape == (32,)
    assert run.steps(x, four).shape == (16,)
    for steps in (three, four):
        for wrong in (x.reshape(10, 10)[:, :5], x[:10].expand(10, 10), x[::2], x.long()):
            assert run.steps(wrong, steps).numel() == 0
        assert run.steps(x, steps.float()).numel() == 0
    for count in (0, 2, 5, 8):
        assert run.steps(x, torch.zeros(count, dtype=torch.float64)).numel() == 0


def _asks_for_huge_pages(x: Tensor) -> bool:
    """Has Linux been asked for huge pages for the middle of x?"""
    middle, is_inside = x.data_ptr() + x.nbytes // 2, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            is_inside = int(match[1], 16) <= middle < int(match[2], 16)
        elif is_inside and line.startswith("VmFlags:"):
            return "hg" in line.split()
    raise LookupError("this memory is not in /proc/self/smaps")


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no huge pages")
@pytest.mark.parametrize("rule", slow_but(["inward"], ["inward", "elastic"], pytest.mark.program))  # a code and x
def test_large_results_lie_in_huge_pages(rule: str) -> None:
    x = _x(10_000_001)  # 40 MB, which the system hands out for this tensor alone
    pg.clamp(x, -1, 1, rule=rule)  # after which such a call is prepared
    y = pg.clamp(x, -1, 1, rule=rule)
    (grad_x,) = torch.autograd.grad(y, x, y.detach())
    assert [_asks_for_huge_pages(tensor) for tensor in (x, y, grad_x)] == [False, True, True]
    with kernels.switch_off("native"), torch.no_grad():
        assert torch.equal(y, pg.clamp(x, -1, 1))
    x = torch.zeros(2**25 + 1, requires_grad=True)  # a bit over 128 MiB
    assert not _asks_for_huge_pages(pg.clamp(x, -1, 1, rule=rule))


# --- which library is loaded ------------------------------------------------------------------------------------------


def test_without_a_library_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turned off, none, a broken one, one of other sources, whose operators may write where they should not, and too old a torch."""
    with monkeypatch.context() as patch:
        patch.setenv("PSEUDOGRAD_NATIVE", "0")
        assert native._load() == ("not active", "turned off by PSEUDOGRAD_NATIVE=0", None)
    with monkeypatch.context() as patch:
        patch.setattr(native, "_VERSION", native._VERSION + 1)
        assert native._load() == (
            "not active",
            f"the library was built from other sources: its version is {native._VERSION - 1}, this package needs "
            f"{native._VERSION}. Install pseudograd again, or run python setup.py build_ext --inplace",
            None,
        )
    with monkeypatch.context() as patch:
        patch.setattr(native, "_NEWEST", "an operator")
        assert "its version is 0" in native._load()[1]
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


def test_the_version_is_that_of_the_sources() -> None:
    (version,) = re.findall(r"enum \{ VERSION = (\d+) \}", native.LIBRARY.with_name("rules.h").read_text())
    assert int(version) == native._VERSION == native.operators.version()


@pytest.mark.parametrize("version", ["2.10.0", "2.10.0a0+git1234567", "2.11", "3.0.1.dev20300101+cpu"])
def test_it_loads_for_torch_from_2_10_on_and_takes_the_best_loops(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    state, why, operators = native._load()
    assert state == "active"
    assert why == next(name for name, number in LEVELS.items() if number == operators.choose(2))


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacfwd, torch.vmap])
def test_settings_that_are_made_inside_a_transform_belong_to_none(
    transform: Callable[..., Callable[..., object]],
) -> None:
    made: list[Tensor] = []

    def f(x: Tensor) -> Tensor:
        made.append(native.tensor_of(2.0, 3.0))
        return x.square().sum()

    transform(f)(torch.ones(2, 2))
    assert not any(map(torch._C._functorch.is_functorch_wrapped_tensor, made))
