"""A user's own rule: ten lines, and it is a row like any other; what is wrong with one is found, and said."""

import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd import rules
from pseudograd.cli import main
from pseudograd.rule import OPS, RuleObject
from pseudograd.testing import check_rule
from pseudograd.testing.contract.cases import Case
from pseudograd.testing.measure.inputs import DTYPES
from pseudograd.testing.measure.transforms import (
    diagonal_by_jvp,
    gradient_by_backward,
    gradient_by_func_grad,
    gradient_by_vmap_of_grad,
)

from ..choices import slow_but

pytestmark = pytest.mark.usefixtures("table_as_it_was")


def _register(op: str, function: Callable[..., Tensor], is_linear: bool = True, **more: Any) -> None:
    pg.register_rule(op, formula="a formula", source="a source", is_linear=is_linear, **more)(function)


def fading(grad: Tensor, x: Tensor, y: Tensor, min: Any, max: Any, *, width: float = 1.0) -> Tensor:
    return grad * torch.exp(-(x - y).abs() / width)


def receding(grad: Tensor, x: Tensor, y: Tensor, min: Any, max: Any, *, width: float = 1.0) -> Tensor:
    return grad / (1 + (x - y).abs() / width)


def receding_of_one(grad: float, x: float, y: float, min: Any, max: Any, *, width: float = 1.0) -> float:
    return grad / (1 + abs(x - y) / width)


def constant_outside(grad: Tensor, x: Tensor, y: Tensor, min: Any, max: Any, *, size: float = 0.01) -> Tensor:
    """zenkai's ClampSTE: 0.01 outside, whatever grad is."""
    return torch.full_like(grad, size)


def over_cosh(grad: Tensor, x: Tensor) -> Tensor:
    """grad / cosh(x), and 0 where cosh is large."""
    near = x.abs() < 80
    return torch.where(near, torch.where(near, grad, 0.0) / torch.cosh(torch.where(near, x, 0.0)), 0.0)


def toggled(grad: Tensor, x: Tensor, *, width: float = 0.1) -> Tensor:
    return torch.where(grad.abs() < width, 0.0, grad)


def test_a_rule_in_the_clamp_family_does_what_it_says_outside_only() -> None:
    """Every op of the family has it, whichever it was registered for."""
    _register("relu", fading)
    x = torch.tensor([-3.0, -1.0, 0.5, 1.0, 2.0], requires_grad=True)
    grad = torch.tensor([1.0, -2.0, 3.0, 4.0, -5.0])
    for edge, share in (("closed", 1.0), ("open", 0.0), ("half", 0.5)):
        y = pg.clamp(x, -1, 1, rule=rules.fading(width=2.0), edge=edge)
        expected = torch.tensor([math.exp(-1.0), -2 * share, 3, 4 * share, -5 * math.exp(-0.5)])
        torch.testing.assert_close(torch.autograd.grad(y, x, grad)[0], expected)
    for op in (pg.lower_bound, pg.upper_bound):
        assert op(x, 0.0, rule="fading").requires_grad
    assert pg.relu(x, rule="fading").requires_grad
    for name in ("clamp", "clamp_", "lower_bound", "upper_bound", "relu", "relu6", "hardtanh"):
        assert name == "clamp_" or list(OPS[name].rules)[-1] == "fading"
    assert "elastic" not in OPS["relu"].rules


OWN_RULES = pytest.mark.parametrize(
    ("op", "function", "is_linear", "parameter"),
    [
        pytest.param("clamp", fading, True, "width", marks=pytest.mark.slow),
        pytest.param("upper_bound", constant_outside, False, "size", marks=pytest.mark.program),
        pytest.param("fake_quantize", fading, True, "width", marks=pytest.mark.slow),
        ("sign", over_cosh, True, None),
        pytest.param("round", toggled, False, None, marks=pytest.mark.program),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)


@OWN_RULES
def test_a_rule_of_ones_own_passes_the_contract(
    op: str, function: Callable[..., Tensor], is_linear: bool, parameter: str | None
) -> None:
    """One that has a parameter is checked with another value than the default."""
    _register(op, function, is_linear)
    check_rule(RuleObject(function.__name__, ((parameter, 0.75),)) if parameter else function.__name__, op=op)


@pytest.mark.program
@pytest.mark.parametrize("op", ["relu", pytest.param("upper_bound", marks=pytest.mark.slow)])
def test_a_rule_with_a_reference_written_apart_passes_the_contract(op: str) -> None:
    _register("clamp", receding, reference=receding_of_one)
    check_rule("receding", op=op)


def _double(grad: Tensor, x: Tensor) -> Tensor:
    return 2 * grad


def writes_into_grad(grad: Tensor, x: Tensor) -> Tensor:
    return grad.mul_(0.5)


def _leaks_nan(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where(x == 0, 0.0, grad / x.abs().sqrt().sqrt() * x.abs().sqrt().sqrt())


@pytest.mark.parametrize(
    ("function", "is_linear", "reference", "found_by"),
    [
        (toggled, True, None, "linear in grad"),
        (_double, False, None, "not linear in grad"),
        (_double, True, lambda grad, x: grad, "gradient, float16"),
        (_leaks_nan, True, lambda grad, x: grad if x else 0.0, "gradient|second derivative|double backward"),
    ],
    ids=["claims to be linear", "claims not to be", "is not its reference", "leaks NaN"],
)
def test_what_is_wrong_with_a_rule_is_found(
    function: Callable[..., Tensor], is_linear: bool, reference: Callable[..., float] | None, found_by: str
) -> None:
    _register("round", function, is_linear, reference=reference)
    with pytest.raises(AssertionError, match=rf"^round-{function.__name__}.*: ({found_by})"):
        check_rule(function.__name__, op="round")


def test_a_function_that_writes_into_grad_is_found() -> None:
    _register("round", writes_into_grad)
    with pytest.raises((AssertionError, RuntimeError)):
        check_rule("writes_into_grad", op="round")


def blocked_as_ppo(grad: Tensor, ratio: Tensor, advantage: Tensor, min: float, max: float) -> Tensor:
    blocked = ((ratio > max) & (advantage > 0)) | ((ratio < min) & (advantage < 0))
    return torch.where(blocked, 0.0, -grad * advantage * ratio)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "how",
    [
        {"low": 0.25, "high": 0.5},
        {"low": None, "high": 0.5},
        {"low": 0.25, "high": None, "ceiling": 3.0, "edge": "half"},
        {"low": 0.25, "high": 0.5, "ceiling": 3.0, "edge": "open"},
    ],
    ids=str,
)
def test_a_policy_rule_of_ones_own_is_the_librarys_where_its_formula_is(how: Any, dtype: torch.dtype) -> None:
    """Values, gradients and second derivatives, from a ratio of 0 to an infinite one."""
    _register("policy_loss", blocked_as_ppo)
    ratios = torch.tensor([-800.0, -100.0, -2.0, math.log(0.5), 0.0, 0.25, math.log(3.0), 2.0, 100.0, 800.0])
    log_ratio = torch.stack([ratios, ratios, ratios.clamp(-2, 2)], 1).to(dtype)
    advantage = torch.tensor([1.5, -1.5, 0.0], dtype=dtype).expand(10, 3)
    grad = torch.linspace(-2, 3, 30).reshape(10, 3).to(dtype)
    results = []
    for rule in ("inward", "blocked_as_ppo"):
        leaves = [value.clone().requires_grad_() for value in (log_ratio, advantage, grad)]
        y = pg.policy.loss(*leaves[:2], rule=rule, **how)
        gradients = torch.autograd.grad(y, leaves[:2], leaves[2].to(y.dtype), create_graph=True)
        second = torch.autograd.grad(gradients[0].sum(), leaves, materialize_grads=True)
        results.append((y.detach(), *(gradient.detach() for gradient in gradients), *second))
    torch.testing.assert_close(*results, rtol=1e-12 if dtype == torch.float64 else 0.02, atol=0, equal_nan=True)


def tent(grad: Tensor, x: Tensor, threshold: Tensor, bandwidth: float) -> Tensor:
    u = ((x - threshold) / bandwidth).abs()
    return torch.where(u < 1, -grad * threshold / bandwidth * (1 - u), 0.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("window_to_x", [False, True])
def test_a_threshold_rule_of_ones_own_is_the_librarys_where_its_formula_is(
    window_to_x: bool, dtype: torch.dtype
) -> None:
    """Also where x or the threshold is infinite or NaN: nothing for the threshold."""
    _register("jumprelu", tent)
    x = torch.tensor([-math.inf, -1.0, -0.25, 0.0, 0.3, 0.5, 0.8, 1.0, math.inf, math.nan], dtype=dtype)
    x, grad = x[:, None].expand(10, 4), torch.linspace(-2, 3, 40).reshape(10, 4).to(dtype)
    threshold = torch.tensor([0.5, 0.0, math.inf, -math.inf], dtype=dtype)
    results = []
    for rule in ("triangle", "tent"):
        leaves = [x.clone().requires_grad_(), threshold.clone().requires_grad_()]
        y = pg.ops.jumprelu(*leaves, bandwidth=0.5, window_to_x=window_to_x, rule=rule)
        results.append((y.detach(), *torch.autograd.grad(y, leaves, grad)))
    torch.testing.assert_close(*results, rtol=1e-12 if dtype == torch.float64 else 2e-3, atol=0, equal_nan=True)


def test_a_rule_of_ones_own_is_listed_and_named_in_errors(capsys: pytest.CaptureFixture[str]) -> None:
    _register("round", toggled, is_linear=False)
    assert main(["rules", "round"]) == 0
    assert "toggled(width=0.1)\n    grad_x           a formula" in capsys.readouterr().out
    with pytest.raises(
        ValueError,
        match=r"round: rule must be one of fourier, identity, toggled, trust, zero, got 'toggle'\. Did you mean 'toggled'\?",
    ):
        pg.round(torch.ones(1), rule="toggle")
    with pytest.raises(NotImplementedError, match="round/toggled: forward mode must not be used"):
        torch.func.jvp(lambda x: pg.round(x, rule="toggled"), (torch.ones(1),), (torch.ones(1),))
    assert pickle.loads(pickle.dumps(rules.toggled(width=2))) == rules.toggled(width=2)
    with pytest.raises(ValueError, match="toggled: width must be finite and above 0, got -1"):
        rules.toggled(width=-1)


def _named(name: str) -> Callable[..., Tensor]:
    def function(grad: Tensor, x: Tensor) -> Tensor:
        return grad

    function.__name__ = name
    return function


def bad_default(grad: Tensor, x: Tensor, *, width: float = 0.0) -> Tensor:
    return grad


def _sums(grad: Tensor, x: Tensor) -> Tensor:
    return grad.sum()


def _says_nothing(grad: Tensor, x: Tensor) -> None:
    pass


OPS_WITH_AN_ADAPTER = (
    "ceil, clamp, fake_quantize, floor, hardtanh, heaviside, jumprelu, lower_bound, policy_loss, relu, relu6, round, sign, trunc, "
    "upper_bound"
)
WRONG: list[tuple[dict[str, Any], Any, type[Exception], str]] = [  # arguments, function, and the error
    ({"op": "clmp"}, None, ValueError, f"op must be one of {OPS_WITH_AN_ADAPTER}, got 'clmp'. Did you mean 'clamp'?"),
    ({"formula": " "}, None, ValueError, "formula must be a line of text, got ' '."),
    ({"source": None}, None, ValueError, "source must be a line of text, got None."),
    ({}, _named("identity"), ValueError, "the name must be new for round, got 'identity'. Choose another name."),
    ({}, lambda grad, x: grad, ValueError, "the function must have a name that can be a rule's, got '<lambda>'."),
    ({}, "fading", TypeError, "what it decorates must be a function, got 'fading'."),
    ({}, bad_default, ValueError, "width must be finite and above 0, got 0.0. The default is a number above 0."),
    (
        {},
        _sums,
        ValueError,
        "_sums must return one gradient for each element of x, got a Tensor of torch.float32 and shape ().",
    ),
    ({}, _says_nothing, ValueError, "_says_nothing must return one gradient for each element of x, got None."),
]


@pytest.mark.parametrize(("arguments", "function", "kind", "text"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_registration_says_what_to_do(
    arguments: dict[str, Any], function: Any, kind: type[Exception], text: str
) -> None:
    before = {name: set(op.rules) for name, op in OPS.items()}
    with pytest.raises(kind) as caught:
        pg.register_rule(**{"op": "round", "formula": "f", "source": "s", "is_linear": True, **arguments})(function)
    assert str(caught.value) == f"{'bad_default' if function is bad_default else 'register_rule'}: {text}"
    assert {name: set(op.rules) for name, op in OPS.items()} == before


def test_a_function_with_the_wrong_arguments() -> None:
    with pytest.raises(ValueError, match=r"register_rule: fading must take \(grad, x\), got"):
        _register("round", fading)
    with pytest.raises(ValueError, match=r"register_rule: toggled must take \(grad, x, y, min, max\), got"):
        _register("clamp", toggled)


_X = [-2.0, -1.0, 0.0, 1.0, 2.0]
_OUTSIDE = [_X, [-1.0, -1.0, 0.0, 1.0, 1.0], -1.0, 1.0]
TRIALS: dict[str, list[object]] = {
    "clamp": _OUTSIDE,
    "fake_quantize": _OUTSIDE,
    "sign": [_X],
    "round": [_X],
    "policy_loss": [[0.25, 0.6875, 1.125, 1.5625, 2.0], [1.0, -1.0, 2.0, -2.0, 0.5], 0.8, 1.2],
    "jumprelu": [[-0.5, 0.0, 0.5, 1.0, 1.5], [0.5] * 5, 0.75],
}


@pytest.mark.parametrize("op", TRIALS)
def test_the_one_call_at_registration_reaches_beyond_on_and_between_the_bounds(op: str) -> None:
    """So that a function that fails on some x fails at registration, and not in a backward."""
    calls: list[list[object]] = []

    def seeing(*arguments: Any) -> Tensor:
        calls.append([value.tolist() if isinstance(value, Tensor) else value for value in arguments])
        return arguments[0] * arguments[1]

    _register(op, seeing)
    assert calls == [[[1.0] * 5, *TRIALS[op]]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_without_a_reference_the_function_itself_runs_in_the_precision_of_backward(dtype: torch.dtype) -> None:
    """float32 for half precision, as backward has it."""
    dtypes: list[torch.dtype] = []

    def seeing(grad: Tensor, x: Tensor) -> Tensor:
        dtypes.append(x.dtype)
        return grad * x

    _register("round", seeing)
    case = Case(OPS["round"], OPS["round"].rules["seeing"])
    dtypes.clear()
    assert case.reference_in(dtype)(0.5, 3.0, 0.0)[0] == 1.5
    assert dtypes == [torch.float64 if dtype is torch.float64 else torch.float32]


def test_check_rule_refuses_names_that_it_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"check_rule: op must be one of .*, got 'rond'\. Did you mean 'round'\?"):
        check_rule("identity", op="rond")
    with pytest.raises(
        ValueError, match="check_rule: rule of round must be one of fourier, identity, trust, zero, got 'ident'"
    ):
        check_rule("ident", op="round")


NAMES = ["edge", "y", "wants", "grad", "x", "min", "max", "maximize", "given", "fl", "name"]
NAMES += ["op", "rule", "self", "upstream"]


@pytest.mark.parametrize("parameter", NAMES)
@pytest.mark.parametrize("op", ["clamp", "fake_quantize", "round"])
def test_a_parameter_may_have_any_name(op: str, parameter: str) -> None:
    """Also that of an argument of the op or of the library's own functions, such as edge and y."""
    names = ["g", "v", "out", "low", "high"] if op in ("clamp", "fake_quantize") else ["g", "v"]
    scope: dict[str, Any] = {}
    exec(f"def times({', '.join(names)}, *, {parameter}=2.0): return g * {parameter}", scope)
    _register(op, scope["times"])
    x, grad = torch.tensor([-9.0, 9.0]), torch.tensor([1.0, -1.0])
    others: dict[str, tuple[Any, ...]] = {"clamp": (-1, 1), "fake_quantize": (0.5,)}
    for rule, factor in (("times", 2.0), (rules.times(**{parameter: 5.0}), 5.0)):

        def f(x: Tensor, rule: Any = rule) -> Tensor:
            how = {"quant_max": 3, "quant_min": -3} if op == "fake_quantize" else {}
            return getattr(pg, op)(x, *others.get(op, ()), rule=rule, **how)

        for way in (gradient_by_backward, gradient_by_func_grad, gradient_by_vmap_of_grad, diagonal_by_jvp):
            assert torch.equal(way(f, x, grad), grad * factor), way.__name__
    assert repr(rules.times(**{parameter: 5.0})) == f"times({parameter}=5.0)"
    if op == "clamp":
        at_the_bound = torch.tensor([1.0], requires_grad=True)
        pg.clamp(at_the_bound, -1, 1, rule=rules.times(**{parameter: 5.0}), edge="open").sum().backward()
        assert at_the_bound.grad.item() == 0


def _cell(factor: float, name: str = "again", module: str = "notebook") -> Callable[..., Tensor]:
    """A notebook cell, run with another number in it."""
    scope: dict[str, Any] = {"__name__": module}
    exec(f"def {name}(grad, x, y, min, max, *, width=1.0): return grad * {factor} * width", scope)
    return scope[name]


@pytest.mark.parametrize("is_compiled", slow_but([False], [False, True], pytest.mark.program))
def test_a_cell_that_runs_twice_replaces_its_rule_everywhere(is_compiled: bool) -> None:
    _register("clamp", _cell(2.0))
    chosen = rules.again(width=1.5)
    x, unit = torch.tensor([3.0]), torch.ones(1)
    with pg.override(clamp="again") as of_torch:
        pass
    model = torch.nn.Sequential(torch.nn.Hardtanh())
    pg.convert(model, {torch.nn.Hardtanh: "again"})

    def overridden(x: Tensor) -> Tensor:
        with of_torch:
            return torch.clamp(x, -1, 1)

    calls: dict[str, Callable[[Tensor], Tensor]] = {
        "clamp": lambda x: pg.clamp(x, -1, 1, rule="again"),
        "relu": lambda x: pg.relu(-x, rule="again").neg(),
        "override": overridden,
        "convert": model,
    }
    earlier_x = x.clone().requires_grad_()
    earlier_y = pg.clamp(earlier_x, -1, 1, rule="again")
    compiled = torch.compile(calls["clamp"], backend="aot_eager", fullgraph=True)

    def gradient_of_clamp(x: Tensor) -> Tensor:
        return gradient_by_func_grad(calls["clamp"], x, unit)

    compiled_gradient = torch.compile(gradient_of_clamp, backend="aot_eager", fullgraph=True)
    for factor in (2.0, 7.0):
        if factor == 7:
            _register("clamp", _cell(7.0))
        for name, call in calls.items():
            assert gradient_by_backward(call, x, unit).item() == factor, name
            assert gradient_by_func_grad(call, x, unit).item() == factor, name
        if is_compiled:
            assert gradient_by_backward(compiled, x, unit).item() == compiled_gradient(x).item() == factor
        assert gradient_by_backward(lambda x: pg.clamp(x, -1, 1, rule=chosen), x, unit).item() == factor * 1.5
    earlier_y.backward()
    assert earlier_x.grad.item() == 2, "a backward has the rule of its forward"


def test_another_function_of_that_name_is_refused() -> None:
    _register("clamp", _cell(2.0))
    for other in (_cell(3.0, module="elsewhere"), _cell(3.0, name="inward")):
        with pytest.raises(ValueError, match=f"register_rule: the name must be new for clamp, got '{other.__name__}'"):
            _register("clamp", other)


def test_a_rule_registered_after_a_context_was_built_is_known_to_it() -> None:
    with pg.override(clamp=lambda site: "again") as late:
        pass
    _register("clamp", _cell(2.0))

    def f(x: Tensor) -> Tensor:
        with late:
            return torch.clamp(x, -1, 1)

    assert gradient_by_backward(f, torch.tensor([3.0]), torch.ones(1)).item() == 2
