"""clamp_: torch's in-place semantics with our gradient."""

from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.testing.contract.equality import assert_same_bits, assert_same_values

from ..choices import folded

RULES = ["zero", "identity", "inward", "sign", "leaky", "elastic", "inverting"]
BOUNDS: dict[str, tuple[Any, Any]] = {
    "numbers": (-1, 1),
    "min": (-1, None),
    "max": (None, 1),
    "tensors": (torch.tensor(-1.0), torch.tensor([1.0, 0.5, 1.0])),
    "a number and a tensor": (-1, torch.tensor(1.0)),
    "a tensor and a number": (torch.tensor(-1.0), 1.0),
}
X = torch.tensor([[-3.0, 0.25, 3.0], [-1.0, 1.0, torch.nan]])
GRAD = torch.tensor([[1.0, -2.0, 3.0], [-1.0, 1.0, 2.0]])


def _bounds_that(rule: str) -> list[str]:
    return [name for name in BOUNDS if None not in BOUNDS[name] or rule not in ("elastic", "inverting")]


@folded
@pytest.mark.parametrize(("rule", "bounds"), [(rule, name) for rule in RULES for name in _bounds_that(rule)])
def test_same_as_clamp(rule: str, bounds: str) -> None:
    low, high = BOUNDS[bounds]
    expected = X.clone().requires_grad_()
    pg.clamp(expected, low, high, rule=rule).backward(GRAD)
    leaf = X.clone().requires_grad_()
    x = leaf * 1
    y = pg.clamp_(x, low, high, rule=rule)
    assert y is x
    assert_same_bits(y, pg.clamp(X, low, high, rule=rule), "value")
    y.backward(GRAD)
    assert_same_values(leaf.grad, expected.grad, "gradient")


@pytest.mark.parametrize("bounds", BOUNDS)
def test_not_recording(bounds: str) -> None:
    low, high = BOUNDS[bounds]
    x = X.clone()
    with torch.no_grad():
        y = pg.clamp_(x, low, high)
    assert y is x
    assert_same_bits(x, pg.clamp(X, low, high), "value")


def test_a_leaf_is_torch_s_own_error() -> None:
    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        pg.clamp_(x, -1, 1)
    with torch.no_grad():
        pg.clamp_(x, 1, 2)
    assert x.tolist() == [1, 1]


@pytest.mark.parametrize("rule", ["inward", "identity"])
def test_a_view_changes_its_base(rule: str) -> None:
    leaf = torch.tensor([-2.0, -2.0, 2.0, 2.0], requires_grad=True)
    base = leaf * 1
    pg.clamp_(base[1:3], -1, 1, rule=rule)
    assert base.tolist() == [-2, -1, 1, 2]
    base.sum().backward()
    assert leaf.grad.tolist() == ([1, 0, 1, 1] if rule == "inward" else [1, 1, 1, 1])


@pytest.mark.parametrize("rule", ["inward", "identity"])
def test_version_counter_goes_up_and_autograd_notices(rule: str) -> None:
    x = torch.tensor([-2.0, 2.0], requires_grad=True) * 1
    before = x._version
    squared = x.square()  # saves x
    pg.clamp_(x, -1, 1, rule=rule)
    assert x._version == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()


def _saved_by(rule: str) -> list[Tensor]:
    saved: list[Tensor] = []
    x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True) * 1
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.clone()), lambda t: t):
        pg.clamp_(x, -1, 1, rule=rule)
    return saved


def test_saves_a_copy_of_the_old_x_and_identity_nothing() -> None:
    (old,) = _saved_by("inward")
    assert old.tolist() == [-2, 0, 2]
    assert _saved_by("identity") == []


def test_bounds_get_their_gradient() -> None:
    low = torch.tensor([-1.0], requires_grad=True)
    x = torch.tensor([-2.0, -3.0, 0.0])
    y = pg.clamp_(x, low, 1.0, rule="zero")
    y.sum().backward()
    assert y.requires_grad
    assert low.grad.tolist() == [2]


@pytest.mark.parametrize("rule", RULES)
def test_under_functorch(rule: str) -> None:
    """The copy that is kept must be the old x there too, and identity must not keep what is then overwritten."""
    x = torch.tensor([-3.0, 0.25, 3.0])

    def loss(f: Any) -> Any:
        return lambda x: (f(x * 1, -1, 1, rule=rule) * GRAD[0]).sum()

    expected = torch.func.grad(loss(pg.clamp))(x)
    assert torch.equal(torch.func.grad(loss(pg.clamp_))(x), expected)
    assert torch.equal(
        torch.func.vmap(torch.func.grad(loss(pg.clamp_)))(x[None]),
        torch.func.vmap(torch.func.grad(loss(pg.clamp)))(x[None]),
    )


@pytest.mark.parametrize("rule", ["inward", "identity"])
def test_compiled(rule: str) -> None:
    f = torch.compile(lambda x: pg.clamp_(x * 1, -1, 1, rule=rule), backend="aot_eager", fullgraph=True)
    x = torch.tensor([-3.0, 0.25, 3.0], requires_grad=True)
    f(x).backward(torch.tensor([1.0, 2.0, 3.0]))
    assert x.grad.tolist() == ([0, 2, 3] if rule == "inward" else [1, 2, 3])
