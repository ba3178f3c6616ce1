"""Bad calls of rounding, steps, abs, activations, gradient transforms, fake_quantize, custom rules: each whole text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import pseudograd as pg
from pseudograd.rule import OPS

X = torch.tensor([0.5, 2.0])
M = torch.zeros(2, 3)
NAN, INF = float("nan"), float("inf")
RULES = ", ".join(sorted(OPS["clamp"].rules))
STEP_RULES = "arctan, custom, fast_sigmoid, gaussian, identity, sigmoid, triangle, window, zero"
COMPLEX = "got torch.complex64. Complex numbers have no order; call x.real first."

ONE_ARGUMENT: dict[str, Callable[..., object]] = {
    "round": pg.round,
    "floor": pg.floor,
    "ceil": pg.ceil,
    "trunc": pg.trunc,
    "sign": pg.sign,
    "heaviside": pg.heaviside,
    "abs": pg.abs,
    "scale_grad": lambda x: pg.scale_grad(x, 0.5),
    "reverse_grad": pg.reverse_grad,
    "clip_grad": lambda x: pg.clip_grad(x, 0.5),
    "fake_quantize": lambda x: pg.fake_quantize(x, 0.5),
    "jumprelu": lambda x: pg.jumprelu(x, 0.5, bandwidth=0.5),
    "gelu": pg.gelu,
    "silu": pg.silu,
    "leaky_relu": pg.ops.leaky_relu,
    "hardsigmoid": pg.ops.hardsigmoid,
}

CASES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "decimals": (lambda: pg.round(X, decimals=1.5), TypeError, "round: decimals must be an integer, got 1.5."),
    "boolean decimals": (
        lambda: pg.round(X, decimals=True),
        TypeError,
        "round: decimals must be an integer, got True.",
    ),
    "rule of round": (
        lambda: pg.round(X, rule="identical"),
        ValueError,
        "round: rule must be one of fourier, identity, trust, zero, got 'identical'. Did you mean 'identity'?",
    ),
    "a rule of round alone": (
        lambda: pg.floor(X, rule="trust"),
        ValueError,
        "floor: rule must be one of identity, zero, got 'trust'. 'trust' is a rule of others: use round.",
    ),
    "within": (
        lambda: pg.rules.trust(within=0.0),
        ValueError,
        "trust: within must be finite and above 0, got 0.0. The default is 0.25.",
    ),
    "bandwidth of 0": (
        lambda: pg.jumprelu(X, 0.5, bandwidth=0.0),
        ValueError,
        "jumprelu: bandwidth must be above 0, got 0.0.",
    ),
    "bandwidth NaN": (
        lambda: pg.jumprelu(X, 0.5, bandwidth=NAN),
        ValueError,
        "jumprelu: bandwidth must be finite, got nan.",
    ),
    "a tensor for a bandwidth": (
        lambda: pg.jumprelu(X, 0.5, bandwidth=X),
        TypeError,
        "jumprelu: bandwidth must be a number, got a Tensor of torch.float32 and shape (2,).",
    ),
    "an infinite threshold": (
        lambda: pg.jumprelu(X, INF, bandwidth=1.0),
        ValueError,
        "jumprelu: threshold must be finite, got inf.",
    ),
    "no threshold": (
        lambda: pg.jumprelu(X, None, bandwidth=1.0),
        TypeError,
        "jumprelu: threshold must be a number or a tensor, got None.",
    ),
    "a boolean threshold": (
        lambda: pg.jumprelu(X, True, bandwidth=1.0),
        TypeError,
        "jumprelu: threshold must be a number or a tensor, got True.",
    ),
    "integer thresholds": (
        lambda: pg.jumprelu(X, torch.tensor([1, 2]), bandwidth=1.0),
        TypeError,
        "jumprelu: threshold must be floating point, got torch.int64. Call .float() first.",
    ),
    "thresholds of another shape": (
        lambda: pg.jumprelu(X, torch.ones(2, 1), bandwidth=1.0),
        ValueError,
        "jumprelu: threshold must broadcast to x of shape (2,), got (2, 1). Reshape or expand it.",
    ),
    "thresholds on another device": (
        lambda: pg.jumprelu(X, X.to("meta"), bandwidth=1.0),
        ValueError,
        "jumprelu: threshold must be on cpu, the device of x, got 'meta'. Call .to('cpu') first.",
    ),
    "integers into jumprelu": (
        lambda: pg.jumprelu(torch.tensor([1, 2]), 0.5, bandwidth=1.0),
        TypeError,
        "jumprelu: x must be floating point, got torch.int64. Call .float() first.",
    ),
    "window_to_x no bool": (
        lambda: pg.jumprelu(X, 0.5, bandwidth=1.0, window_to_x=1),
        TypeError,
        "jumprelu: window_to_x must be True or False, got 1.",
    ),
    "a width for a rule of jumprelu": (
        lambda: pg.jumprelu(X, 0.5, bandwidth=1.0, rule=pg.rules.window(scale=0.5)),
        TypeError,
        "jumprelu: rule 'window' must take no parameter, got 'scale'.",
    ),
    "a rule of steps alone": (
        lambda: pg.jumprelu(X, 0.5, bandwidth=1.0, rule="rectangle"),
        ValueError,
        "jumprelu: rule must be one of arctan, fast_sigmoid, gaussian, sigmoid, triangle, window, zero, got 'rectangle'. "
        "'rectangle' is 'window' here.",
    ),
    "rule of floor": (
        lambda: pg.floor(X, rule="inward"),
        ValueError,
        "floor: rule must be one of identity, zero, got 'inward'.",
    ),
    "rule of ceil": (lambda: pg.ceil(X, rule=None), ValueError, "ceil: rule must be one of identity, zero, got None."),
    "rule of trunc": (
        lambda: pg.trunc(X, rule=["zero"]),
        ValueError,
        "trunc: rule must be one of identity, zero, got ['zero'].",
    ),
    "at_zero no number": (
        lambda: pg.sign(X, at_zero="1"),
        TypeError,
        "sign: at_zero must be a number, got '1'.",
    ),
    "at_zero a bool": (
        lambda: pg.heaviside(X, at_zero=True),
        TypeError,
        "heaviside: at_zero must be a number, got True.",
    ),
    "at_zero NaN": (lambda: pg.sign(X, at_zero=NAN), ValueError, "sign: at_zero must be finite, got nan."),
    "at_zero infinite": (
        lambda: pg.heaviside(X, at_zero=INF),
        ValueError,
        "heaviside: at_zero must be finite, got inf.",
    ),
    "at_zero a tensor": (
        lambda: pg.heaviside(X, at_zero=X),
        TypeError,
        "heaviside: at_zero must be a number, got a Tensor of torch.float32 and shape (2,).",
    ),
    "rule of sign": (
        lambda: pg.sign(X, rule="fastsigmoid"),
        ValueError,
        f"sign: rule must be one of {STEP_RULES}, got 'fastsigmoid'. Did you mean 'fast_sigmoid'?",
    ),
    "rule of a clamp": (
        lambda: pg.heaviside(X, rule=pg.rules.leaky(0.1)),
        ValueError,
        f"heaviside: rule must be one of {STEP_RULES}, got 'leaky'.",
    ),
    "rule of a step": (
        lambda: pg.clamp(X, 0, 1, rule=pg.rules.custom(torch.cos)),
        ValueError,
        f"clamp: rule must be one of {RULES}, got 'custom'.",
    ),
    "custom by name": (
        lambda: pg.sign(X, rule="custom"),
        ValueError,
        "sign: rule must come with its slope, got 'custom'. Use rules.custom(slope=...).",
    ),
    "custom without a function": (
        lambda: pg.rules.custom(3),
        TypeError,
        "custom: slope must be a function of x, got 3.",
    ),
    "custom returns a number": (
        lambda: pg.rules.custom(lambda x: 1.0),
        ValueError,
        "custom: slope must return one number for each element of x, got 1.0.",
    ),
    "custom returns a sum": (
        lambda: pg.rules.custom(torch.sum),
        ValueError,
        "custom: slope must return one number for each element of x, got a Tensor of torch.float32 and shape ().",
    ),
    "window of width 0": (
        lambda: pg.rules.window(0),
        ValueError,
        "window: scale must be finite and above 0, got 0. The default is 1.0.",
    ),
    "negative height": (
        lambda: pg.rules.triangle(height=-1.0),
        ValueError,
        "triangle: height must be finite and above 0, got -1.0. The default is 1.0.",
    ),
    "width no number": (lambda: pg.rules.arctan("1"), TypeError, "arctan: scale must be a number, got '1'."),
    "infinite width": (
        lambda: pg.rules.gaussian(INF),
        ValueError,
        "gaussian: scale must be finite and above 0, got inf. The default is 1.0.",
    ),
    "edge of abs": (lambda: pg.abs(X, edge=2), ValueError, "abs: edge must be one of -1, 0, 1, got 2."),
    "edge of abs by name": (
        lambda: pg.abs(X, edge="closed"),
        ValueError,
        "abs: edge must be one of -1, 0, 1, got 'closed'.",
    ),
    "scale none": (lambda: pg.scale_grad(X, None), TypeError, "scale_grad: scale must be a number, got None."),
    "scale infinite": (lambda: pg.scale_grad(X, INF), ValueError, "scale_grad: scale must be finite, got inf."),
    "scale a tensor": (
        lambda: pg.scale_grad(X, torch.tensor(2.0)),
        TypeError,
        "scale_grad: scale must be a number, got a Tensor of torch.float32 and shape ().",
    ),
    "reverse by text": (lambda: pg.reverse_grad(X, "1"), TypeError, "reverse_grad: scale must be a number, got '1'."),
    "reverse by NaN": (lambda: pg.reverse_grad(X, NAN), ValueError, "reverse_grad: scale must be finite, got nan."),
    "limit 0": (lambda: pg.clip_grad(X, 0), ValueError, "clip_grad: limit must be above 0, got 0."),
    "limit below 0": (lambda: pg.clip_grad(X, -0.5), ValueError, "clip_grad: limit must be above 0, got -0.5."),
    "limit infinite": (lambda: pg.clip_grad(X, INF), ValueError, "clip_grad: limit must be finite, got inf."),
    "limit a bool": (lambda: pg.clip_grad(X, True), TypeError, "clip_grad: limit must be a number, got True."),
    "integers to quantise": (
        lambda: pg.fake_quantize(X.long(), 0.5),
        TypeError,
        "fake_quantize: x must be floating point, got torch.int64. Integers are quantised already; call .float() first.",
    ),
    "step 0": (
        lambda: pg.fake_quantize(X, 0.0),
        ValueError,
        "fake_quantize: scale must be finite and above 0, got 0.0.",
    ),
    "step NaN": (
        lambda: pg.fake_quantize(X, NAN),
        ValueError,
        "fake_quantize: scale must be finite and above 0, got nan.",
    ),
    "step no number": (
        lambda: pg.fake_quantize(X, "1"),
        TypeError,
        "fake_quantize: scale must be a number or a tensor, got '1'.",
    ),
    "complex step": (
        lambda: pg.fake_quantize(X, X + 0j),
        TypeError,
        f"fake_quantize: scale must be real, {COMPLEX}",
    ),
    "zero_point none": (
        lambda: pg.fake_quantize(X, 1.0, None),
        TypeError,
        "fake_quantize: zero_point must be a number or a tensor, got None.",
    ),
    "zero_point infinite": (
        lambda: pg.fake_quantize(X, 1.0, -INF),
        ValueError,
        "fake_quantize: zero_point must be finite, got -inf.",
    ),
    "zero_point NaN": (
        lambda: pg.fake_quantize(X, 1.0, NAN),
        ValueError,
        "fake_quantize: zero_point must be finite, got nan.",
    ),
    "quant_min": (
        lambda: pg.fake_quantize(X, 1.0, quant_min=-8.0),
        TypeError,
        "fake_quantize: quant_min must be an integer, got -8.0.",
    ),
    "quant_max": (
        lambda: pg.fake_quantize(X, 1.0, quant_max=True),
        TypeError,
        "fake_quantize: quant_max must be an integer, got True.",
    ),
    "empty grid": (
        lambda: pg.fake_quantize(X, 1.0, quant_min=3, quant_max=3),
        ValueError,
        "fake_quantize: quant_min must be below quant_max=3, got 3.",
    ),
    "axis no number": (
        lambda: pg.fake_quantize(M, torch.ones(3), axis="1"),
        TypeError,
        "fake_quantize: axis must be an integer, got '1'.",
    ),
    "axis a float": (
        lambda: pg.fake_quantize(M, torch.ones(3), axis=1.0),
        TypeError,
        "fake_quantize: axis must be an integer, got 1.0.",
    ),
    "axis out of range": (
        lambda: pg.fake_quantize(M, torch.ones(3), axis=2),
        ValueError,
        "fake_quantize: axis must be a dimension of x, which has 2, got 2.",
    ),
    "axis below range": (
        lambda: pg.fake_quantize(M, torch.ones(3), axis=-3),
        ValueError,
        "fake_quantize: axis must be a dimension of x, which has 2, got -3.",
    ),
    "channels": (
        lambda: pg.fake_quantize(M, torch.ones(3), axis=0),
        ValueError,
        "fake_quantize: scale must have 2 elements, the size of x along axis 0, got (3,).",
    ),
    "channels of the zero point": (
        lambda: pg.fake_quantize(M, torch.ones(2), torch.zeros(3), axis=0),
        ValueError,
        "fake_quantize: zero_point must have 2 elements, the size of x along axis 0, got (3,).",
    ),
    "shape": (
        lambda: pg.fake_quantize(M, torch.ones(2)),
        ValueError,
        "fake_quantize: scale must broadcast to x of shape (2, 3), got (2,). Reshape or expand it.",
    ),
    "device": (
        lambda: pg.fake_quantize(M, torch.ones(3, device="meta")),
        ValueError,
        "fake_quantize: scale must be on cpu, the device of x, got 'meta'. Call .to('cpu') first.",
    ),
    "edge": (
        lambda: pg.fake_quantize(X, 1.0, edge="close"),
        ValueError,
        "fake_quantize: edge must be one of closed, half, inward, open, got 'close'. Did you mean 'closed'?",
    ),
    "maximize": (
        lambda: pg.fake_quantize(X, 1.0, maximize=1),
        TypeError,
        "fake_quantize: maximize must be True or False, got 1.",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_call(name: str) -> None:
    call, kind, text = CASES[name]
    for _ in range(2):  # what was asked before is remembered; it must fail again
        with pytest.raises(kind) as caught:
            call()
        assert str(caught.value) == text


@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_no_tensor_and_no_real_tensor(name: str) -> None:
    for wrong, text in (
        ([1.0], f"{name}: x must be a tensor, got [1.0]. Wrap it in torch.tensor(...)."),
        (None, f"{name}: x must be a tensor, got None. Wrap it in torch.tensor(...)."),
        (X + 0j, f"{name}: x must be real, {COMPLEX}"),
    ):
        with pytest.raises(TypeError) as caught:
            ONE_ARGUMENT[name](wrong)
        assert str(caught.value) == text


PLAIN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "round": torch.round,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "trunc": torch.trunc,
    "sign": torch.sign,
    "heaviside": lambda x: torch.heaviside(x, torch.ones_like(x)),
    "abs": torch.abs,
    "scale_grad": lambda x: x,
    "reverse_grad": lambda x: x,
    "clip_grad": lambda x: x,
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8], ids=str)
def test_integers_get_torch_s_forward_and_no_gradient(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([3, 0, 7]).to(dtype)
    y = ONE_ARGUMENT[name](x)
    assert isinstance(y, torch.Tensor)
    assert torch.equal(y, PLAIN[name](x))
    assert y.dtype is dtype
    assert not y.requires_grad


@pytest.mark.parametrize(
    ("op", "field_name", "ours"),
    [
        *[
            (op, name, "identity")
            for op in ("round", "floor", "ceil", "trunc")
            for name in ("ste", "straight_through", "round_ste")
        ],
        *[(op, name, "zero") for op in ("round", "trunc", "sign", "heaviside") for name in ("true", "native", "none")],
        *[
            ("sign", name, "window")
            for name in ("clipped_ste", "ste_sign", "rectangular", "rect", "boxcar", "hardtanh")
        ],
        *[("heaviside", name, "triangle") for name in ("triangular", "piecewise_quadratic", "approx_sign")],
        *[("heaviside", name, "fast_sigmoid") for name in ("superspike", "super_spike", "softsign")],
        *[("sign", name, "gaussian") for name in ("erf", "normal")],
        *[("heaviside", name, "identity") for name in ("ste", "straight_through")],
        ("heaviside", "atan", "arctan"),
        ("heaviside", "logistic", "sigmoid"),
        *[("fake_quantize", name, "identity") for name in ("ste", "clamp_ste")],
        ("fake_quantize", "clipped_ste", "zero"),
        ("fake_quantize", "identity_if_towards", "inward"),
    ],
)
def test_names_of_the_field_are_translated(op: str, field_name: str, ours: str) -> None:
    others = (0.5,) if op == "fake_quantize" else ()
    with pytest.raises(ValueError, match=f"^{op}: rule must be one of") as caught:
        getattr(pg, op)(X, *others, rule=field_name)
    assert str(caught.value).endswith(f", got '{field_name}'. '{field_name}' is '{ours}' here.")


def test_a_zero_point_that_is_no_whole_number_is_rounded() -> None:
    """As a tensor of it is; the grid would hold no 0 otherwise."""
    x = torch.linspace(-3, 3, 25)
    for value in (0.5, 1.5, -0.75, 2.0):
        number = pg.fake_quantize(x, 0.25, value, -4, 3)
        assert torch.equal(number, pg.fake_quantize(x, 0.25, torch.tensor(value), -4, 3))
        assert torch.equal(number, pg.fake_quantize(x, 0.25, round(value), -4, 3))


@pytest.mark.parametrize("name", ["round", "floor", "ceil", "trunc", "scale_grad", "reverse_grad", "clip_grad"])
def test_forward_mode_is_there_where_the_rule_is_linear_in_grad(name: str) -> None:
    x, tangent = torch.tensor([0.25, -1.5]), torch.tensor([3.0, -0.125])
    if name == "clip_grad":
        with pytest.raises(NotImplementedError, match="the rule reads the incoming gradient"):
            torch.func.jvp(ONE_ARGUMENT[name], (x,), (tangent,))
        return
    factor = {"scale_grad": 0.5, "reverse_grad": -1.0}.get(name, 1.0)
    assert torch.equal(torch.func.jvp(ONE_ARGUMENT[name], (x,), (tangent,))[1], tangent * factor)


def test_a_scale_of_one_changes_no_grad() -> None:
    x = torch.tensor([0.25, -1.5], requires_grad=True)
    pg.scale_grad(x, 1.0).backward(torch.tensor([3.0, torch.inf]))
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, torch.inf]
