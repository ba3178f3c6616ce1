"""Rules that say of each place what x and its bounds get: the rows, the plain code and the C kernels against the formulas of the eras."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd import formula, kernels
from pseudograd.geometry import REGIONS, SHARES
from pseudograd.kernels import bits, table
from pseudograd.kernels.residuals import INPUTS
from pseudograd.rewrite.edges import PINNED, rule_named
from pseudograd.rule import PRIMITIVES, Call, call_for
from pseudograd.torch_table.eras import ERAS

from ..choices import folded
from .test_native import DTYPES, SIZES, same_bits
from .ways import FOR_EVERYTHING, FOR_NOTHING, codes_from, needs_native

RULES = [rule_named(edge, era) for edge in (*ERAS, *SHARES) for era in ERAS if edge not in ERAS or edge == era]
VALUES = [-torch.inf, -1.0, -0.0, 0.0, 0.3, 1.0, torch.inf, torch.nan]
GRADS = [1.0, -2.0, 0.0, torch.inf, -torch.inf, torch.nan, 1e-7, -1e-7]


def call_of(name: str, kind: str, rule: str) -> Call:
    found = PINNED[f"torch.{name}"]
    return call_for(PRIMITIVES[found.of_numbers if kind == "numbers" else found.of_tensors], rule)


def everywhere(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Every x with every min, max and grad."""
    of_each = itertools.product(VALUES, VALUES, VALUES, GRADS)
    return tuple(torch.tensor(one, dtype=torch.float64).to(dtype) for one in zip(*of_each, strict=True))  # type: ignore[return-value]


def by_formula(grad: Tensor, inputs: tuple[Any, ...], wants: tuple[bool, ...], call: Call) -> list[Tensor | None]:
    found = formula.pull(grad, list(inputs), wants, call)
    return [one if want else None for one, want in zip(found, wants, strict=True)]


def agree(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or same_bits(one, other), (one, other)


KINDS: dict[str, tuple[str, Any]] = {
    "two tensors": ("clamp", lambda x, low, high: (x, low, high)),
    "a min": ("clamp", lambda x, low, high: (x, low, None)),
    "a max": ("clamp", lambda x, low, high: (x, None, high)),
    "clamp_min": ("clamp_min", lambda x, low, high: (x, low, None)),
    "clamp_max": ("clamp_max", lambda x, low, high: (x, None, high)),
    "fmin": ("fmin", lambda x, low, high: (x, high)),
    "fmax": ("fmax", lambda x, low, high: (x, low)),
}


@folded
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_code_is_the_formula(kind: str, rule: str) -> None:
    name, inputs_of = KINDS[kind]
    call, (x, low, high, grad) = call_of(name, "tensors", rule), everywhere(torch.float64)
    inputs = inputs_of(x, low, high)
    with codes_from(FOR_EVERYTHING):
        for wants in itertools.product((True, False), repeat=sum(isinstance(one, Tensor) for one in inputs)):
            if not any(wants):
                continue
            wants = tuple(
                next(given) if isinstance(one, Tensor) else False for given in [iter(wants)] for one in inputs
            )
            assert kernels.residual_of(call, inputs, wants) is bits.BITS
            y, kept = bits.BITS.encode(call, inputs, wants)
            assert same_bits(y, call.primitive.forward(*inputs))
            assert kept[0].nbytes == bits.BITS.nbytes(call, inputs, wants)
            agree(bits.BITS.pull(grad, kept, wants, call), by_formula(grad, inputs, wants, call))


@folded
@needs_native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_c_between_tensors_is_the_formula(kind: str, dtype: torch.dtype, level: None) -> None:
    name, inputs_of = KINDS[kind]
    (kernel,) = (k for k in table._kernels if k.name == "native" and k.residual is bits.BITS)
    (of_x,) = (k for k in table._kernels if k.name == "native" and k.residual is INPUTS and k.prepare and not k.value)
    *all_of_them, grad = everywhere(dtype)
    for rule, size in zip(RULES, itertools.cycle([4096, *SIZES]), strict=False):
        call, inputs = call_of(name, "tensors", rule), inputs_of(*(one[-size:] for one in all_of_them))
        wants = tuple(isinstance(one, Tensor) for one in inputs)
        expected = by_formula(grad[-size:], inputs, wants, call)
        made = kernel.forward(call, inputs, wants)  # type: ignore[misc]
        assert made is not None
        with codes_from(FOR_EVERYTHING):
            plain = bits.BITS.encode(call, inputs, wants)
        assert same_bits(made[0], plain[0])
        assert torch.equal(made[1][0], plain[1][0])
        assert made[1][1] == plain[1][1]
        assert made[1][2] is plain[1][2]
        agree(kernel.backward(grad[-size:], made[1], wants, call), expected)
        agree(of_x.backward(grad[-size:], list(inputs), wants, call), expected)


BOUNDS = [(-1.0, 1.0), (None, 0.3), (-0.0, None), (0.3, 0.3), (-torch.inf, 0.0), (-1.0, torch.inf), (None, -torch.inf)]


@folded
@needs_native
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bounds", BOUNDS)
def test_c_between_numbers_is_the_formula(bounds: tuple[Any, Any], dtype: torch.dtype, level: None) -> None:
    x, _, _, grad = everywhere(dtype)
    x, wants = torch.cat([x, torch.tensor(0.3, dtype=torch.float64).to(dtype).expand(5)]), (True, False, False)
    grad = torch.cat([grad, torch.tensor([1.0, -2.0, torch.inf, torch.nan, 0.0], dtype=dtype)])
    for rule, size in zip(RULES, itertools.cycle([4096, *SIZES]), strict=False):
        call, inputs = call_of("clamp", "numbers", rule), (x[-size:], *bounds)
        (expected, *_) = by_formula(grad[-size:], inputs, wants, call)
        for elements in (FOR_EVERYTHING, FOR_NOTHING):
            with codes_from(elements):
                leaf = x[-size:].clone().requires_grad_()
                y = kernels_run(call, leaf, *bounds)
                assert same_bits(y.detach(), torch.clamp(x[-size:], *bounds))
                agree(torch.autograd.grad(y, leaf, grad[-size:]), [expected])
                assert engine_residual(y) is (bits.BITS if elements == FOR_EVERYTHING else INPUTS)
                again = x[-size:].clone().requires_grad_()
                z = in_place(call, again * 1, *bounds)
                agree([z.detach(), *torch.autograd.grad(z, again, grad[-size:])], [y.detach(), expected])


def kernels_run(call: Call, *inputs: Any) -> Tensor:
    from pseudograd import engine

    return engine.run(call, *inputs)


def in_place(call: Call, *inputs: Any) -> Tensor:
    from pseudograd import engine

    return engine.run_in_place(call, *inputs)


def engine_residual(y: Tensor) -> Any:
    from pseudograd import engine

    state = engine._state_of(y.grad_fn)
    assert state is not None
    return state.residual


LAYOUTS: dict[str, Any] = {
    "contiguous": lambda x: x.reshape(4, 8, 8, 16),
    "channels last": lambda x: x.reshape(4, 8, 8, 16).to(memory_format=torch.channels_last),
    "turned": lambda x: x.reshape(8, 8, 16, 4).permute(3, 0, 1, 2),
    "with holes": lambda x: torch.stack([x, x], dim=1).reshape(4, 8, 8, 32)[..., ::2],
}


@folded
@needs_native
@pytest.mark.parametrize("shape", [(4, 8, 8, 16), (8, 1, 1), (4, 1, 1, 16), (), (1,)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_bounds_that_broadcast(layout: str, shape: tuple[int, ...]) -> None:
    """Learned bounds, summed to their shape; grad in another layout than x."""
    generator = torch.Generator().manual_seed(0)
    x = LAYOUTS[layout](torch.randint(-3, 4, (4096,), generator=generator).double())
    low = torch.randint(-2, 2, shape, generator=generator).double()
    high = torch.randint(-1, 3, shape, generator=generator).double()
    grad = torch.randint(-4, 5, (4, 8, 8, 16), generator=generator).double()
    for rule in RULES:
        call, found = call_of("clamp", "tensors", rule), []
        for elements in (FOR_EVERYTHING, FOR_NOTHING, None):
            leaves = [one.detach().clone().requires_grad_() for one in (x, low, high)]
            leaves[0] = x.detach().requires_grad_()
            with (
                codes_from(FOR_NOTHING if elements is None else elements),
                kernels.off(*["native"] * (elements is None)),
            ):
                y = kernels_run(call, *leaves)
                found.append([y.detach(), *torch.autograd.grad(y, leaves, grad)])
        agree(found[0], found[2])
        agree(found[1], found[2])
        assert found[0][0].stride() == torch.clamp(x, low, high).stride()


@needs_native
def test_what_the_kernels_decline() -> None:
    """A bound of another dtype, one larger than x, a number beside a tensor, and numbers that are crossed, NaN or too large."""
    x = torch.linspace(-2, 2, 5000)
    call = call_of("clamp", "numbers", RULES[0])
    for bounds in ((1.0, -1.0), (torch.nan, 1.0), (None, 1e300), (10**400, None), (x, 1.0)):
        assert kernels.residual_of(call, (x, *bounds), (True, False, False)) is INPUTS
    call = call_of("clamp", "tensors", RULES[0])
    for bounds in ((x.double(), x.double()), (x, x.expand(2, -1)), (x, x.to_sparse()), (x, x.to("meta"))):
        assert kernels.residual_of(call, (x, *bounds), (True, False, False)) is INPUTS
    wide, small = torch.zeros(2, 5000), x.clone().requires_grad_()
    assert torch.autograd.grad(kernels_run(call, small, wide, wide + 1).sum(), small)[0].shape == (5000,)
    with pytest.raises(RuntimeError, match="overflow"):
        kernels_run(call_of("clamp", "numbers", RULES[0]), small.half(), None, 1e6)


def test_a_row_is_read_where_it_stands() -> None:
    """The suite sees a row that is wrong at any place."""
    call, (x, low, high, grad) = call_of("clamp", "tensors", RULES[1]), everywhere(torch.float64)
    *_, right = call.rule.find_range(low, high)  # type: ignore[misc]
    wants = (True, True, True)
    expected = by_formula(grad, (x, low, high), wants, call)
    for region in REGIONS:
        split = getattr(right, region)
        wrong = right._replace(**{region: split._replace(x=split.x - 0.25)})
        rule = call.rule.replaced(find_range=lambda low, high, wrong=wrong: (low, high, wrong))
        other = Call(call.primitive, rule, {}, None, False)
        with codes_from(FOR_EVERYTHING):
            _, kept = bits.BITS.encode(other, (x, low, high), wants)
        with pytest.raises(AssertionError):
            agree(bits.BITS.pull(grad, kept, wants, other), expected)


def test_a_code_has_as_many_bits_as_it_must() -> None:
    planes = {
        (kind, rule, learned): bits.find_code(
            call, inputs, tuple((learned and isinstance(one, Tensor)) or k == 0 for k, one in enumerate(inputs))
        ).planes  # type: ignore[union-attr]
        for kind, (name, inputs_of) in KINDS.items()
        for rule in RULES
        for learned in (False, True)
        for call in [call_of(name, "tensors", rule)]
        for inputs in [inputs_of(*[torch.zeros(1)] * 3)]
    }
    assert max(planes.values()) == 3
    assert {planes[kind, rule, False] for kind in KINDS for rule in RULES} == {1, 2}
    assert {planes[kind, rule, True] for kind in KINDS if kind != "two tensors" for rule in RULES} == {1, 2}
    assert bits.least == 4096


def test_a_code_between_0_and_1_is_not_that_of_the_only_bound_1() -> None:
    """In a key of a memory, 0.0 and 1.0 are equal to False and True."""
    x = torch.tensor([-torch.inf, -1.0, 0.5, 1.0, 2.0]).repeat(20_000).requires_grad_()
    for low in (0.0, None):
        y = pg.clamp(x, low, 1.0, rule="zero", edge="half")
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert grad[:5].tolist() == [0.0 if low == 0.0 else 1.0] * 2 + [1.0, 0.5, 0.0]
