"""Steps: sign and heaviside, with the surrogate gradients of the literature. The true gradient is 0 wherever it exists.

A surrogate is the slope of a smooth step at x. `scale` is its width in the unit of x, `height` a factor; u = x / scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import engine
from ..arguments import check_finite_number, check_tensor, is_compiling, rounded
from ..geometry import Curve, Formula, Interval, Shape, Steps
from ..record import Record
from ..reference import elementwise as reference
from ..rule import Gradients, Op, Picture, Pull, Rule, RuleLike, Wants, register
from ..torch_table.private import transforms_are_active
from .samples import around, matrix
from .shared_rules import ADAPTER, pull_identity, pull_zero, row_of, steps_at, widened

__all__ = ["heaviside", "sign"]

# --- slopes: each a function of x -----------------------------------------------------------------------------------
# Constants are literals: a compiler may make an input of the graph of a float that it finds anywhere else.


def _window(x: Tensor, scale: float, height: float) -> Tensor:
    return torch.where(x.abs() <= rounded(scale, x), torch.full_like(x, height), 0.0)  # two numbers would make float32


def _triangle(u: Tensor, scale: float, height: float) -> Tensor:
    return torch.where(u < 1, (1 - u) * height, 0.0)


def _arctan(u: Tensor, scale: float, height: float) -> Tensor:
    turn = u * 3.141592653589793
    return (turn * turn + 1).reciprocal() * (height / scale)


def _sigmoid(u: Tensor, scale: float, height: float) -> Tensor:
    """exp(-|u|) / (1 + exp(-|u|))^2: even, and nothing in it overflows."""
    e = torch.exp(-u)
    root = (e + 1).reciprocal()
    return e * (root * root) * (height / scale)


def _fast_sigmoid(u: Tensor, scale: float, height: float) -> Tensor:
    root = (u + 1).reciprocal()
    return root * root * height


def _gaussian(u: Tensor, scale: float, height: float) -> Tensor:
    return torch.exp(u * u * -0.5) * (height / (scale * 2.5066282746310002))  # sqrt(2 pi)


SlopeOf = Callable[[Tensor, float, float], Tensor]  # (x, scale, height)


def _slope_by_width(shape: SlopeOf) -> SlopeOf:
    """Make a slope as a function of x from a shape, a function of u = |x| / scale. It is 0 where x is NaN, infinite, or so far away that
    squares overflow. `where` stands before the arithmetic, so that a second derivative never meets an infinity.
    """

    def slope(x: Tensor, scale: float, height: float) -> Tensor:
        u = (x / scale).abs()
        is_near = u < math.sqrt(torch.finfo(u.dtype).max) / 8
        return torch.where(is_near, shape(torch.where(is_near, u, 0), scale, height), 0.0)

    return slope


class Surrogate(Record):
    """The slope of a smooth step.

    unit_area(bandwidth): the scale and height with which the slope has the area 1, as `jumprelu` needs it.
    peak(scale, height): the slope at 0, which is the height of a `Curve`.
    """

    slope: SlopeOf
    shape: Shape  # the name of its `Curve`
    unit_area: Callable[[float], tuple[float, float]] = lambda bandwidth: (bandwidth, 1.0)
    peak: Callable[[float, float], float] = lambda scale, height: height

    def curve(self, scale: float, height: float) -> Curve:
        return Curve(self.shape, scale, self.peak(scale, height))


SLOPES = {
    "window": Surrogate(_window, "box", lambda bandwidth: (bandwidth / 2, 1 / bandwidth)),
    "triangle": Surrogate(_slope_by_width(_triangle), "tent", lambda bandwidth: (bandwidth, 1 / bandwidth)),
    "arctan": Surrogate(_slope_by_width(_arctan), "witch", peak=lambda scale, height: height / scale),
    "sigmoid": Surrogate(_slope_by_width(_sigmoid), "bump", peak=lambda scale, height: 0.25 * height / scale),
    "fast_sigmoid": Surrogate(_slope_by_width(_fast_sigmoid), "cusp", lambda bandwidth: (bandwidth, 0.5 / bandwidth)),
    "gaussian": Surrogate(
        _slope_by_width(_gaussian), "normal", peak=lambda scale, height: height / (scale * math.sqrt(2 * math.pi))
    ),
}


# --- the rules --------------------------------------------------------------------------------------------------------


def _pull_surrogate(
    slope_of: SlopeOf, grad: Tensor, x: Tensor, at_zero: None, *, wants: Wants, scale: float, height: float
) -> Gradients:
    """grad * slope, and 0 where the slope is 0, whatever grad is."""
    slope = slope_of(widened(x), scale, height)
    return torch.where(slope == 0, 0.0, widened(grad)) * slope, None


def _pull_window(grad: Tensor, x: Tensor, at_zero: None, *, wants: Wants, scale: float, height: float) -> Gradients:
    """`_pull_surrogate` of the window in fewer steps, which a compiler does not need."""
    grad, wide = widened(grad), widened(x)
    if is_compiling() or rounded(height, wide) == 0:
        return _pull_surrogate(_window, grad, x, at_zero, wants=wants, scale=scale, height=height)
    return torch.where(wide.abs() <= rounded(scale, wide), grad if height == 1 else grad * height, 0.0), None


def _pull_custom(
    grad: Tensor, x: Tensor, at_zero: None, *, wants: Wants, settings: Mapping[str, Callable[[Tensor], Tensor]]
) -> Gradients:
    slope, grad = settings["slope"](widened(x)), widened(grad)
    # A finite grad is not replaced, because the slope may cross 0 there and has a derivative.
    return torch.where((slope == 0) & ~grad.isfinite(), 0.0, grad) * slope, None


def _steps_of_window(at_zero: float, scale: float, height: float) -> Steps:
    return steps_at((0.0, height), Interval(-scale, scale, has_low=True, has_high=True))


def _formula_of(name: str, at_zero: None, **parameters: float) -> Formula:
    return Formula("surrogate", curve=SLOPES[name].curve(**parameters))


RULES: dict[str, Rule] = {}


def _rule(name: str, pull: Pull | None = None, **row: Any) -> None:
    """pull: None for the surrogate of this name."""
    if pull is None:
        pull = _pull_window if name == "window" else partial(_pull_surrogate, SLOPES[name].slope)
        parameters = {"scale": 1.0, "height": 1.0}
        row = {"parameters": parameters, "curve": SLOPES[name].curve, "is_long": True, **row}
    RULES[name] = row_of(name, pull, partial(reference.step, name), **{"keeps": ("x",), **row})


_rule(
    "window",
    colour="#332288",
    formula="height * grad where |x| <= scale, else 0",
    source="binarized neural networks (Hubara et al., 2016)",
    also_called="clipped straight-through, larq SteSign, rectangular surrogate",
    translates="clipped_ste ste_sign rectangular rect boxcar hardtanh",
    jumps=lambda scale, **_: (-scale, scale),
    steps=_steps_of_window,
    is_long=False,  # a call with many elements keeps bits, for which there are kernels
)
_rule(
    "triangle",
    colour="#44AA99",
    formula="grad * height * max(0, 1 - |u|)",
    source="Esser et al. (2016); Bellec et al. (2018), where height is the dampening factor",
    also_called="piecewise quadratic, approx-sign with height=2",
    translates="triangular piecewise_quadratic approx_sign",
)
_rule(
    "arctan",
    colour="#882255",
    formula="grad * height / scale / (1 + (pi * u)^2)",
    source="Fang et al. (2021), with scale = 2 / alpha",
    also_called="ATan",
    translates="atan",
)
_rule(
    "sigmoid",
    colour="#117733",
    formula="grad * height / scale * e / (1 + e)^2 with e = exp(-|u|)",
    source="the derivative of the logistic function; Zenke & Ganguli (2018), with scale = 1 / beta",
    also_called="logistic, sigmoid'",
    translates="logistic",
    ulps=8,
    find_formula=partial(_formula_of, "sigmoid"),
)
_rule(
    "fast_sigmoid",
    colour="#AA4499",
    formula="grad * height / (1 + |u|)^2",
    source="SuperSpike (Zenke & Ganguli, 2018), with scale = 1 / beta",
    also_called="SuperSpike",
    translates="superspike super_spike softsign",
)
_rule(
    "gaussian",
    colour="#6699CC",
    formula="grad * height / (scale * sqrt(2 * pi)) * exp(-u^2 / 2)",
    source="Yin, Corradi & Bohté (2020)",
    also_called="erf",
    translates="erf normal",
    ulps=8,
    find_formula=partial(_formula_of, "gaussian"),
)
_rule(
    "custom",
    _pull_custom,
    colour="#2F2F2F",
    formula="grad * slope(x), slope being your function",
    source="the caller",
    parameters={"slope": None},
    is_from_user=True,
    ulps=64,
)
_rule(
    "identity",
    pull_identity,
    keeps=(),
    formula="grad",
    source="straight-through estimator (Bengio, Léonard & Courville, 2013)",
    also_called="straight-through",
    translates="ste straight_through",
)
_rule("zero", pull_zero, keeps=(), formula="0", source="the true gradient; torch.sign", translates="true native none")


@engine.unscriptable
def sign(x: Tensor, *, at_zero: float = 0.0, rule: RuleLike = "window") -> Tensor:
    """-1 below 0 and 1 above; the gradient passes near 0.

    Forward:  y = torch.sign(x), bit for bit; `at_zero` where x is 0, so that at_zero=1 makes it binary.
    Backward: grad_x = grad * slope(x), the slope of a smooth step: a pseudo-gradient. The default "window" gives grad where |x| <= 1,
        else 0. A NaN or infinite x gets 0, except with "identity". "window" saves a bit of each element where x is dense and has
        4096 of them or more; "identity" and "zero" save nothing; otherwise x is saved. Linear in grad.

    Args:
        x: any shape, floating point; an integer x gets no gradient.
        at_zero: y where x is 0 or -0; a finite number.
        rule: a name or a rule object such as rules.arctan(scale=0.5); `pseudograd rules sign` lists them. rules.custom(slope) takes
            your own slope function.
    Returns: shape, dtype and device of x.
    Raises: TypeError if x is no real tensor or at_zero no number; ValueError if at_zero is not finite or the rule is unknown.
    Example:
        >>> x = torch.tensor([-2.0, 0.0, 0.5], requires_grad=True)
        >>> y = sign(x, at_zero=1); y.sum().backward(); y.tolist(), x.grad
        ([-1.0, 1.0, 1.0], tensor([0., 1., 1.]))
    Source: binarized neural networks (Hubara et al., 2016); each rule names its own.
    """
    return _step(SIGN, x, at_zero, rule)


@engine.unscriptable
def heaviside(x: Tensor, *, at_zero: float = 1.0, rule: RuleLike = "window") -> Tensor:
    """0 below 0 and 1 above; the gradient passes near 0. A spike is heaviside(potential - threshold).

    Forward:  y = torch.heaviside(x, at_zero), bit for bit.
    Backward: as `sign`, with the same slopes: a pseudo-gradient. Saves as `sign`. Linear in grad.

    Args:
        x: any shape, floating point; an integer x gets no gradient.
        at_zero: y where x is 0 or -0; a finite number.
        rule: as in `sign`.
    Returns: shape, dtype and device of x.
    Raises: as `sign`.
    Example:
        >>> x = torch.tensor([-2.0, 0.0, 0.5], requires_grad=True)
        >>> y = heaviside(x, rule="triangle"); y.sum().backward(); y.tolist(), x.grad
        ([0.0, 1.0, 1.0], tensor([0.0000, 1.0000, 0.5000]))
    Source: surrogate gradients (Neftci, Mostafa & Zenke, 2019); each rule names its own.
    """
    return _step(HEAVISIDE, x, at_zero, rule)


def _step(op: Op, x: Tensor, at_zero: float, rule: RuleLike) -> Tensor:
    if type(at_zero) is not float or at_zero - at_zero != 0:  # no finite float
        at_zero = check_finite_number(op.name, "at_zero", at_zero)
    return engine.run_op(op, check_tensor, x, rule, None, at_zero)


def _sign_forward(x: Tensor, at_zero: float) -> Tensor:
    return torch.sign(x) if at_zero == 0 else torch.where(x == 0, at_zero, torch.sign(x)).to(x.dtype)


def _heaviside_forward(x: Tensor, at_zero: float) -> Tensor:
    is_plain = not is_compiling() and type(x) is Tensor and x.layout is torch.strided and x.is_floating_point()
    if is_plain and at_zero in (0, 1) and not transforms_are_active():
        return x.clone().gt_(0) if at_zero == 0 else x.clone().ge_(0)  # in a tenth of the time of torch.heaviside
    return torch.heaviside(x, torch.full((), at_zero, dtype=x.dtype, device=x.device))


def _op(
    forward: Callable[..., Tensor], plain_torch: Callable[..., Tensor], public: Callable[..., Tensor], at_zero: float
) -> Op:
    op = Op(
        name=public.__name__,
        rule_set="step",
        forward=forward,
        plain_torch=plain_torch,
        inputs=("x", "at_zero"),
        rules=RULES,
        default_rule="window",
        adapter=ADAPTER,
        public=lambda x, at_zero, **how: public(x, at_zero=at_zero, **how),
        # Around the ends of every default width, with each meaning of 0.
        samples=(
            around("around 0", 0.0, -1.0, 1.0, 0.375, others=(1.0,)),
            matrix(2, (3, 5), (0.0,)).replaced(name="0 at 0"),
        ),
        picture=Picture(others=(at_zero,), jumps=(0.0,)),
    )
    return register(op)


SIGN = _op(_sign_forward, lambda x, at_zero: torch.sign(x) + at_zero * (x == 0).to(x.dtype), sign, 0.0)
HEAVISIDE = _op(_heaviside_forward, lambda x, at_zero: torch.heaviside(x, x.new_full((), at_zero)), heaviside, 1.0)
