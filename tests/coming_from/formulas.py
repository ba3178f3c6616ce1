"""What other projects compute, as closed forms: value and gradients from x, the arriving g and the named arguments, in float64.

Written from the formulas, not from anybody's code, and without autograd and pseudograd. Each returns (y, {name: its gradient}).
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Result = tuple[Tensor, dict[str, Tensor]]
Truth = Callable[..., Result]


def _pass(g: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, g, torch.zeros_like(g))


def _between(x: Tensor, lo: Any, hi: Any) -> Tensor:
    y = torch.where(x < lo, torch.as_tensor(lo, dtype=x.dtype), x)
    return torch.where(y > hi, torch.as_tensor(hi, dtype=x.dtype), y)


# --- a clamp with two bounds ------------------------------------------------------------------------------------------


def within(mask: Callable[..., Tensor]) -> Truth:
    return lambda x, g, lo, hi: (_between(x, lo, hi), {"x": _pass(g, mask(x, g, lo, hi))})


towards = within(lambda x, g, lo, hi: ((x >= lo) | (g < 0)) & ((x <= hi) | (g > 0)))
whole = within(lambda x, g, lo, hi: x == x)
closed = within(lambda x, g, lo, hi: (x >= lo) & (x <= hi))
open_ = within(lambda x, g, lo, hi: (x > lo) & (x < hi))


def half(x: Tensor, g: Tensor, lo: float, hi: float) -> Result:
    at = (x == lo) | (x == hi)
    return _between(x, lo, hi), {"x": torch.where(at, g / 2, _pass(g, (x > lo) & (x < hi)))}


def half_and_the_bound(x: Tensor, g: Tensor, b: Tensor) -> Result:
    to_x = torch.where(x == b, g / 2, _pass(g, x > b))
    return torch.where(x > b, x, b), {"x": to_x, "b": (g - to_x).sum()}


def outside(grad: Callable[..., Tensor]) -> Truth:
    """grad(x, g, lo, hi, c): what x gets outside; c is what the code calls its factor or limit."""
    return lambda x, g, lo, hi, **c: (
        _between(x, lo, hi),
        {"x": torch.where((x < lo) | (x > hi), grad(x, g, lo, hi, *c.values()), g)},
    )


sign_outside = outside(lambda x, g, lo, hi: torch.where(x < lo, -1.0, 1.0).to(g.dtype))
leaky_outside = outside(lambda x, g, lo, hi, eps: eps * g)


def _decay(x: Tensor, g: Tensor, lo: float, hi: float, c: float) -> Tensor:
    share = torch.exp(-torch.where(x < lo, lo - x, x - hi))
    return g * torch.where(share < c, c, share)


exponential_outside = outside(_decay)


def inverting(x: Tensor, g: Tensor, lo: float, hi: float) -> Result:
    """g is an ascent direction, and the value passes as it is."""
    return x, {"x": g * torch.where(g > 0, hi - x, x - lo) / (hi - lo)}


def ppo(x: Tensor, g: Tensor, lo: float, hi: float, a: Tensor) -> Result:
    r = torch.exp(x)
    silent = ((a > 0) & (r > 1 + hi)) | ((a < 0) & (r < 1 - lo))
    value = torch.where(silent, torch.where(a > 0, 1 + hi, 1 - lo), r)
    return -a * value, {"x": torch.where(silent, 0.0, g * -a * r)}


def cispo(x: Tensor, g: Tensor, lo: float, hi: float, a: Tensor) -> Result:
    weight = torch.where(torch.exp(x) > 1 + hi, 1 + hi, torch.exp(x))
    return -a * weight, {"x": g * -a * weight}


def value_of_another(x: Tensor, g: Tensor, lo: float, hi: float, **_: Tensor) -> Result:
    """Value of something else (here x / 2), gradient of the closed clamp."""
    return x / 2, closed(x, g, lo, hi)[1]


def learned_open(x: Tensor, g: Tensor, lo: Tensor, hi: Tensor) -> Result:
    grads = {"x": _pass(g, (x > lo) & (x < hi)), "lo": _pass(g, x <= lo), "hi": _pass(g, x >= hi)}
    return _between(x, lo, hi), {name: v if name == "x" else v.sum() for name, v in grads.items()}


def per_channel(truth: Truth) -> Truth:
    """For each row of x, with its own numbers."""

    def rows(x: Tensor, g: Tensor, **names: Tensor) -> Result:
        results = [truth(x[c], g[c], **{name: value[c] for name, value in names.items()}) for c in range(len(x))]
        grads = {name: torch.stack([grads[name] for _, grads in results]) for name in results[0][1]}
        return torch.stack([y for y, _ in results]), grads

    return rows


# --- one bound --------------------------------------------------------------------------------------------------------


def lower(mask: str) -> Truth:
    masks = {"towards": lambda x, g, b: (x >= b) | (g < 0), "identity": lambda x, g, b: x == x}
    is_passed = masks.get(mask, lambda x, g, b: x >= b)
    return lambda x, g, b: (_between(x, b, math.inf), {"x": _pass(g, is_passed(x, g, b))})


LOWER = {mask: lower(mask) for mask in ("towards", "identity", "disconnected")}


def squared_above(x: Tensor, g: Tensor, b: float, pedestal: float) -> Result:
    y = _between(x, b, math.inf)
    arriving = 2 * y * g
    return y * y - pedestal, {"x": _pass(arriving, (x >= b) | (arriving < 0))}


def relu(grad: Callable[[Tensor, Tensor], Tensor], high: float = math.inf) -> Truth:
    return lambda x, g: (_between(x, 0.0, high), {"x": grad(x, g)})


redirected_relu = relu(lambda x, g: _pass(g, ~((x < 0) & (g > 0))))
redirected_relu6 = relu(lambda x, g: _pass(g, ~((x < 0) & (g > 0)) & ~((x > 6) & (g < 0))), 6.0)
leaky_relu_gradient = relu(lambda x, g: torch.where(x < 0, 0.1 * g, g))
whole_relu = relu(lambda x, g: g)
open_relu = relu(lambda x, g: _pass(g, x > 0))


# --- rounding ---------------------------------------------------------------------------------------------------------


def identity_of(forward: Callable[[Tensor], Tensor]) -> Truth:
    """Any forward, with the whole gradient."""
    return lambda x, g, **_: (forward(x), {"x": g})


def _even(x: Tensor) -> Tensor:
    below = torch.floor(x)
    rest = x - below
    odd = torch.remainder(below, 2) == 1
    return torch.where((rest > 0.5) | ((rest == 0.5) & odd), below + 1, below)


ROUND = identity_of(_even)
FLOOR = identity_of(lambda x: torch.div(x, 1, rounding_mode="floor"))
CEIL = identity_of(lambda x: -torch.div(-x, 1, rounding_mode="floor"))
TRUNC = identity_of(lambda x: torch.div(x, 1, rounding_mode="trunc"))
EVEN_NUMBERS = identity_of(lambda x: 2 * _even(x / 2))
MAX_IS_ONE = identity_of(lambda x: torch.zeros_like(x).scatter(0, x.argmax(0, keepdim=True), 1.0))


def round_with_offset(x: Tensor, g: Tensor, offset: Tensor) -> Result:
    return _even(x - offset) + offset, {"x": g, "offset": torch.zeros_like(offset)}


def dorefa(x: Tensor, g: Tensor, n: int) -> Result:
    return _even(_between(x, 0.0, 1.0) * n) / n, {"x": _pass(g, (x >= 0) & (x <= 1))}


def quest(x: Tensor, g: Tensor, s: float, t: float) -> Result:
    """Eight levels; the gradient where the error, that of the clip too, is at most t steps."""
    y = _even(_between(x / s, -3.0, 4.0)) * s
    return y, {"x": _pass(g, (y - x).abs() <= t * s)}


def stable_qat(x: Tensor, g: Tensor, s: float, a: float) -> Result:
    """By their formula: of x and of what it is rounded to."""
    code = _even(x / s)
    wave = 1 + a * math.sqrt(2) * math.pi * torch.cos(math.pi * (x / s + code))
    return _even(_between(x / s, -4.0, 3.0)) * s, {"x": _pass(g * (2 / wave - 1), (x / s >= -4) & (x / s <= 3))}


# --- steps: g times a slope -------------------------------------------------------------------------------------------


def _sign(x: Tensor, at_zero: float) -> Tensor:
    return torch.where(x > 0, 1.0, torch.where(x < 0, -1.0, at_zero)).to(x.dtype)


def _spike(x: Tensor, at_zero: float) -> Tensor:
    return torch.where(x > 0, 1.0, torch.where(x < 0, 0.0, at_zero)).to(x.dtype)


def step(slope: Callable[..., Tensor], forward: Callable[[Tensor, float], Tensor], at_zero: float) -> Truth:
    return lambda x, g, **names: (forward(x, at_zero), {"x": g * slope(x, **names).to(g.dtype)})


def _logistic_slope(x: Tensor, k: float) -> Tensor:
    """k / (2 + e^kx + e^-kx): the derivative of the logistic function, another way to write it."""
    return k / (2 + torch.exp(k * x) + torch.exp(-k * x))


SNN = {  # spike = (x > 0)
    "identity": step(lambda x: torch.ones_like(x), _spike, 0.0),
    "triangular": step(lambda x, threshold: threshold * torch.where(x < 0, 1.0, -1.0), _spike, 0.0),
    "fast_sigmoid": step(lambda x, k: 1 / (1 + k * x.abs()) ** 2, _spike, 0.0),
    "atan": step(lambda x, a: (a / 2) / (1 + (math.pi * a * x / 2) ** 2), _spike, 0.0),
    "heaviside": step(lambda x: torch.where(x > 0, 1.0, 0.0), _spike, 0.0),
    "sigmoid": step(_logistic_slope, _spike, 0.0),
    "escape": step(lambda x, k, b: k * torch.exp(-b * (x - 1).abs()), _spike, 0.0),
    "leaky": step(lambda x, leak: torch.where(x > 0, 1.0, leak), _spike, 0.0),
}


def _in_the_rectangle(x: Tensor, threshold: Tensor, bandwidth: float) -> Tensor:
    return (((x - threshold) / bandwidth).abs() < 0.5) / bandwidth


def jump(to_x: bool) -> Truth:
    def truth(x: Tensor, g: Tensor, threshold: Tensor, bandwidth: float) -> Result:
        part = g * threshold * _in_the_rectangle(x, threshold, bandwidth)
        passed = _pass(g, x > threshold)
        return torch.where(x > threshold, x, 0.0), {"x": passed + part if to_x else passed, "threshold": -part.sum()}

    return truth


def jump_without_a_window(x: Tensor, g: Tensor, threshold: Tensor, bandwidth: float) -> Result:
    y, grads = jump(False)(x, g, threshold, bandwidth)
    return y, {"x": grads["x"], "threshold": torch.zeros_like(threshold)}


def is_above(to_x: bool) -> Truth:
    def truth(x: Tensor, g: Tensor, threshold: Tensor, bandwidth: float) -> Result:
        part = g * _in_the_rectangle(x, threshold, bandwidth)
        return (x > threshold).to(x.dtype), {"x": part if to_x else part * 0, "threshold": -part.sum()}

    return truth


JELLY = {  # spike = (x >= 0)
    "sigmoid": step(lambda x, a: _logistic_slope(x, a), _spike, 1.0),
    "atan": step(lambda x, a: (a / 2) / (1 + (math.pi / 2 * a * x) ** 2), _spike, 1.0),
    "quadratic": step(lambda x, a: torch.where(x.abs() <= 1 / a, a - a * a * x.abs(), 0.0), _spike, 1.0),
    "exponential": step(lambda x, a: a / 2 * torch.exp(-a * x.abs()), _spike, 1.0),
    "erf": step(lambda x, a: a / math.sqrt(math.pi) * torch.exp(-((a * x) ** 2)), _spike, 1.0),
    "softsign": step(lambda x, a: 1 / (2 * a * (1 / a + x.abs()) ** 2), _spike, 1.0),
    "superspike": step(lambda x, a: a / (1 + x.abs()) ** 2, _spike, 1.0),
    "rect": step(lambda x, a: torch.where(x.abs() < 0.5 / a, a, 0.0), _spike, 1.0),
}

LARQ = {
    "ste_sign": step(lambda x, c: torch.where(x.abs() <= c, 1.0, 0.0), _sign, 1.0),
    "sign_identity": step(lambda x: torch.ones_like(x), _sign, 1.0),
    "ternary_identity": step(lambda x: torch.ones_like(x), _sign, 0.0),
    "ste_heaviside": step(lambda x, c: torch.where(x.abs() <= c, 1.0, 0.0), _spike, 0.0),
    "approx_sign": step(lambda x: torch.where(x.abs() <= 1, 2 * (1 - x.abs()), 0.0), _sign, 1.0),
    "swish_sign": step(lambda x, b: b * (2 - b * x * torch.tanh(b * x / 2)) / (1 + torch.cosh(b * x)), _sign, 1.0),
}


def ste_tern(x: Tensor, g: Tensor, t: float, c: float) -> Result:
    return _sign(x, 0.0) * (x.abs() > t), {"x": _pass(g, x.abs() <= c)}


# --- quantisers: g inside the grid, learnable scale and zero point ----------------------------------------------------


def affine(x: Tensor, g: Tensor, s: Any, z: Any, **_: Any) -> Result:
    """Grid of codes -4 to 3. With offset = -z: AIMET's."""
    code = _even(x / s) + z
    inside = (code >= -4) & (code <= 3)
    kept = _between(code, -4.0, 3.0)
    to_s = g * (kept - z - torch.where(inside, x / s, 0.0))
    to_z = torch.where(inside, 0.0, -g * s)
    return (kept - z) * s, {"x": _pass(g, inside), "s": to_s.sum(), "z": to_z.sum()}


affine_per_channel = per_channel(affine)


def affine_with_offset(x: Tensor, g: Tensor, s: Tensor, offset: Tensor) -> Result:
    y, grads = affine(x, g, s, -offset)
    return y, {"x": grads["x"], "s": grads["s"], "offset": -grads["z"]}


def affine_scaled_gradient(x: Tensor, g: Tensor, s: Tensor, z: Tensor, factor: float) -> Result:
    y, grads = affine(x, g, s, z)
    return y, {"x": grads["x"], "s": grads["s"] * factor, "z": grads["z"] * factor}


def grid_code(x: Tensor, g: Tensor, s: float, z: float) -> Result:
    code = _even(x / s) + z
    return _between(code, -4.0, 3.0), {"x": _pass(g / s, (code >= -4) & (code <= 3))}


def lsq(x: Tensor, g: Tensor, s: Tensor) -> Result:
    """Learned step size: the position x / s is clipped before it is rounded, and both ends count as outside."""
    position = x / s
    inside = (position > -4) & (position < 3)
    to_s = torch.where(inside, _even(position) - position, _between(position, -4.0, 3.0))
    return _even(_between(position, -4.0, 3.0)) * s, {"x": _pass(g, inside), "s": (g * to_s).sum()}


# --- value of one, gradient of another --------------------------------------------------------------------------------


def stopped_below(x: Tensor, g: Tensor, stop: float) -> Result:
    return x, {"x": _pass(g, x >= stop)}


def gradient_to(x: Tensor, g: Tensor, hard: Tensor) -> Result:
    return hard, {"x": g}


def gradient_clipped_to(x: Tensor, g: Tensor, hard: Tensor) -> Result:
    return hard, {"x": _between(g, -1.0, 1.0)}


def softmax_gradient(x: Tensor, g: Tensor, one_hot: Tensor) -> Result:
    e = torch.exp(x - x.max())
    soft = e / e.sum()
    return one_hot, {"x": soft * (g - (g * soft).sum())}


def expected_under_noise(x: Tensor, g: Tensor, u: float, f: Callable[[Tensor], Tensor]) -> Result:
    return f(x + u), {"x": g * (f(x + 0.5) - f(x - 0.5))}


def multiplied(x: Tensor, g: Tensor, s: float) -> Result:
    return x, {"x": s * g}


def reversed_(x: Tensor, g: Tensor, s: float) -> Result:
    return x, {"x": -s * g}


def _nearest(x: Tensor, codebook: Tensor) -> Tensor:
    return torch.stack([codebook[((codebook - vector) ** 2).sum(-1).argmin()] for vector in x])


def nearest_code(x: Tensor, g: Tensor, codebook: Tensor) -> Result:
    return _nearest(x, codebook), {"x": g}


def rotated_to_nearest_code(x: Tensor, g: Tensor, codebook: Tensor) -> Result:
    """|q| / |x| R^T g for each vector, R being the rotation in the plane of both that turns x towards its code q."""
    q = _nearest(x, codebook)
    rows = []
    for vector, code, arriving in zip(x, q, g, strict=True):
        u, v = vector / vector.norm(), code / code.norm()
        r = (u + v) / (u + v).norm()
        rotation = torch.eye(len(vector), dtype=x.dtype) - 2 * torch.outer(r, r) + 2 * torch.outer(v, u)
        rows.append(code.norm() / vector.norm() * (rotation.T @ arriving))
    return q, {"x": torch.stack(rows)}
