"""Activations and steps that keep few bits: what is kept, its gradients in every layout, the numbers, the switches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import pseudograd as pg
from pseudograd import kernels
from pseudograd.geometry import Steps
from pseudograd.kernels import bits, portable
from pseudograd.ops.fitted_slopes import FITTED
from pseudograd.rule import OPS, make_call
from pseudograd.testing.contract import values
from pseudograd.testing.contract.cases import cases_of

from ..choices import folded

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


def by_formula(f: Function, x: Tensor, grad: Tensor) -> Tensor:
    """Functorch keeps the inputs and runs the formula."""
    return torch.func.vjp(f, x)[1](grad)[0]


def plainly(f: Function, x: Tensor, grad: Tensor) -> Tensor:
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf, grad)[0]


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


# --- what is kept -----------------------------------------------------------------------------------------------------


@every_way
def test_it_keeps_its_bits_and_nothing_else(way: str) -> None:
    f, planes = WAYS[way]
    x = torch.zeros(64, 128, requires_grad=True)
    saved = values.saved_by(f, (x,))
    assert [(tensor.dtype, tensor.nbytes) for tensor in saved] == [(torch.uint8, 8192 * planes // 8)]
    for elements, bytes_of_a_plane in ((4096, 512), (4097, 520)):
        few = torch.zeros(elements, requires_grad=True)
        assert [tensor.shape for tensor in values.saved_by(f, (few,))] == [(planes * bytes_of_a_plane,)]


@every_way
@pytest.mark.parametrize("off", [(), ("native",)], ids=str)
def test_planes_lie_as_the_kernels_expect_them(way: str, off: tuple[str, ...]) -> None:
    """Bit i % 8 of byte i // 8 of plane p is bit p of the code; the slope of a code is that of the formula."""
    f, planes = WAYS[way]
    x, _ = inputs(4099)
    with kernels.off(*off):
        (codes,) = values.saved_by(f, (x.requires_grad_(),))
    rows = codes.reshape(planes, -1).tolist()
    found = [sum((rows[p][i // 8] >> i % 8 & 1) << p for p in range(planes)) for i in range(len(x))]
    slopes = by_formula(f, x.detach(), torch.ones_like(x))
    by_code: dict[int, set[float]] = {}
    for code, slope in zip(found, slopes.tolist(), strict=True):
        by_code.setdefault(code, set()).add(slope)
    assert len(by_code) == 2**planes
    assert all(len(of_one) == 1 for of_one in by_code.values())


@every_way
def test_a_gradient_for_each_input(way: str) -> None:
    """Autograd takes more without a word."""
    y = WAYS[way][0](torch.zeros(5000, requires_grad=True))
    node: Any = y.grad_fn
    call, residual, others = node.state
    wants = node.needs_input_grad[1:]
    kept = [other if tensor is None else tensor for tensor, other in zip(node.saved_tensors[::-1], others, strict=True)]
    for pull in (residual.pull, portable._pull_steps):
        assert [gradient is not None for gradient in pull(torch.ones(5000), kept, wants, call)] == list(wants)


@pytest.mark.parametrize("kind", ["small", "gaps", "expanded", "meta", "a subclass"])
def test_other_tensors_keep_x(kind: str) -> None:
    class Named(Tensor):
        pass

    x = {
        "small": lambda: torch.zeros(bits.least - 1),
        "gaps": lambda: torch.zeros(10000)[::2],
        "expanded": lambda: torch.zeros(100, 1).expand(100, 100),
        "meta": lambda: torch.zeros(5000, device="meta"),
        "a subclass": lambda: torch.zeros(5000).as_subclass(Named),
    }[kind]()
    saved = values.saved_by(lambda x: pg.gelu(x, rule="fewbit"), (x.requires_grad_(),))
    assert [tensor.shape for tensor in saved] == [x.shape]


@every_way
def test_a_trace_of_torch_jit_keeps_x(way: str) -> None:
    """Sizes are tensors there: whoever asks them leaves a warning, and a number that holds for one x only."""
    f, _ = WAYS[way]
    x, _ = inputs()
    saved: list[Tensor] = []

    def noted(x: Tensor) -> Tensor:
        saved.extend(values.saved_by(f, (x,)))
        return f(x)

    traced = torch.jit.trace(noted, x.clone().requires_grad_(), check_trace=False)
    assert [tensor.dtype for tensor in saved] == [x.dtype]
    assert_same(traced(x[:4500]), f(x[:4500]))


class CountingWhole(TorchDispatchMode):
    """Counts the new tensors of `elements` or more."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements, self.count = elements, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {tensor.untyped_storage().data_ptr() for tensor in args if isinstance(tensor, Tensor)}
        if isinstance(made, Tensor) and made.untyped_storage().data_ptr() not in given:
            self.count += made.numel() >= self.elements
        return made


def test_neither_pass_has_temporaries_of_the_size_of_x() -> None:
    """What a backward gives is the only new tensor of that size."""
    x = torch.linspace(-1, 1, 2**21)
    steps = Steps((0.25, 1.0), lambda x: [x > 0])
    with CountingWhole(x.numel()) as forward:
        planes = bits.pack_steps(x, steps)
    call = make_call(OPS["leaky_relu"], "exact")
    with CountingWhole(x.numel()) as backward:
        made = portable._pull_steps(x, [planes, 0, bits.code_of_slopes(steps.slopes)], (True,), call)
    assert made is not None
    assert_same(made[0], torch.where(x > 0, x, x / 4))
    assert (forward.count, backward.count) == (0, 1)


def test_the_formula_of_fewbit_does_not_compute_the_activation_again() -> None:
    """It reads x alone."""
    seen: list[str] = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    for f in (pg.gelu, pg.silu):
        y = f(torch.zeros(10, requires_grad=True), rule="fewbit")
        with Watching():
            y.sum().backward()
    assert "where" in seen
    assert not {"gelu", "silu"} & set(seen)


# --- its gradients ----------------------------------------------------------------------------------------------------


@folded
@every_way
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_bits_give_what_the_formula_gives(way: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several chunks, too, of which the last ends within a byte."""
    monkeypatch.setattr(bits, "CHUNK", 1024)
    f, _ = WAYS[way]
    x, grad = inputs(5003, dtype)
    expected = by_formula(f, x, grad)
    assert_same(plainly(f, x, grad), expected)
    for off in (("native",), ("portable",), ("native", "portable")):
        with kernels.off(*off):
            assert_same(plainly(f, x, grad), expected)


@every_way
def test_the_portable_kernel_declines_no_dtype(way: str) -> None:
    """It is not slower by mistake: what it declines is computed with temporaries of the size of x."""
    f, _ = WAYS[way]
    for dtype in DTYPES:
        x, grad = inputs(dtype=dtype)
        y = f(x.requires_grad_())
        node: Any = y.grad_fn
        call, residual, others = node.state
        kept = [
            other if tensor is None else tensor for tensor, other in zip(node.saved_tensors[::-1], others, strict=True)
        ]
        assert residual is bits.BITS
        made = portable._pull_steps(grad, kept, (True,), call)
        assert made is not None
        assert_same(made[0], plainly(f, x, grad))


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels_last": lambda x: x.reshape(5, 10, 10, 10).contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.reshape(50, 100).t(),
    "permuted": lambda x: x.reshape(10, 20, 25).permute(2, 0, 1),
    "a part of a storage": lambda x: torch.cat([x.new_zeros(7), x])[7:],
    "a size of 1": lambda x: x.reshape(50, 1, 100).transpose(0, 2),
}


@folded
@every_way
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dense_layouts_keep_bits_too(way: str, layout: str) -> None:
    f, planes = WAYS[way]
    x, grad = (LAYOUTS[layout](value) for value in inputs())
    assert [t.shape for t in values.saved_by(f, (x.requires_grad_(),))] == [(planes * 632,)]
    expected = by_formula(f, x.detach(), grad)
    found = plainly(f, x, grad)
    assert_same(found, expected)
    assert found.stride() == x.stride()
    contiguous, broadcast = grad.clone(memory_format=torch.contiguous_format), grad[..., :1].expand_as(grad)
    for off in ((), ("native",)):
        with kernels.off(*off):
            assert_same(plainly(f, x, contiguous), expected)
            assert_same(plainly(f, x, broadcast), by_formula(f, x.detach(), broadcast))


@pytest.fixture
def from_the_first_element(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "least", 1)


@pytest.mark.parametrize("name", ["gelu", "silu", "leaky_relu", "hardsigmoid"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_contract_of_saved_tensors_and_values(name: str, dtype: torch.dtype, from_the_first_element: None) -> None:
    tested = 0
    for case in cases_of(OPS[name]):
        if case.rule.steps is not None:
            values.check_saved(case)
            values.check_random(case, dtype)
            tested += 1
    assert tested == (2 if name in FITTED else 1)


@folded
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["gelu", "gelu, tanh", "silu", "leaky_relu", "leaky_relu by default", "hardsigmoid"])
def test_exact_is_torchs_own_gradient(name: str, dtype: torch.dtype) -> None:
    ours, theirs = {
        "gelu": (pg.gelu, functional.gelu),
        "gelu, tanh": (
            lambda x: pg.gelu(x, approximate="tanh"),
            lambda x: functional.gelu(x, approximate="tanh"),
        ),
        "silu": (pg.silu, functional.silu),
        "leaky_relu": (lambda x: pg.ops.leaky_relu(x, 0.3), lambda x: functional.leaky_relu(x, 0.3)),
        "leaky_relu by default": (pg.ops.leaky_relu, functional.leaky_relu),
        "hardsigmoid": (pg.ops.hardsigmoid, functional.hardsigmoid),
    }[name]
    for elements in (4096, 100):
        x, grad = inputs(elements, dtype)
        grad = grad.nan_to_num(1.0, 2.0, -2.0)
        found, expected = plainly(ours, x, grad), plainly(theirs, x, grad)
        if name == "hardsigmoid" and dtype is torch.float64:  # torch multiplies by the 1/6 of float32 there
            torch.testing.assert_close(found, expected, rtol=1e-7, atol=0, equal_nan=True)
        else:
            assert_same(found, expected)


def test_a_slope_of_zero_multiplies_as_torch_does() -> None:
    """0 * inf is NaN there; bits would make 0 of it, so x is kept."""
    x, grad = inputs()
    f, theirs = lambda x: pg.ops.leaky_relu(x, 0.0), lambda x: functional.leaky_relu(x, 0.0)
    assert_same(plainly(f, x, grad), plainly(theirs, x, grad))
    assert [tensor.dtype for tensor in values.saved_by(f, (x.requires_grad_(),))] == [torch.float32]


def by_double_backward(f: Function, x: Tensor, grad: Tensor) -> Tensor:
    leaf, arriving = x.clone().requires_grad_(), grad.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(leaf), leaf, arriving, create_graph=True)
    by_x, by_grad = torch.autograd.grad(first.sum(), (leaf, arriving), allow_unused=True, materialize_grads=True)
    assert not by_x.count_nonzero(), "a step is flat"
    return torch.stack([first.detach(), by_grad])


def gradient_by_batched_grads(f: Function, x: Tensor, grad: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf, torch.stack([grad, -grad]), is_grads_batched=True)[0]


def gradient_by_checkpoint(f: Function, x: Tensor, grad: Tensor, reentrant: bool = False) -> Tensor:
    leaf = x.clone().requires_grad_()
    checkpoint(lambda x: f(x * 1), leaf, use_reentrant=reentrant).backward(grad)
    assert leaf.grad is not None
    return leaf.grad


def by_compile(f: Function, x: Tensor, grad: Tensor) -> Tensor:
    torch._dynamo.reset()
    return plainly(torch.compile(f, backend="aot_eager", fullgraph=True), x, grad)


TRANSFORMS: dict[str, Callable[[Function, Tensor, Tensor], Tensor]] = {
    "double backward": by_double_backward,
    "is_grads_batched": gradient_by_batched_grads,
    "checkpoint": gradient_by_checkpoint,
    "reentrant checkpoint": lambda f, x, grad: gradient_by_checkpoint(f, x, grad, True),
    "compile": by_compile,
    "vmap": lambda f, x, grad: torch.vmap(lambda x, grad: torch.func.vjp(f, x)[1](grad)[0])(x, grad),
    "jvp": lambda f, x, grad: torch.func.jvp(f, (x,), (grad,))[1],
}


@folded
@every_way
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_give_the_same(way: str, transform: str, request: pytest.FixtureRequest) -> None:
    f, _ = WAYS[way]
    x, grad = inputs()
    grad = grad.nan_to_num(1.0, 2.0, -2.0)
    once = by_formula(f, x, grad)
    expected = {
        "double backward": lambda: torch.stack([once, by_formula(f, x, torch.ones_like(x))]),
        "is_grads_batched": lambda: torch.stack([once, -once]),
    }.get(transform, lambda: once)()
    assert_same(TRANSFORMS[transform](f, x, grad), expected)


# --- the numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "bits"), [(name, bits) for name in FITTED for bits in FITTED[name]])
def test_every_dtype_has_the_same_numbers(name: str, bits: int) -> None:
    for numbers in FITTED[name][bits]:
        of_all = torch.tensor(numbers, dtype=torch.float64)
        for dtype in DTYPES:
            assert torch.equal(of_all.to(dtype).double(), of_all)
    slopes = torch.tensor(FITTED[name][bits].slopes)
    assert torch.equal(slopes + slopes.flip(0), torch.ones(2**bits))
    assert bool((slopes != 0).all())


# --- wrong calls, and code that nobody edits --------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 4, 2.5, 16])
def test_other_bits_are_an_error(bits: float) -> None:
    with pytest.raises(ValueError, match=rf"fewbit: bits must be 2 or 3, got {bits}"):
        pg.rules.fewbit(bits=bits)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: pg.gelu(x, approximate="tahn"), "gelu: approximate must be one of none, tanh, got 'tahn'"),
        (
            lambda x: pg.silu(x, rule="true"),
            "silu: rule must be one of exact, fewbit, got 'true'. 'true' is 'exact' here",
        ),
        (lambda x: pg.gelu(x.long()), "gelu: x must be floating point, got torch.int64"),
        (lambda x: pg.ops.leaky_relu(x, "a"), "leaky_relu: negative_slope must be a number, got 'a'"),
        (lambda x: pg.ops.leaky_relu(x, torch.inf), "leaky_relu: negative_slope must be finite, got inf"),
        (lambda x: pg.override(gelu="inward"), "gelu: rule must be one of exact, fewbit, got 'inward'"),
    ],
)
def test_wrong_calls(call: Callable[[Tensor], Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        call(torch.zeros(2))
    assert text in str(caught.value)


aten, fused = torch.ops.aten, torch._C._nn
SPELLINGS: dict[str, tuple[str, Function, Function, int]] = {  # family, spelling, the public op, bits
    "F.gelu": ("gelu", functional.gelu, WAYS["gelu, 2 bits"][0], 2),
    "F.gelu, tanh": ("gelu", lambda x: functional.gelu(x, approximate="tanh"), WAYS["gelu, tanh"][0], 2),
    "nn.GELU": ("gelu", lambda x: nn.GELU()(x), WAYS["gelu, 2 bits"][0], 2),
    "aten.gelu": ("gelu", aten.gelu, WAYS["gelu, 2 bits"][0], 2),
    "aten.gelu_": ("gelu", lambda x: aten.gelu_(x * 1), WAYS["gelu, 2 bits"][0], 2),
    "F.silu": ("silu", functional.silu, WAYS["silu, 2 bits"][0], 2),
    "F.silu, in place": ("silu", lambda x: functional.silu(x * 1, inplace=True), WAYS["silu, 2 bits"][0], 2),
    "nn.SiLU": ("silu", lambda x: nn.SiLU(inplace=True)(x * 1), WAYS["silu, 2 bits"][0], 2),
    "aten.silu": ("silu", aten.silu.default, WAYS["silu, 2 bits"][0], 2),
    "F.leaky_relu": ("leaky_relu", lambda x: functional.leaky_relu(x, 0.3), WAYS["leaky_relu"][0], 1),
    "F.leaky_relu, in place": (
        "leaky_relu",
        lambda x: functional.leaky_relu(x * 1, negative_slope=0.3, inplace=True),
        WAYS["leaky_relu"][0],
        1,
    ),
    "F.leaky_relu_": ("leaky_relu", lambda x: functional.leaky_relu_(x * 1, 0.3), WAYS["leaky_relu"][0], 1),
    "nn.LeakyReLU": ("leaky_relu", lambda x: nn.LeakyReLU(0.3)(x), WAYS["leaky_relu"][0], 1),
    "aten.leaky_relu": ("leaky_relu", lambda x: aten.leaky_relu(x, 0.3), WAYS["leaky_relu"][0], 1),
    "F.hardsigmoid": ("hardsigmoid", functional.hardsigmoid, pg.ops.hardsigmoid, 1),
    "nn.Hardsigmoid": ("hardsigmoid", lambda x: nn.Hardsigmoid(inplace=True)(x * 1), pg.ops.hardsigmoid, 1),
}


@folded
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_override_reaches_every_spelling(spelling: str) -> None:
    family, f, public, bits = SPELLINGS[spelling]
    x, grad = inputs()
    rule = "fewbit" if family in FITTED else "exact"
    expected = f(x)
    with pg.override(**{family: rule}) as context:
        found = plainly(f, x, grad)
        saved = values.saved_by(f, (x.clone().requires_grad_(),))
        assert_same(f(x.clone().requires_grad_()).detach(), expected)
    assert_same(found, plainly(public, x, grad))
    assert [t.nbytes for t in saved] == [bits * 632]
    assert context.report().rewritten
    assert context.report().missed == ()


def test_hardsigmoid_has_the_rules_of_relu_too_and_its_own_switch_counts_first() -> None:
    x, grad = inputs()
    with pg.override(relu="identity"):
        assert_same(plainly(functional.hardsigmoid, x, grad), grad * (1 / 6))
    with pg.override(relu="identity", hardsigmoid="exact"):
        assert_same(plainly(functional.hardsigmoid, x, grad), plainly(pg.ops.hardsigmoid, x, grad))


def test_override_around_a_checkpoint_with_its_backward_outside() -> None:
    x, grad = inputs()
    leaf = x.clone().requires_grad_()
    with pg.override(gelu="fewbit"):
        y = checkpoint(lambda x: functional.gelu(x * 1), leaf, use_reentrant=False)
    y.backward(grad)
    assert leaf.grad is not None
    assert_same(leaf.grad, plainly(WAYS["gelu, 2 bits"][0], x, grad))


def test_compiled_code_follows_the_switch() -> None:
    x, grad = inputs()
    torch._dynamo.reset()
    compiled = torch.compile(functional.gelu, backend="aot_eager", fullgraph=True)
    with pg.override(gelu=THREE):
        assert_same(plainly(compiled, x, grad), plainly(WAYS["gelu, 3 bits"][0], x, grad))


def test_convert() -> None:
    model = nn.Sequential(nn.GELU("tanh"), nn.SiLU(inplace=True), nn.LeakyReLU(0.3), nn.Hardsigmoid(), nn.ReLU())
    x, _ = inputs()
    expected = model(x)
    with pg.convert(model, "fewbit") as done:
        assert done.paths == ("0", "1")
        assert repr(model[1]) == "SiLU(inplace=True, rule=fewbit(bits=2))"
    with pg.convert(model, "inward") as done:
        assert done.paths == ("3", "4")
    few = {nn.GELU: THREE, nn.SiLU: "fewbit", nn.LeakyReLU: "exact", nn.Hardsigmoid: "exact"}
    with pg.convert(model, few):
        assert_same(model(x), expected)
        saved = values.saved_by(model[:4], (x.clone().requires_grad_(),))
    assert sum(t.nbytes for t in saved if t.dtype is torch.uint8) == (3 + 2 + 1 + 1) * 632
    assert all(t.dtype is torch.uint8 for t in saved)
    with pytest.raises(ValueError, match="rule must be one of exact, fewbit, got 'inward'"):
        pg.convert(model, {nn.GELU: "inward"})


def test_modules() -> None:
    x, grad = inputs()
    for module, way in (
        (pg.nn.GELU(rule=THREE), "gelu, 3 bits"),
        (pg.nn.SiLU(rule="fewbit"), "silu, 2 bits"),
        (pg.nn.LeakyReLU(0.3), "leaky_relu"),
        (pg.nn.Hardsigmoid(), "hardsigmoid"),
    ):
        assert_same(plainly(module, x, grad), plainly(WAYS[way][0], x, grad))
