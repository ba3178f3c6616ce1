"""Activations and steps that keep few bits: what is saved, its gradients in every layout, the numbers, the switches."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import pseudograd as pg
from pseudograd import kernels
from pseudograd.geometry import Steps
from pseudograd.kernels import bits, portable
from pseudograd.ops.fitted_slopes import FITTED
from pseudograd.rule import OPS, make_call, prepared
from pseudograd.testing.contract import values

from ..choices import folded, one_in
from ..watching import Watching

Function = Callable[[Tensor], Tensor]
THREE = pg.rules.fewbit(bits=3)
WAYS: dict[str, tuple[Function, int]] = {  # and how many bits it keeps
    "gelu, 2 bits": (lambda x: pg.gelu(x, rule="fewbit"), 2),
    "gelu, 3 bits": (lambda x: pg.gelu(x, rule=THREE), 3),
    "gelu, tanh": (lambda x: pg.gelu(x, approximate="tanh", rule="fewbit"), 2),
    "silu, 2 bits": (lambda x: pg.silu(x, rule="fewbit"), 2),
    "silu, 3 bits": (lambda x: pg.silu(x, rule=THREE), 3),
    "leaky_relu": (lambda x: pg.ops.leaky_relu(x, 0.3), 1),
    "hardsigmoid": (pg.ops.hardsigmoid, 1),
    "sign": (pg.sign, 1),
    "heaviside": (lambda x: pg.heaviside(x, at_zero=0.5, rule=pg.rules.window(scale=0.3, height=2.5)), 1),
}
every_way = pytest.mark.parametrize("way", WAYS)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SPECIAL = (0.0, -0.0, 0.5, -0.5, 3.0, -3.0, 2.99, torch.inf, -torch.inf, torch.nan)


def inputs(elements: int = 5000, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """x with every threshold in it, and grad of both signs with infinities."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(elements, generator=generator, dtype=torch.float64).mul(2).to(dtype)
    thresholds = [at for steps in FITTED.values() for fitted in steps.values() for at in fitted.thresholds]
    marked = torch.tensor([*SPECIAL, *thresholds], dtype=dtype)
    x[: len(marked)] = marked
    grad = torch.randn(elements, generator=generator, dtype=torch.float64).to(dtype)
    grad[-3:] = torch.tensor([torch.inf, -torch.inf, 0.0])
    return x, grad


def gradient_by_formula(f: Function, x: Tensor, grad: Tensor) -> Tensor:
    """Functorch keeps the inputs and runs the formula."""
    return torch.func.vjp(f, x)[1](grad)[0]


def gradient(f: Function, x: Tensor, grad: Tensor) -> Tensor:
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf, grad)[0]


def assert_same(tensor: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(tensor, expected, rtol=0, atol=0, equal_nan=True)


def saved_by(f: Function, x: Tensor) -> list[Tensor]:
    return values.saved_by(f, (x.detach().requires_grad_(),))


def state_of(y: Tensor) -> tuple[Any, Any, list[Any], tuple[bool, ...]]:
    """The call, the residual, the saved values and the wants of a node of ours."""
    node: Any = y.grad_fn
    call, residual, others = node.state
    tensors = node.saved_tensors[::-1]
    saved = [other if tensor is None else tensor for tensor, other in zip(tensors, others, strict=True)]
    return call, residual, saved, node.needs_input_grad[1:]


# --- what is saved ----------------------------------------------------------------------------------------------------


@every_way
def test_a_call_saves_its_bits_alone_and_has_a_gradient_for_each_input(way: str) -> None:
    f, planes = WAYS[way]
    (saved,) = saved_by(f, torch.zeros(64, 128))
    assert (saved.dtype, saved.nbytes) == (torch.uint8, 8192 * planes // 8)
    for elements, bytes_of_a_plane in ((4096, 512), (4097, 520)):
        assert [tensor.shape for tensor in saved_by(f, torch.zeros(elements))] == [(planes * bytes_of_a_plane,)]
    prepared.clear()  # a call that was not prepared
    call, residual, saved_values, wants = state_of(f(torch.zeros(5000, requires_grad=True)))
    for pull in (residual.pull, portable._pull_steps):
        pulled = pull(torch.ones(5000), saved_values, wants, call)
        assert [gradient is not None for gradient in pulled] == list(wants)


@pytest.mark.parametrize("kind", ["small", "gaps", "expanded", "meta", "a subclass"])
def test_other_tensors_save_x(kind: str) -> None:
    class Named(Tensor):
        pass

    x = {
        "small": lambda: torch.zeros(bits.least_elements - 1),
        "gaps": lambda: torch.zeros(10000)[::2],
        "expanded": lambda: torch.zeros(100, 1).expand(100, 100),
        "meta": lambda: torch.zeros(5000, device="meta"),
        "a subclass": lambda: torch.zeros(5000).as_subclass(Named),
    }[kind]()
    assert [tensor.shape for tensor in saved_by(lambda x: pg.gelu(x, rule="fewbit"), x)] == [x.shape]


def test_neither_pass_has_temporaries_of_the_size_of_x() -> None:
    """The gradient is the only new tensor of that size. The formula reads x alone and never computes the activation again."""
    x = torch.linspace(-1, 1, 2**21)
    steps = Steps((0.25, 1.0), lambda x: [x > 0])
    with Watching() as forward:
        planes = bits.pack_steps(x, steps)
    call = make_call(OPS["leaky_relu"], "exact")
    with Watching() as backward:
        pulled = portable._pull_steps(x, [planes, 0, bits.code_of_slopes(steps.slopes)], (True,), call)
    assert_same(pulled[0], torch.where(x > 0, x, x / 4))
    assert [sizes.count(x.numel()) for sizes in (forward.sizes, backward.sizes)] == [0, 1]
    for f in (pg.gelu, pg.silu):
        y = f(torch.zeros(10, requires_grad=True), rule="fewbit")
        with Watching() as watching:
            y.sum().backward()
        assert "where" in watching.names
        assert not {"gelu", "silu"} & {*watching.names}


# --- its gradients ----------------------------------------------------------------------------------------------------


@folded
@pytest.mark.parametrize(("way", "dtype"), one_in(2, WAYS, DTYPES))
def test_the_bits_give_what_the_formula_gives(way: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several chunks, too, of which the last ends within a byte. The portable kernel declines no dtype: that would be slow."""
    monkeypatch.setattr(bits, "CHUNK", 1024)
    f, _ = WAYS[way]
    x, grad = inputs(5003, dtype)
    expected = gradient_by_formula(f, x, grad)
    for off in ((), ("native",), ("portable",), ("native", "portable")):
        with kernels.switch_off(*off):
            assert_same(gradient(f, x, grad), expected)
    call, residual, saved, _ = state_of(f(x.clone().requires_grad_()))
    assert residual is bits.BITS
    pulled = portable._pull_steps(grad, saved, (True,), call)
    assert_same(pulled[0], expected)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels_last": lambda x: x.reshape(5, 10, 10, 10).contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.reshape(50, 100).t(),
    "permuted": lambda x: x.reshape(10, 20, 25).permute(2, 0, 1),
    "a part of a storage": lambda x: torch.cat([x.new_zeros(7), x])[7:],
    "a size of 1": lambda x: x.reshape(50, 1, 100).transpose(0, 2),
}


@folded
@pytest.mark.parametrize(("way", "layout"), one_in(2, WAYS, LAYOUTS))
def test_dense_layouts_save_bits_too(way: str, layout: str) -> None:
    f, planes = WAYS[way]
    x, grad = (LAYOUTS[layout](value) for value in inputs())
    assert [tensor.shape for tensor in saved_by(f, x)] == [(planes * 632,)]
    expected = gradient_by_formula(f, x, grad)
    grad_x = gradient(f, x, grad)
    assert_same(grad_x, expected)
    assert grad_x.stride() == x.stride()
    contiguous, broadcast = grad.clone(memory_format=torch.contiguous_format), grad[..., :1].expand_as(grad)
    for off in ((), ("native",)):
        with kernels.switch_off(*off):
            assert_same(gradient(f, x, contiguous), expected)
            assert_same(gradient(f, x, broadcast), gradient_by_formula(f, x, broadcast))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exact_is_torchs_own_gradient_bit_for_bit(dtype: torch.dtype) -> None:
    x, grad = inputs(200, dtype)
    for name in ("gelu", "silu", "leaky_relu"):
        ours, theirs = getattr(pg.ops, name), getattr(functional, name)
        assert_same(gradient(ours, x, grad), gradient(theirs, x, grad))


def test_a_slope_of_zero_multiplies_as_torch_does() -> None:
    """0 * inf is NaN there; bits would make 0 of it, so x is saved."""
    x, grad = inputs()
    f, theirs = lambda x: pg.ops.leaky_relu(x, 0.0), lambda x: functional.leaky_relu(x, 0.0)
    assert_same(gradient(f, x, grad), gradient(theirs, x, grad))
    assert [tensor.dtype for tensor in saved_by(f, x)] == [torch.float32]


@every_way
def test_the_second_derivative_is_that_of_a_step(way: str) -> None:
    f, _ = WAYS[way]
    x, grad = (tensor.requires_grad_() for tensor in inputs())
    (first,) = torch.autograd.grad(f(x), x, grad, create_graph=True)
    of_x, of_grad = torch.autograd.grad(first.sum(), (x, grad), allow_unused=True, materialize_grads=True)
    assert not of_x.count_nonzero()
    assert_same(of_grad, gradient_by_formula(f, x.detach(), torch.ones_like(x)))


# --- the numbers ------------------------------------------------------------------------------------------------------

every_fit = pytest.mark.parametrize(("name", "count"), [(name, count) for name in FITTED for count in FITTED[name]])


@every_fit
def test_every_dtype_has_the_same_numbers(name: str, count: int) -> None:
    for numbers in FITTED[name][count]:
        exact = torch.tensor(numbers, dtype=torch.float64)
        assert all(torch.equal(exact.to(dtype).double(), exact) for dtype in DTYPES)
    slopes = torch.tensor(FITTED[name][count].slopes)
    assert torch.equal(slopes + slopes.flip(0), torch.ones(2**count))
    assert bool((slopes != 0).all())


@every_fit
def test_the_reference_steps_where_the_fit_does(name: str, count: int) -> None:
    at = torch.tensor(FITTED[name][count].thresholds, dtype=torch.float64)
    x = torch.cat([at, *(torch.nextafter(at, at + side) for side in (-1, 1))])
    ours = gradient_by_formula(lambda x: getattr(pg, name)(x, rule=pg.rules.fewbit(bits=count)), x, torch.ones_like(x))
    others = [0.0] if name == "gelu" else []
    reference = OPS[name].rules["fewbit"].reference
    assert ours.tolist() == [reference(number, 1.0, *others, fl=float, bits=count)[0] for number in x.tolist()]


# --- wrong calls, and code that nobody edits --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 4, 2.5, 16])
def test_other_bits_are_an_error(count: float) -> None:
    with pytest.raises(ValueError, match=rf"fewbit: bits must be 2 or 3, got {count}"):
        pg.rules.fewbit(bits=count)


OVERRIDDEN: dict[str, tuple[Function, Function, int]] = {  # by family: torch's function, the public op, bits
    "gelu": (lambda x: nn.GELU()(x), WAYS["gelu, 2 bits"][0], 2),
    "silu": (lambda x: functional.silu(x * 1, inplace=True), WAYS["silu, 2 bits"][0], 2),
    "leaky_relu": (lambda x: functional.leaky_relu_(x * 1, 0.3), WAYS["leaky_relu"][0], 1),
    "hardsigmoid": (lambda x: nn.Hardsigmoid(inplace=True)(x * 1), pg.ops.hardsigmoid, 1),
}


@pytest.mark.parametrize("family", OVERRIDDEN)
def test_override_saves_bits_in_a_program_that_nobody_edits(family: str) -> None:
    f, public, planes = OVERRIDDEN[family]
    x, grad = inputs()
    expected = f(x)
    with pg.override(**{family: "fewbit" if family in FITTED else "exact"}) as context:
        grad_x, saved = gradient(f, x, grad), saved_by(f, x)
        assert_same(f(x.clone().requires_grad_()).detach(), expected)
    assert_same(grad_x, gradient(public, x, grad))
    assert [tensor.nbytes for tensor in saved] == [planes * 632]
    assert context.report().rewritten
    assert context.report().missed == ()


def test_hardsigmoid_has_the_rules_of_relu_too_and_its_own_switch_counts_first() -> None:
    x, grad = inputs()
    with pg.override(relu="identity"):
        assert_same(gradient(functional.hardsigmoid, x, grad), grad * (1 / 6))
    with pg.override(relu="identity", hardsigmoid="exact"):
        assert_same(gradient(functional.hardsigmoid, x, grad), gradient(pg.ops.hardsigmoid, x, grad))
