"""The rules "trust" and "fourier" of round, which read its error, against the formulas of their papers."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.rule import OPS
from pseudograd.testing.measure.gradients import saved_by

from ..choices import folded, slow_but
from ..watching import Watching

X = torch.cat([torch.linspace(-3, 3, 241, dtype=torch.float64), torch.tensor([1e6 + 0.125, -1e6 - 0.375]).double()])
GRAD = torch.linspace(-2, 2, len(X), dtype=torch.float64) + 0.003
every_rule = pytest.mark.parametrize("rule", ["trust", "fourier"])


def _grad_x(f: Callable[[Tensor], Tensor], x: Tensor = X, grad: Tensor = GRAD) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf, grad.to(x.dtype))[0]


@every_rule
@pytest.mark.parametrize("decimals", [-2, -1, 1, 3])
def test_decimals_are_other_steps(rule: str, decimals: int) -> None:
    """The error is measured in steps, whatever `decimals` is."""
    positions = torch.tensor([0.0, 0.125, 0.3125, 0.46875, 7.125, -3.375], dtype=torch.float64)
    plain = _grad_x(partial(pg.round, rule=rule), positions, torch.ones(6))
    scaled = _grad_x(partial(pg.round, decimals=decimals, rule=rule), positions * 10.0**-decimals, torch.ones(6))
    torch.testing.assert_close(scaled, plain, rtol=1e-9, atol=1e-9)


@every_rule
def test_steps_of_any_size_are_no_error(rule: str) -> None:
    x = torch.tensor([1.25e-307, 1.5e-307, 4.5e-308], dtype=torch.float64)
    if rule == "trust":
        for decimals, expected in ((307, [1.0, 0.0, 0.0]), (308, [0.0, 1.0, 0.0])):
            grad_x = _grad_x(partial(pg.round, decimals=decimals, rule=rule), x, torch.ones(3))
            assert grad_x.tolist() == expected
    for decimals in (309, -309, 1000):
        assert _grad_x(partial(pg.round, decimals=decimals, rule=rule), X[:1] * 0, torch.ones(1)).isfinite().all()


@folded
@pytest.mark.parametrize("rule", ["identity", "zero", "trust", "fourier"])
@pytest.mark.parametrize("decimals", [-2, 1])
def test_values_with_decimals_are_torchs(rule: str, decimals: int) -> None:
    for x in (X, X.clone().requires_grad_()):
        assert torch.equal(pg.round(x, decimals=decimals, rule=rule), torch.round(X, decimals=decimals))


def _ops_of_backward(f: Callable[[Tensor], Tensor]) -> list[str]:
    y = f(X.clone().requires_grad_())
    with Watching() as watching:
        y.backward(GRAD)
    return watching.names


@every_rule
def test_backward_rounds_once(rule: str) -> None:
    """y is not computed again: the rounded x is a part of the error."""
    assert _ops_of_backward(partial(pg.round, rule=rule)).count("round") == 1


@pytest.mark.usefixtures("table_as_it_was")
def test_a_users_rule_of_round_has_nothing_for_decimals() -> None:

    @pg.register_rule("round", formula="grad * size", source="this test", is_linear=True)
    def resized(grad: Tensor, x: Tensor, *, size: float = 0.5) -> Tensor:
        return grad * size

    assert torch.equal(_grad_x(partial(pg.round, decimals=1, rule="resized")), GRAD * 0.5)
    assert "round" not in _ops_of_backward(partial(pg.round, rule="resized"))
    reference = OPS["round"].rules["resized"].reference
    assert reference(0.3, 3.0, 1, fl=lambda value: value, settings={"size": 0.5}) == (1.5,)


@pytest.mark.parametrize("within", [0.25, 0.0625])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_trust_saves_one_bit_and_gives_the_same(dtype: torch.dtype, within: float) -> None:
    x = (torch.randn(70, 83, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    grad = torch.linspace(-2, 2, x.numel()).reshape(x.shape)
    f = partial(pg.round, decimals=1, rule=pg.rules.trust(within=within))
    (saved,) = saved_by(f, (x.clone().requires_grad_(),))
    assert (saved.dtype, saved.nbytes) == (torch.uint8, -(-x.numel() // 64) * 8)
    parts = zip(x.split(7), grad.split(7), strict=True)  # too few for a code
    assert torch.equal(_grad_x(f, x, grad), torch.cat([_grad_x(f, *part) for part in parts]))


@pytest.mark.parametrize("is_compiled", slow_but([False], [False, True], pytest.mark.program))
def test_override_rounds_by_trust_and_leaves_floor_alone(is_compiled: bool) -> None:
    """floor has no such rule: torch's own gradient stays there, nothing raises, and the report says why. torch.round saves nothing
    of its input, so a program may change the input afterwards.
    """

    def f(x: Tensor) -> Tensor:
        h = x * 1
        y = torch.round(h) + torch.floor(x)
        h.add_(100.3)
        return y

    x = torch.tensor([0.1, 0.4, 2.8], requires_grad=True)
    with pg.override(round=pg.rules.trust(within=0.25)) as context:
        y = (torch.compile(f, backend="aot_eager") if is_compiled else f)(x)
        (grad_x,) = torch.autograd.grad(y.sum(), x)
    assert grad_x.tolist() == [1.0, 0.0, 1.0]
    assert is_compiled or "floor has no rule trust" in str(context.report())
