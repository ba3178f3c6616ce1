"""torch.fx.symbolic_trace keeps every op as a call with its rule; where it cannot see one, our error says what to write."""

import copy
import inspect
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx import symbolic_trace
from torch.nn import Parameter

import pseudograd as pg
from pseudograd import clamp as imported_clamp
from pseudograd import rules  # noqa: F401  for CASES

from .choices import folded
from .test_nn import CASES

X = torch.tensor([-2.0, -1.0, 0.0, 0.3, 1.0, 2.5])
GRAD = torch.tensor([1.0, -2.0, 3.0, -4.0, 0.5, -0.25])
BOUND = torch.tensor([-1.0, -0.5, 0.0, 0.0, 0.5, 1.0])
CODES = torch.tensor([[1.0, 0.0, -1.0], [0.0, 0.5, 2.0]])
FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "abs": lambda x: pg.abs(x, edge=1),
    "ceil": lambda x: pg.ceil(x, rule="zero"),
    "clamp": lambda x: pg.clamp(x, -1, 1),
    "clamp by a tensor": lambda x: pg.clamp(x, max=BOUND.to(x.device), rule="identity"),
    "clamp by what is traced": lambda x: pg.clamp(BOUND, x, None, rule="zero", edge="half"),
    "clamp of an expression": lambda x: pg.clamp(x * 2 + 1, -1, 1, rule="sign", maximize=True) * x,
    "clamp_": lambda x: pg.clamp_(x * 1, -1, 1),
    "clamp_with_grad": lambda x: pg.familiar.clamp_with_grad(x, -1, 1),
    "clamp_with_grad2": lambda x: pg.familiar.clamp_with_grad2(x, -1, 1),
    "clamp_with_grad_proposed": lambda x: pg.familiar.clamp_with_grad_proposed(x, -1, 1),
    "clip_grad": lambda x: pg.clip_grad(x, 0.5),
    "codebook_loss": lambda x: pg.codebook.codebook_loss(CODES, x.reshape(2, 3), torch.tensor([0, 1])),
    "commitment_loss": lambda x: pg.codebook.commitment_loss(x.reshape(2, 3), CODES),
    "fake_quantize": lambda x: pg.fake_quantize(x, 0.25, 0, -4, 3, rule="inward"),
    "floor": lambda x: pg.floor(x),
    "gelu": lambda x: pg.gelu(x, approximate="tanh", rule="fewbit"),
    "hardsigmoid": lambda x: pg.ops.hardsigmoid(x),
    "hardtanh": lambda x: pg.hardtanh(x, rule="elastic"),
    "heaviside": lambda x: pg.heaviside(x, at_zero=0.5),
    "jumprelu": lambda x: pg.jumprelu(x, 0.5, bandwidth=2.0, window_to_x=True, rule="triangle"),
    "leaky_relu": lambda x: pg.ops.leaky_relu(x, 0.25),
    "leaky": lambda x: pg.clamp(x, -1, 1, rule=pg.rules.leaky(0.5), edge="open"),
    "lower_bound": lambda x: pg.lower_bound(x, 0),
    "policy_loss": lambda x: pg.policy.loss(x, GRAD, high=0.5, rule=pg.rules.leaky(low=0.5, high=1.0), space="log"),
    "relu": lambda x: pg.relu(x, rule="inward", edge="closed"),
    "relu6": lambda x: pg.relu6(x, edge="half"),
    "replace_grad": lambda x: pg.replace_grad(x.sign(), x * 2),
    "reverse_grad": lambda x: pg.reverse_grad(x),
    "round": lambda x: pg.round(x, decimals=1),
    "scale_grad": lambda x: pg.scale_grad(x, 0.1),
    "silu": lambda x: pg.silu(x, rule=pg.rules.fewbit(bits=3)),
    "sign": lambda x: pg.sign(x, rule=pg.rules.triangle(2.0)),
    "straight_through": lambda x: pg.straight_through(torch.round)(x),
    "surrogate": pg.surrogate(backward=torch.tanh)(lambda x: torch.sign(x)),
    "trunc": lambda x: pg.trunc(x),
    "upper_bound": lambda x: pg.upper_bound(x, 0, edge="inward"),
    "vector_quantize": lambda x: pg.codebook.vector_quantize(x.reshape(2, 3), CODES, rule="rotation"),
    "ClampWithGrad.apply": lambda x: pg.familiar.ClampWithGrad.apply(x, -1, 1),
    "ClampWithGradProposed.apply": lambda x: pg.familiar.ClampWithGradProposed.apply(x, -1, 1),
    "ClampWithGradThatWorks.apply": lambda x: pg.familiar.ClampWithGradThatWorks.apply(x, -1, 1),
    "pseudograd.ops": lambda x: pg.ops.clamp(x, -1, 1),
}


def _learned(value: float) -> Parameter:
    return Parameter(torch.tensor(value))


MODULES: dict[str, Callable[[], torch.nn.Module]] = {
    **{call: partial(eval, f"pg.nn.{call}") for line in CASES if "custom" not in (call := line.partition("  ->  ")[0])},
    "Clamp, a buffer and a parameter": lambda: pg.nn.Clamp(BOUND, _learned(1.0), rule="zero"),
    "FakeQuantize that learns": lambda: pg.nn.FakeQuantize(_learned(0.25), _learned(1.0), -4, 3),
    "FakeQuantize with scaled gradients": lambda: pg.nn.FakeQuantize(_learned(0.25), 0, -4, 3, use_grad_scaling=True),
    "GELU": lambda: pg.nn.GELU(rule="fewbit"),
    "Hardsigmoid": pg.nn.Hardsigmoid,
    "LeakyReLU": lambda: pg.nn.LeakyReLU(0.25),
    "Sign": lambda: pg.nn.Sign(rule="gaussian"),
    "SiLU": lambda: pg.nn.SiLU(rule=pg.rules.fewbit(bits=3)),
    "VectorQuantize": lambda: pg.nn.VectorQuantize(3, 6),
}


def _gradients(f: Callable[..., Any], *learned: Tensor) -> list[Tensor]:
    """Values and gradients; of x and of what learns."""
    x = X.clone().requires_grad_()
    y = f(x)
    y = y[0] if isinstance(y, tuple) else y
    gradients = torch.autograd.grad(
        (y * GRAD.reshape(y.shape)).sum() if y.dim() else y, (x, *learned), allow_unused=True
    )
    return [y.detach(), *[torch.zeros(()) if grad is None else grad for grad in gradients]]


def _same(tensors: list[Tensor], expected: list[Tensor]) -> bool:
    return len(tensors) == len(expected) and all(map(torch.equal, tensors, expected))


def test_every_public_function_is_here() -> None:
    names = {name for name in (*pg.ops.__all__, *pg.codebook.__all__, *pg.familiar.__all__) if name.islower()}
    assert names - set(FUNCTIONS) == {"register_rule", "get_gradient"}
    classes = {f"{name}.apply" for name in pg.familiar.__all__ if not name.islower()}
    # The one is another name, the other is replace_grad itself, called through a class.
    assert classes - set(FUNCTIONS) == {"ClampWithGrad2.apply", "ReplaceGrad.apply"}
    assert set(pg.nn.__all__) <= {name.partition("(")[0] for name in MODULES}


@folded
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    """Traced, traced again, copied, and from its printed code."""
    f = FUNCTIONS[name]
    expected = _gradients(f)
    traced = symbolic_trace(f)
    again = symbolic_trace(traced)
    for g in (traced, symbolic_trace(copy.deepcopy(again))):
        g.graph.lint()
        assert _same(_gradients(g), expected)
        assert "pseudograd" in g.code
    traced.recompile()
    assert _same(_gradients(traced), expected)
    assert _same(_gradients(f), expected)  # and the function itself is as it was


@pytest.mark.parametrize("name", ["clamp", "leaky", "sign", "vector_quantize", "pseudograd.ops"])
def test_files(name: str) -> None:
    traced = symbolic_trace(FUNCTIONS[name])
    assert _same(_gradients(pickle.loads(pickle.dumps(traced))), _gradients(FUNCTIONS[name]))


class Model(torch.nn.Module):
    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.body = torch.nn.Sequential(torch.nn.Identity(), layer)

    def forward(self, x: Tensor) -> Any:
        y = self.body(x * 1)
        return y[0] if isinstance(y, tuple) else pg.round(y + self.layer(x))


@folded
@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    """Inside a model that also calls them by name; the layers' own parameters learn as before."""
    torch.manual_seed(0)
    layer = MODULES[name]()
    model = layer if name == "VectorQuantize" else Model(layer)
    traced = symbolic_trace(model)
    for g in (traced, symbolic_trace(copy.deepcopy(traced))):
        assert _same(_gradients(g, *g.parameters()), _gradients(model, *model.parameters()))
        assert "pseudograd" in g.code


OTHERS = ("straight_through", "surrogate", "register_rule", "policies")  # which take no x


@folded
@pytest.mark.parametrize("name", [name for name in pg.ops.__all__ if name.islower() and name not in OTHERS])
def test_a_name_of_its_own_is_an_error_that_says_what_to_write(name: str) -> None:
    """`from pseudograd import clamp` makes one; torch.fx exchanges only what it was told of."""
    function = getattr(pg.ops, name)
    _, *parameters = inspect.signature(function).parameters.values()
    needed = {p.name: 0.5 for p in parameters if p.default is p.empty}
    text = r"To trace it call pseudograd\.[\w.]+, or write torch\.fx\.wrap\('\w+'\) below your import of it"
    with pytest.raises(TypeError, match=text):
        symbolic_trace(lambda x: function(x, **needed))


def test_the_error_names_the_argument() -> None:
    text = (
        r"clamp: min must be a number, a tensor or None, got Proxy\(x\)\. To trace it call pseudograd\.clamp, or write"
    )
    with pytest.raises(TypeError, match=text):
        symbolic_trace(lambda x: imported_clamp(X, x))
    with pytest.raises(TypeError, match=r"To trace it call pseudograd\.replace_grad, or write"):
        symbolic_trace(lambda x: pg.familiar.ReplaceGrad.apply(x, x))
    with pytest.raises(TypeError, match=r"clamp: x must be a tensor, got Proxy\(x\)"):
        symbolic_trace(lambda x: imported_clamp(x, 0))


torch.fx.wrap("wrapped_clamp")
wrapped_clamp = imported_clamp


def test_what_the_error_says_works() -> None:
    def f(x: Tensor) -> Tensor:
        return wrapped_clamp(x, -1, 1)

    assert _same(_gradients(symbolic_trace(f)), _gradients(f))


def test_a_rule_with_a_function_is_an_error() -> None:
    """A graph can hold no function of ours: torch.fx says so, and keeps nothing silently."""
    rule = pg.rules.custom(torch.cos)
    with pytest.raises(NotImplementedError, match="Function"):
        symbolic_trace(lambda x: pg.sign(x, rule=rule))
