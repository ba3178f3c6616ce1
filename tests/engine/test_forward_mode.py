"""Forward mode over and under every other transform, nested too. The reference is the same function written with torch's own ops."""

import contextlib
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import pseudograd as pg

from ..choices import folded, one_in

Function = Callable[[Tensor], Tensor]


def _arctan_step(x: Tensor) -> Tensor:
    """Its derivative is 1 / (1 + (pi x)^2), that of the step with rule "arctan"."""
    return torch.atan(math.pi * x) / math.pi


def _bent(x: Tensor) -> Tensor:
    """Curved, and inside (-1, 1) for some x and outside for others.

    On torch 2.13 no number may stand beside a tensor: compiled jacfwd(jacfwd) of x / 2 fails with none of our ops.
    """
    return x * x * x + x


# name -> (ours, a function that has all derivatives that ours should have)
PAIRS: dict[str, tuple[Function, Function]] = {
    "zero": (lambda x: pg.clamp(_bent(x), -1, 1, rule="zero"), lambda x: torch.clamp(_bent(x), -1, 1)),
    "identity": (lambda x: pg.clamp(_bent(x), -1, 1, rule="identity"), _bent),
    "leaky": (
        lambda x: pg.clamp(_bent(x), -1, 1, rule=pg.rules.leaky(0.25)),
        lambda x: torch.where(_bent(x).abs() > 1, 0.25 * _bent(x), _bent(x)),
    ),
    "bounds from x": (
        lambda x: pg.clamp(_bent(x), x.square() - 1, None, rule="zero"),
        lambda x: torch.where(_bent(x) < x.square() - 1, x.square() - 1, _bent(x)),
    ),
    "arctan": (lambda x: pg.heaviside(_bent(x), rule="arctan"), lambda x: _arctan_step(_bent(x))),
    "custom": (
        lambda x: pg.sign(_bent(x), rule=pg.rules.custom(torch.cos)),
        lambda x: torch.sin(_bent(x)),
    ),
    "replace_grad": (lambda x: pg.replace_grad(x.detach().round(), _bent(x)), _bent),
    "pin": (lambda x: pg.pin_edge("half")(torch.clamp)(_bent(x), -1, 1), lambda x: torch.clamp(_bent(x), -1, 1)),
    "override": (
        lambda x: pg.override(clamp="leaky")(torch.clamp)(_bent(x), -1, 1),
        lambda x: torch.where(_bent(x).abs() > 1, 0.1 * _bent(x), _bent(x)),
    ),
}


def _d(f: Function) -> Function:
    return lambda x: jvp(f, (x,), (torch.ones_like(x),))[1]


def _total(f: Function) -> Function:
    return lambda x: f(x).sum()


def derive_by_dual_level(f: Function) -> Function:
    def derivative(x: Tensor) -> Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones_like(x)))).tangent

    return derivative


# Each takes an element-wise f and gives a function of a matrix.
WAYS: dict[str, Callable[[Function], Function]] = {
    "jvp": _d,
    "dual level": derive_by_dual_level,
    "jvp(vmap)": lambda f: _d(vmap(f)),
    "vmap(jvp)": lambda f: vmap(_d(f)),
    "jacfwd(vmap)": lambda f: jacfwd(vmap(f)),
    "vmap(jacfwd)": lambda f: vmap(jacfwd(f)),
    "jvp(jvp)": lambda f: _d(_d(f)),
    "jvp(jvp(jvp))": lambda f: _d(_d(_d(f))),
    "jvp(vmap(jvp))": lambda f: _d(vmap(_d(f))),
    "jacfwd(jacfwd)": lambda f: jacfwd(jacfwd(_total(f))),
    "hessian": lambda f: hessian(_total(f)),
    "jacfwd(jacrev)": lambda f: jacfwd(jacrev(_total(f))),
    "jacrev(jacfwd)": lambda f: jacrev(jacfwd(_total(f))),
    "grad(jvp)": lambda f: grad(_total(_d(f))),
    "jvp(grad)": lambda f: _d(grad(_total(f))),
    "jvp(grad(jvp))": lambda f: _d(grad(_total(_d(f)))),
}


def _x() -> Tensor:
    return torch.tensor([[-1.5, -0.625, 0.25], [0.5, 0.75, 1.25]], dtype=torch.float64)


@folded
@pytest.mark.parametrize(("pair", "way"), one_in(6, PAIRS, WAYS))
def test_every_order_of_derivative_is_that_of_a_function_that_has_it(pair: str, way: str) -> None:
    ours, expected = PAIRS[pair]
    derivative = WAYS[way](ours)(_x())
    torch.testing.assert_close(derivative, WAYS[way](expected)(_x()))
    assert derivative.count_nonzero() > 0, "a test that sees zeros shows nothing"


COMPILED = ["leaky", "arctan", "custom", "pin"]
COMPILED_WAYS = ["jvp(vmap)", "jacfwd(vmap)", "vmap(jvp)", "jvp(jvp)", "jacfwd(jacfwd)", "jvp(vmap(jvp))", "hessian"]


@pytest.mark.program
@pytest.mark.parametrize(("pair", "way"), one_in(4, COMPILED, COMPILED_WAYS))
def test_compiled(pair: str, way: str) -> None:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if pair == "pin" and ("jacfwd" in way or way == "hessian") and version < (2, 15):
        pytest.skip("torch before 2.15 compiles no jacfwd under any TorchFunctionMode: Tensor.unflatten")
    ours, expected = PAIRS[pair]
    with pg.pin_edge("half") if pair == "pin" else contextlib.nullcontext():
        f = expected if pair == "pin" else ours
        derivative = torch.compile(WAYS[way](f), backend="aot_eager", fullgraph=True)(_x())
    torch.testing.assert_close(derivative, WAYS[way](expected)(_x()))


@pytest.mark.parametrize("way", ["jvp(vmap)", "jvp(jvp)", "hessian", "jacfwd(vmap)"])
def test_rules_that_read_grad_raise_in_each(way: str) -> None:
    with pytest.raises(NotImplementedError, match="clamp/inward: forward mode must not be used"):
        WAYS[way](lambda x: pg.clamp(_bent(x), -1, 1))(_x())
