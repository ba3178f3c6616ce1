"""The rules of round that ask for its error, "trust" and "fourier", against their papers' formulas written apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import pseudograd as pg
from pseudograd.rule import OPS
from pseudograd.testing.measure.gradients import saved_by

from ..choices import folded

X = torch.cat([torch.linspace(-3, 3, 241, dtype=torch.float64), torch.tensor([1e6 + 0.125, -1e6 - 0.375]).double()])
GRAD = torch.linspace(-2, 2, len(X), dtype=torch.float64) + 0.003


def _grad_x(f: Callable[[Tensor], Tensor], x: Tensor = X, grad: Tensor = GRAD) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf, grad.to(x.dtype))[0]


@pytest.mark.parametrize("within", [0.1, 0.25, 0.4, 0.5, 0.7])
def test_trust_passes_where_the_error_is_at_most_within(within: float) -> None:
    """QuEST: the mask is |Q(x) - x| <= T."""
    found = _grad_x(lambda x: pg.round(x, rule=pg.rules.trust(within=within)))
    expected = [g if abs(round(x) - x) <= within else 0.0 for x, g in zip(X.tolist(), GRAD.tolist(), strict=True)]
    assert found.tolist() == expected


@pytest.mark.parametrize("amplitude", [0.05, 0.21, 0.4])
def test_fourier_is_the_slope_of_their_series(amplitude: float) -> None:
    """StableQAT: (1 - s) / (1 + s) with s = A sqrt(2) pi cos(pi (x + Q(x))), in the sum of x and what it became."""
    found = _grad_x(lambda x: pg.round(x, rule=pg.rules.fourier(amplitude=amplitude)))
    waves = [amplitude * math.sqrt(2) * math.pi * math.cos(math.pi * (x + round(x))) for x in X.tolist()]
    expected = torch.tensor([g * (1 - s) / (1 + s) for g, s in zip(GRAD.tolist(), waves, strict=True)]).double()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    near = X.abs() < 10  # there pi * (x + Q(x)) itself is exact enough
    waves_near = torch.tensor(waves, dtype=torch.float64)[near]
    exact = GRAD[near] * (1 - waves_near) / (1 + waves_near)
    torch.testing.assert_close(found[near], exact, rtol=1e-12, atol=1e-12)


def test_fourier_is_one_between_two_values_and_least_at_them() -> None:
    x = torch.tensor([0.5, 1.5, -0.5, 0.0, 3.0], dtype=torch.float64)
    found = _grad_x(lambda x: pg.round(x, rule="fourier"), x, torch.ones(5))
    wave = 0.21 * math.sqrt(2) * math.pi
    assert found.tolist() == pytest.approx([1, 1, 1, (1 - wave) / (1 + wave), (1 - wave) / (1 + wave)], rel=1e-12)


@pytest.mark.parametrize("rule", ["trust", "fourier"])
@pytest.mark.parametrize("decimals", [-2, -1, 1, 3])
def test_decimals_are_other_steps(rule: str, decimals: int) -> None:
    """A tenth of a step is a tenth of it, however long the step is."""
    places = torch.tensor([0.0, 0.125, 0.25, 0.3125, 0.46875, 7.125, -3.375], dtype=torch.float64)
    plain = _grad_x(lambda x: pg.round(x, rule=rule), places, torch.ones(7))
    scaled = places * 10.0**-decimals
    found = _grad_x(lambda x: pg.round(x, decimals=decimals, rule=rule), scaled, torch.ones(7))
    torch.testing.assert_close(found[[0, 1, 3, 4, 5, 6]], plain[[0, 1, 3, 4, 5, 6]], rtol=1e-9, atol=1e-9)


def test_the_smallest_steps_of_float64() -> None:
    x = torch.tensor([1.25e-307, 1.5e-307, 4.5e-308], dtype=torch.float64)
    assert _grad_x(lambda x: pg.round(x, decimals=307, rule="trust"), x, torch.ones(3)).tolist() == [1.0, 0.0, 0.0]
    assert _grad_x(lambda x: pg.round(x, decimals=308, rule="trust"), x, torch.ones(3)).tolist() == [0.0, 1.0, 0.0]


@folded
@pytest.mark.parametrize("rule", ["identity", "zero", "trust", "fourier"])
@pytest.mark.parametrize("decimals", [-2, 0, 1, 3])
def test_values_are_torchs_whatever_the_rule(rule: str, decimals: int) -> None:
    assert torch.equal(pg.round(X, decimals=decimals, rule=rule), torch.round(X, decimals=decimals))
    assert torch.equal(pg.round(X.clone().requires_grad_(), decimals=decimals, rule=rule), X.round(decimals=decimals))


@pytest.mark.parametrize(("rule", "slope"), [("identity", 1.0), ("zero", 0.0)])
def test_one_slope_for_every_x_under_every_transform(rule: str, slope: float) -> None:
    f = lambda x: pg.round(x, decimals=1, rule=rule).sum()  # noqa: E731
    assert torch.func.grad(f)(X).tolist() == [slope] * len(X)
    leaf = X.clone().requires_grad_()
    assert torch.autograd.grad(f(leaf), leaf, create_graph=True)[0].tolist() == [slope] * len(X)
    torch._dynamo.reset()
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    assert torch.autograd.grad(compiled(leaf), leaf)[0].tolist() == [slope] * len(X)
    torch._dynamo.reset()


def test_only_round_takes_decimals() -> None:
    assert [OPS[name].inputs for name in ("round", "floor", "ceil", "trunc")] == [("x", "decimals"), *[("x",)] * 3]


@pytest.mark.parametrize("rule", ["trust", "fourier"])
@pytest.mark.parametrize("decimals", [309, -309, 1000])
def test_more_decimals_than_float64_has_are_no_error(rule: str, decimals: int) -> None:
    assert _grad_x(lambda x: pg.round(x, decimals=decimals, rule=rule), X[:1] * 0, torch.ones(1)).isfinite().all()


@pytest.mark.parametrize("rule", ["trust", "fourier"])
def test_backward_rounds_once(rule: str) -> None:
    """y is not computed again: what x is rounded to is a part of the error."""
    assert _ops_of_backward(lambda x: pg.round(x, rule=rule)).count("round") == 1


def _ops_of_backward(f: Callable[[Tensor], Tensor]) -> list[str]:
    names = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    y = f(X.clone().requires_grad_())
    with Seen():
        y.backward(GRAD)
    return names


@pytest.mark.usefixtures("table_as_it_was")
def test_a_users_rule_of_round_has_nothing_for_decimals() -> None:
    """Neither in its gradient nor in the reference that check_rule compares it with."""

    @pg.register_rule("round", formula="grad * size", source="this test", is_linear=True)
    def resized(grad: Tensor, x: Tensor, *, size: float = 0.5) -> Tensor:
        return grad * size

    assert torch.equal(_grad_x(lambda x: pg.round(x, decimals=1, rule="resized")), GRAD * 0.5)
    assert "round" not in _ops_of_backward(lambda x: pg.round(x, rule="resized"))
    reference = OPS["round"].rules["resized"].reference
    assert reference(0.3, 3.0, 1, fl=lambda value: value, settings={"size": 0.5}) == (1.5, 0.0)


@pytest.mark.parametrize("rule", ["trust", "fourier"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_what_has_no_error_to_speak_of(rule: str, dtype: torch.dtype) -> None:
    """Infinite and NaN x get 0 whatever grad is; the largest numbers are whole."""
    x = torch.tensor([math.inf, -math.inf, math.nan, torch.finfo(dtype).max], dtype=dtype)
    found = _grad_x(lambda x: pg.round(x, rule=rule), x, torch.full((4,), math.inf))
    assert found.tolist() == [0.0, 0.0, 0.0, math.inf]


@pytest.mark.parametrize("within", [0.25, 0.0625])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_trust_keeps_one_bit_and_gives_the_same(dtype: torch.dtype, within: float) -> None:
    x = (torch.randn(70, 83, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    grad = torch.linspace(-2, 2, x.numel()).reshape(x.shape)
    f = lambda x: pg.round(x, decimals=1, rule=pg.rules.trust(within=within))  # noqa: E731
    (kept,) = saved_by(f, (x.clone().requires_grad_(),))
    assert (kept.dtype, kept.nbytes) == (torch.uint8, -(-x.numel() // 64) * 8)
    few = [_grad_x(f, part, one) for part, one in zip(x.split(7), grad.split(7), strict=True)]  # too few for a code
    assert torch.equal(_grad_x(f, x, grad), torch.cat(few))


def test_override_rounds_by_them_and_leaves_the_others_alone() -> None:
    """floor has no such rule: torch's own gradient stays there, nothing raises, and the report says why."""
    x = torch.tensor([0.1, 0.4, 2.8], requires_grad=True)
    with pg.override(round="trust") as context:
        y = torch.round(x) + x.clone().round_() + torch.floor(x)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 0.0, 2.0]
    assert "floor has no rule trust" in str(context.report())


def test_override_lets_a_program_change_what_it_rounded() -> None:
    """torch.round keeps nothing of its input."""
    x = torch.tensor([0.1, 0.4, 2.8], requires_grad=True)
    h = x * 1
    with pg.override(round=pg.rules.trust(within=0.25)):
        y = torch.round(h)
    h.add_(100.3)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 0.0, 1.0]


def test_compiled_override_leaves_floor_alone() -> None:
    @torch.compile(backend="aot_eager")
    def f(x: Tensor) -> Tensor:
        return torch.round(x) + torch.floor(x)

    x = torch.tensor([0.1, 0.4, 2.8], requires_grad=True)
    with pg.override(round="trust"):
        f(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 0.0, 1.0]
    torch._dynamo.reset()
