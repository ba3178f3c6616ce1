"""The clamp family beside torch's own functions: gradients in each era, learned bounds, in place, shared parameters."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import pseudograd as pg
from pseudograd import arguments
from pseudograd.testing.contract.equality import assert_same_bits, assert_same_values

from ..choices import folded, slow_but

IS_OPEN = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 14)
SHARES = [("closed", 1.0), ("open", 0.0), ("half", 0.5)]
RULES = ["zero", "identity", "inward", "sign", "leaky", "elastic", "inverting"]

# --- torch's own gradient ---------------------------------------------------------------------------------------------

X = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, torch.inf, -torch.inf, 6.0, 7.0])
LOW, HIGH = torch.tensor([[-1.0], [-0.5]]), torch.tensor([[1.0], [2.0]])
OF_NUMBERS = {"rule": "zero", "edge": "open" if IS_OPEN else "closed"}
OF_TENSORS = {"rule": "zero", "edge": "half" if IS_OPEN else "closed"}
HALF = {"rule": "zero", "edge": "half"}
SAME: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "numbers": (lambda x: pg.clamp(x, -1, 1, **OF_NUMBERS), lambda x: torch.clamp(x, -1, 1), ()),
    "tensors": (lambda x, a, b: pg.clamp(x, a, b, **OF_TENSORS), torch.clamp, (LOW, HIGH)),
    # Away from the bounds torch has always given the gradient to max.
    "crossed": (
        lambda x, a, b: pg.clamp(x, a, b, rule="zero"),
        torch.clamp,
        (torch.full((11,), 1.25), torch.full((11,), -1.25)),
    ),
    "relu": (pg.relu, torch.relu, ()),
    "relu6": (pg.relu6, functional.relu6, ()),
    "hardtanh": (pg.hardtanh, functional.hardtanh, ()),
    "maximum": (lambda x, b: pg.lower_bound(x, b, **HALF), torch.maximum, (torch.zeros(()),)),
    "minimum": (lambda x, b: pg.upper_bound(x, b, **HALF), torch.minimum, (torch.zeros(()),)),
}


def _gradients(f: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    y = f(*leaves)
    return torch.autograd.grad(y, leaves, torch.linspace(-2, 3, y.numel()).reshape(y.shape))


@pytest.mark.parametrize("name", SAME)
def test_the_true_rule_has_the_gradient_of_torch(name: str) -> None:
    """With the edge of the installed torch's era; relu and its kin have torch's own by default."""
    ours, theirs, bounds = SAME[name]
    for a, b in zip(_gradients(ours, X, *bounds), _gradients(theirs, X, *bounds), strict=True):
        assert torch.equal(a, b), (a, b)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_integers_are_clamped_as_torch_does(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 3, 7], dtype=dtype)
    for bounds in ((1, 5), (0.5, None), (None, 4.5)):
        ours, theirs = pg.clamp(x, *bounds), torch.clamp(x, *bounds)
        assert (ours.dtype, ours.tolist()) == (theirs.dtype, theirs.tolist())
    assert pg.clamp(x, 1, torch.tensor(5, dtype=dtype)).tolist() == [1, 3, 5]
    assert pg.relu(x).tolist() == [0, 3, 7]


@pytest.mark.parametrize(("edge", "share"), SHARES)
def test_a_number_beside_a_wider_tensor_is_one_bound_forward_and_backward(edge: str, share: float) -> None:
    """0.7 is another number in the dtype of x than in that of max. x is at the edge exactly where y equals both x and the bound."""
    x = torch.tensor([0.7, 0.0, 2.0], requires_grad=True)
    y = pg.clamp(x, 0.7, torch.ones(3, dtype=torch.float64), rule="zero", edge=edge)
    assert y.dtype is torch.float64
    is_at_edge = y[0].item() == x[0].item() == y[1].item()
    assert is_at_edge != (x[0].item() < y[0].item())
    y.sum().backward()
    assert x.grad.tolist() == [share if is_at_edge else 0.0, 0, 0]


# --- in place ---------------------------------------------------------------------------------------------------------

BOUNDS: dict[str, tuple[Any, Any]] = {
    "numbers": (-1, 1),
    "min": (-1, None),
    "max": (None, 1),
    "tensors": (torch.tensor(-1.0), torch.tensor([1.0, 0.5, 1.0])),
    "a number and a tensor": (-1, torch.tensor(1.0)),
    "a tensor and a number": (torch.tensor(-1.0), 1.0),
}
VALUES = torch.tensor([[-3.0, 0.25, 3.0], [-1.0, 1.0, torch.nan]])
GRAD = torch.tensor([[1.0, -2.0, 3.0], [-1.0, 1.0, 2.0]])


@folded
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bounds", BOUNDS)
def test_clamp_in_place_is_clamp(rule: str, bounds: str) -> None:
    low, high = BOUNDS[bounds]
    if rule in ("elastic", "inverting") and (low is None or high is None):
        return
    expected, leaf = VALUES.clone().requires_grad_(), VALUES.clone().requires_grad_()
    pg.clamp(expected, low, high, rule=rule).backward(GRAD)
    x, plain = leaf * 1, VALUES.clone()
    y = pg.clamp_(x, low, high, rule=rule)
    assert y is x
    assert_same_bits(y, pg.clamp(VALUES, low, high, rule=rule), "value")
    y.backward(GRAD)
    assert_same_values(leaf.grad, expected.grad, "gradient")
    with torch.no_grad():
        assert pg.clamp_(plain, low, high, rule=rule) is plain
    assert_same_bits(plain, pg.clamp(VALUES, low, high), "not recording")


def test_a_leaf_is_the_error_of_torch() -> None:
    x = torch.zeros(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        pg.clamp_(x, -1, 1)
    with torch.no_grad():
        pg.clamp_(x, 1, 2)
    assert x.tolist() == [1, 1]


@pytest.mark.parametrize("rule", ["inward", "identity"])
def test_views_and_version_counters_are_those_of_torch(rule: str) -> None:
    leaf = torch.tensor([-2.0, -2.0, 2.0, 2.0], requires_grad=True)
    base = leaf * 1
    pg.clamp_(base[1:3], -1, 1, rule=rule)
    assert base.tolist() == [-2, -1, 1, 2]
    base.sum().backward()
    assert leaf.grad.tolist() == ([1, 0, 1, 1] if rule == "inward" else [1, 1, 1, 1])
    x = torch.tensor([-2.0, 2.0], requires_grad=True) * 1
    before, squared = x._version, x.square()  # which saves x
    pg.clamp_(x, -1, 1, rule=rule)
    assert x._version == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()


@pytest.mark.parametrize(("rule", "expected"), [("inward", [[-2, 0, 2]]), ("identity", [])])
def test_in_place_saves_a_copy_of_the_old_x_and_identity_nothing(rule: str, expected: list[list[float]]) -> None:
    saved: list[list[float]] = []
    x = torch.tensor([-2.0, 0.0, 2.0], requires_grad=True) * 1
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.tolist()), t)[1], lambda t: t):
        pg.clamp_(x, -1, 1, rule=rule)
    assert saved == expected


def test_bounds_get_their_gradient_in_place() -> None:
    low = torch.tensor([-1.0], requires_grad=True)
    y = pg.clamp_(torch.tensor([-2.0, -3.0, 0.0]), low, 1.0, rule="zero")
    y.sum().backward()
    assert low.grad.tolist() == [2]


@pytest.mark.parametrize("is_compiled", slow_but([False], [False, True], pytest.mark.program))
@pytest.mark.parametrize("rule", RULES)
def test_in_place_under_functorch_and_compiled(rule: str, is_compiled: bool) -> None:
    """The saved copy must be the old x here, too, and "identity" must not save an x that is then overwritten."""
    x = torch.tensor([-3.0, 0.25, 3.0])

    def loss(f: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: (f(x * 1, -1, 1, rule=rule) * GRAD[0]).sum()

    expected = torch.func.grad(loss(pg.clamp))(x)
    assert torch.equal(torch.func.grad(loss(pg.clamp_))(x), expected)
    assert torch.equal(torch.func.vmap(torch.func.grad(loss(pg.clamp_)))(x[None]), expected[None])
    if is_compiled:
        leaf = x.clone().requires_grad_()
        torch.compile(loss(pg.clamp_), backend="aot_eager", fullgraph=True)(leaf).backward()
        assert torch.equal(leaf.grad, expected)


FAR = torch.tensor([-torch.inf, -1e38, -2.0, 0.0, 0.5, 2.0, 1e38, torch.inf, torch.nan])


@pytest.mark.parametrize("grad", [1.0, -1.0])
def test_a_width_beyond_the_dtype_is_no_push_or_the_whole_push(grad: float) -> None:
    """1e39 is infinite in single precision: nothing pushes back at any distance. 1e-50 is 0: every distance is a whole width.

    Also where the bound -0.0 was rounded before, which a memory takes for 0.0.
    """
    arguments._rounded_to.cache_clear()
    pg.upper_bound(FAR, -0.0)

    def gradient(rule: Any) -> Tensor:
        return pg.gradient(lambda x: pg.clamp(x, -1, 1, rule=rule), FAR, grad)

    assert_same_values(gradient(pg.rules.elastic(1e39)), gradient("inward"), "too wide", x=FAR)
    outside = torch.where(FAR.isnan() | (FAR.abs() <= 1), grad, FAR.sign())
    assert_same_values(gradient(pg.rules.elastic(1e-50)), outside, "too small", x=FAR)


# --- ranks that share a parameter -------------------------------------------------------------------------------------


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed")
def test_a_shared_parameter_under_a_rule_that_does_not_add_up_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))

    def pretend(ranks: int, is_initialized: bool = True) -> None:
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: is_initialized)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: ranks)

    pretend(2)
    for rule in ("inward", "sign", "elastic", "leaky_inward", "inverting"):
        text = f"clamp/{rule}: x is a parameter and 2 ranks share it.*do not add up.*linear in grad"
        with pytest.warns(UserWarning, match=text) as caught:
            pg.clamp(parameter, -1, 1, rule=rule)
        assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="2 ranks share it"):
        pg.clamp(parameter, -1, 1, rule="zero", edge="inward")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for how in ({"rule": "zero"}, {"rule": "identity", "edge": "inward"}, {"rule": "leaky"}):
            pg.clamp(parameter, -1, 1, **how)
        pg.clamp(parameter * 1, -1, 1)
        pg.clamp(parameter.detach(), torch.tensor(-1.0))
        pretend(1)
        pg.clamp(parameter, -1, 1)
        pretend(2, is_initialized=False)
        pg.clamp(parameter, -1, 1)
