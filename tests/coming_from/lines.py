"""The lines of docs/coming_from.md: what a project writes, what to write instead, what differs, and the formula that must come out.

`page.py` writes the page from this table and `test_formulas.py` runs every `after` as it stands here, so no line is without a test.
The file is long because it is data: one record for each line of the page.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from . import formulas as of
from .formulas import JELLY, LARQ, LOWER, SNN, UPPER, Truth


@dataclass(frozen=True)
class Line:
    """`names` are what `before` and `after` use besides x; a list stands for a tensor that learns. `points` are added to their values."""

    before: str
    after: str
    differs: str
    truth: Truth
    names: dict[str, Any] = field(default_factory=dict)
    points: tuple[float, ...] = ()
    is_exact: bool = True
    channels: int = 0
    subtracts: bool = False  # a difference of numbers as large as grad, so rounded as they are


def _smooth(x: Tensor) -> Tensor:
    return x * x * x


def _one_hot(x: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(x.argmax(-1), x.shape[-1]).to(x.dtype)


def _to_even_numbers(x: Tensor) -> Tensor:
    return torch.round(x / 2) * 2


BOUNDS = {"lo": -0.5, "hi": 0.75}
LEARNED = {"lo": [-0.5], "hi": [0.75]}
BOUND = {"b": 0.25}
GRID = {"s": [0.25], "z": [1.0]}
GRID_ENDS = (-1.25, 0.5, -1.375, 0.625)  # where the code meets -4 and 3, and where it leaves them
JUMP = {"threshold": [0.5], "bandwidth": 0.5}
RECTANGLE = "pg.rules.window(scale=bandwidth / 2, height=1 / bandwidth)"
HARD = {"hard": lambda x: torch.sign(x.detach())}
CODES = {"codebook": lambda x: torch.cos(torch.arange(1.0, 4.0)[:, None] * torch.arange(x.shape[-1])).to(x.dtype)}
ONE_HOT = {"one_hot": lambda x: _one_hot(x.detach())}

ADVANTAGE = {"lo": 0.25, "hi": 0.5, "a": lambda x: torch.where(torch.arange(x.numel()) % 2 > 0, -1.5, 0.5).to(x.dtype)}

SAME = "Nothing."
EXACT = "The value: theirs is rounded by the detach trick, ours is exact."
TO_BOUNDS = (
    "Tensor bounds that require grad get the gradient of what they replaced; detach them to keep theirs, which is none."
)
EDGES_OF_THE_WINDOW = "Exactly at an edge of the window ours is inside, theirs outside."
ONCE = "Nothing. Make the rule once, not in a loop."

LINES: dict[str, tuple[Line, ...]] = {
    "VQGAN+CLIP scripts, pixray, pytti": (
        Line(
            "clamp_with_grad(x, lo, hi)",
            "pg.familiar.clamp_with_grad(x, lo, hi)",
            "Signs are compared instead of multiplied: nothing leaks by underflow, an infinite grad stays infinite inside, and "
            "x = hi = inf passes. A NaN x gets grad, theirs 0. One bound may be a tensor and the other a number.",
            of.towards,
            BOUNDS,
        ),
        Line(
            "ClampWithGrad.apply(x, lo, hi)",
            "pg.familiar.ClampWithGrad.apply(x, lo, hi)",
            "As above.",
            of.towards,
            BOUNDS,
        ),
        Line(
            "clamp_grad(x, lo, hi)",
            'pg.clamp(x, lo, hi, rule="identity")',
            SAME,
            of.whole,
            BOUNDS,
        ),
        Line(
            "clamp_with_grad = torch.clamp",
            'pg.clamp(x, lo, hi, rule="zero")',
            "The edge is closed on every torch; from 2.14 on theirs is open.",
            of.closed,
            BOUNDS,
        ),
        Line(
            "replace_grad(hard, x)",
            "pg.replace_grad(hard, x)",
            "Shapes and integers that cannot work are errors in the forward call; theirs fail in backward or give no gradient.",
            of.gradient_to,
            HARD,
        ),
        Line(
            "replace_grad(x, torch.maximum(x, stop))",
            'pg.replace_grad(x, pg.lower_bound(x, stop, rule="zero"))',
            'At x == stop grad passes; torch.maximum gives half of it, as does edge="half".',
            of.stopped_below,
            {"stop": 0.25},
        ),
        Line(
            "replace_grad(x, x * mask)",
            "pg.replace_grad(x, x * mask)",
            SAME,
            of.masked,
            {"mask": lambda x: (torch.arange(x.numel()).reshape(x.shape) % 2).to(x.dtype)},
        ),
        Line(
            "replace_grad(hard, 0.5 * x + 0.5 * hard)",
            "pg.replace_grad(hard, 0.5 * x + 0.5 * hard)",
            SAME,
            of.blended,
            HARD,
        ),
    ),
    "joehalliwell's blog": (
        Line(
            "ClampWithGradProposed.apply(x, lo, hi)",
            "pg.familiar.ClampWithGradProposed.apply(x, lo, hi)",
            'The names of the post work, ClampWithGrad2 too; the rule is called "sign".',
            of.sign_outside,
            BOUNDS,
        ),
    ),
    "tensorflow-compression": (
        Line(
            "lower_bound(x, b)",
            "pg.lower_bound(x, b)",
            "A tensor bound that requires grad learns.",
            LOWER["towards"],
            BOUND,
        ),
        Line(
            'lower_bound(x, b, gradient="identity")',
            'pg.lower_bound(x, b, rule="identity")',
            "As above.",
            LOWER["identity"],
            BOUND,
        ),
        Line(
            'lower_bound(x, b, gradient="disconnected")',
            'pg.lower_bound(x, b, rule="zero")',
            "As above.",
            LOWER["disconnected"],
            BOUND,
        ),
        Line("upper_bound(x, b)", "pg.upper_bound(x, b)", "As above.", UPPER["towards"], BOUND),
        Line(
            'upper_bound(x, b, gradient="identity")',
            'pg.upper_bound(x, b, rule="identity")',
            "As above.",
            UPPER["identity"],
            BOUND,
        ),
        Line(
            'upper_bound(x, b, gradient="disconnected")',
            'pg.upper_bound(x, b, rule="zero")',
            "As above.",
            UPPER["disconnected"],
            BOUND,
        ),
        Line("round_st(x)", "pg.round(x)", SAME, of.ROUND, {}, (0.5, 1.5, 2.5)),
        Line(
            "round_st(x, offset)",
            "pg.round(x - offset) + offset",
            "The offset gets a gradient of exactly 0 where theirs gets None.",
            of.round_with_offset,
            {"offset": [0.25]},
            (0.75, 1.75),
        ),
        Line(
            "perturb_and_apply(f, x, u=u, expected_grads=True)",
            "pg.replace_grad(f(x + u), x * (f(x + 0.5) - f(x - 0.5)).detach())",
            "You draw the noise u yourself.",
            of.expected_under_noise,
            {"u": 0.125, "f": lambda x: _smooth},
            is_exact=False,
        ),
        Line(
            "GDNParameter()(x)",
            "pg.lower_bound(x, b) ** 2 - pedestal",
            "A function of the stored variable; b is sqrt(minimum + pedestal).",
            of.squared_above,
            {"b": 0.25, "pedestal": 0.0625},
            is_exact=False,
        ),
    ),
    "CompressAI": (
        Line(
            "LowerBound(b)(x)",
            "pg.lower_bound(x, b)",
            "The dtype of x stays (theirs promotes half precision to float32) and so does a 0-d shape.",
            LOWER["towards"],
            BOUND,
        ),
        Line(
            "quantize_ste(x)",
            "pg.round(x)",
            "An infinite x stays infinite; theirs gives NaN.",
            of.ROUND,
            {},
            (0.5, 1.5),
        ),
        Line(
            "NonNegativeParametrizer()(x)",
            "pg.lower_bound(x, b) ** 2 - pedestal",
            SAME,
            of.squared_above,
            {"b": 0.25, "pedestal": 0.0625},
            is_exact=False,
        ),
    ),
    "NeuralCompression": (
        Line(
            'lower_bound(x, b, "identity_if_towards")',
            "pg.lower_bound(x, b)",
            "A number is a bound, too; theirs takes tensors only.",
            LOWER["towards"],
            BOUND,
        ),
        Line(
            'lower_bound(x, b, "disconnected")',
            'pg.lower_bound(x, b, rule="zero")',
            "The gradient: theirs returns x itself as the gradient. Here is the formula it means.",
            LOWER["disconnected"],
            BOUND,
        ),
    ),
    "brevitas": (
        Line("scalar_clamp_ste_impl(x, lo, hi)", 'pg.clamp(x, lo, hi, rule="identity")', SAME, of.whole, BOUNDS),
        Line(
            "scalar_clamp_min_ste_impl(x, b)", 'pg.lower_bound(x, b, rule="identity")', SAME, LOWER["identity"], BOUND
        ),
        Line(
            "tensor_clamp_ste_impl(x, lo, hi)",
            'pg.clamp(x, lo.detach(), hi.detach(), rule="identity")',
            TO_BOUNDS + " Where lo exceeds hi the value is hi, as in torch; theirs is lo.",
            of.whole,
            {key: torch.tensor(value) for key, value in BOUNDS.items()},
        ),
        Line(
            "tensor_clamp_ste_impl_(x * 1, lo, hi)",
            'pg.clamp_(x * 1, lo, hi, rule="identity")',
            "On a leaf that requires grad torch's error; theirs changes the leaf.",
            of.whole,
            BOUNDS,
        ),
        Line("round_ste_impl(x)", "pg.round(x)", SAME, of.ROUND, {}, (0.5, 1.5)),
        Line("floor_ste_impl(x)", "pg.floor(x)", SAME, of.FLOOR, {}, (1.0, 2.0)),
        Line("ceil_ste_impl(x)", "pg.ceil(x)", SAME, of.CEIL, {}, (1.0, 2.0)),
        Line("round_to_zero_ste_impl(x)", "pg.trunc(x)", SAME, of.TRUNC, {}, (1.0, -1.0)),
        Line(
            "dpu_round_ste_impl(x)",
            "pg.straight_through(hard)(x)",
            "Any function that we do not have: `hard` is yours.",
            of.EVEN_NUMBERS,
            {"hard": lambda x: _to_even_numbers},
            (0.5, 1.5),
        ),
        Line(
            "binary_sign_ste_impl(x)",
            'pg.sign(x, at_zero=1, rule="identity")',
            SAME,
            LARQ["sign_identity"],
        ),
        Line("ternary_sign_ste_impl(x)", 'pg.sign(x, rule="identity")', SAME, LARQ["ternary_identity"]),
        Line(
            "abs_binary_sign_grad(x)",
            "pg.abs(x, edge=1)",
            "Saves x; theirs saves one byte an element.",
            lambda x, g: (torch.where(x < 0, -x, x), {"x": torch.where(x >= 0, g, -g)}),
        ),
    ),
    "snnTorch": (
        Line(
            "straight_through_estimator()(x)",
            'pg.heaviside(x, at_zero=0, rule="identity")',
            "Spikes keep the dtype of x, here and below.",
            SNN["identity"],
        ),
        Line(
            "fast_sigmoid(slope=k)(x)",
            "pg.heaviside(x, at_zero=0, rule=pg.rules.fast_sigmoid(scale=1 / k))",
            SAME,
            SNN["fast_sigmoid"],
            {"k": 25.0},
            is_exact=False,
        ),
        Line(
            "atan(alpha=a)(x)",
            "pg.heaviside(x, at_zero=0, rule=pg.rules.arctan(scale=2 / a))",
            "Nothing; their docstring has a factor 1/pi that their code has not.",
            SNN["atan"],
            {"a": 2.0},
            is_exact=False,
        ),
        Line(
            "sigmoid(slope=k)(x)",
            "pg.heaviside(x, at_zero=0, rule=pg.rules.sigmoid(scale=1 / k))",
            "No NaN: theirs is NaN for x <= -3.5 at the default slope 25.",
            SNN["sigmoid"],
            {"k": 4.0},
            is_exact=False,
        ),
        Line(
            "triangular(threshold=threshold)(x)",
            "pg.heaviside(x, at_zero=0, rule=pg.rules.custom(lambda x: torch.where(x < 0, threshold, -threshold)))",
            'Nothing: it is no triangle, and negative above 0. rule="triangle" is the triangle.',
            SNN["triangular"],
            {"threshold": 0.5},
        ),
        Line(
            "Heaviside()(x)",
            "pg.heaviside(x, at_zero=0, rule=pg.rules.custom(lambda x: (x > 0).to(x.dtype)))",
            ONCE,
            SNN["heaviside"],
        ),
        Line(
            "SpikeRateEscape(beta=b, slope=k)(x)",
            "pg.heaviside(x, at_zero=0, rule=pg.rules.custom(lambda x: k * torch.exp(-b * (x - 1).abs())))",
            ONCE,
            SNN["escape"],
            {"k": 25.0, "b": 1.0},
            is_exact=False,
        ),
        Line(
            "LSO(slope=leak)(x)",
            "pg.heaviside(x, at_zero=0, rule=pg.rules.custom(lambda x: torch.where(x > 0, 1.0, leak)))",
            "It runs: theirs raises a TypeError in the version read.",
            SNN["leaky"],
            {"leak": 0.125},
        ),
    ),
    "SpikingJelly": (
        Line(
            "Sigmoid(alpha=a)(x)",
            "pg.heaviside(x, rule=pg.rules.sigmoid(scale=1 / a))",
            "An infinite or NaN x gets 0, here and below.",
            JELLY["sigmoid"],
            {"a": 4.0},
            is_exact=False,
        ),
        Line(
            "ATan(alpha=a)(x)",
            "pg.heaviside(x, rule=pg.rules.arctan(scale=2 / a))",
            SAME,
            JELLY["atan"],
            {"a": 2.0},
            is_exact=False,
        ),
        Line(
            "PiecewiseQuadratic(alpha=a)(x)",
            "pg.heaviside(x, rule=pg.rules.triangle(scale=1 / a, height=a))",
            SAME,
            JELLY["quadratic"],
            {"a": 2.0},
            (0.5, -0.5),
            is_exact=False,
        ),
        Line(
            "PiecewiseExp(alpha=a)(x)",
            "pg.heaviside(x, rule=pg.rules.custom(lambda x: a / 2 * torch.exp(-a * x.abs())))",
            ONCE,
            JELLY["exponential"],
            {"a": 2.0},
            is_exact=False,
        ),
        Line(
            "Erf(alpha=a)(x)",
            "pg.heaviside(x, rule=pg.rules.gaussian(scale=1 / (a * 2**0.5)))",
            SAME,
            JELLY["erf"],
            {"a": 2.0},
            is_exact=False,
        ),
        Line(
            "SoftSign(alpha=a)(x)",
            "pg.heaviside(x, rule=pg.rules.fast_sigmoid(scale=1 / a, height=a / 2))",
            SAME,
            JELLY["softsign"],
            {"a": 2.0},
            is_exact=False,
        ),
        Line(
            "SuperSpike(alpha=a)(x)",
            "pg.heaviside(x, rule=pg.rules.fast_sigmoid(height=a))",
            SAME,
            JELLY["superspike"],
            {"a": 2.0},
            is_exact=False,
        ),
        Line(
            "Rect(alpha=a)(x)",
            "pg.heaviside(x, rule=pg.rules.window(scale=0.5 / a, height=a))",
            SAME,
            JELLY["rect"],
            {"a": 2.0},
            (0.25, -0.25),
        ),
        Line("quantize.clamp(x, lo, hi)", 'pg.clamp(x, lo, hi, rule="zero")', SAME, of.closed, BOUNDS),
        Line("quantize.round(x)", "pg.round(x)", SAME, of.ROUND, {}, (0.5, 1.5)),
    ),
    "larq": (
        Line(
            "SteSign(clip_value=c)(x)",
            "pg.sign(x, at_zero=1, rule=pg.rules.window(scale=c))",
            SAME,
            LARQ["ste_sign"],
            {"c": 0.75},
            (-0.75,),
        ),
        Line(
            "SteSign(clip_value=None)(x)",
            'pg.sign(x, at_zero=1, rule="identity")',
            SAME,
            LARQ["sign_identity"],
        ),
        Line(
            "SteHeaviside(clip_value=c)(x)",
            "pg.heaviside(x, at_zero=0, rule=pg.rules.window(scale=c))",
            SAME,
            LARQ["ste_heaviside"],
            {"c": 0.75},
            (-0.75,),
        ),
        Line(
            "SteTern(threshold_value=t, clip_value=c)(x)",
            'pg.replace_grad(torch.sign(x) * (x.abs() > t), pg.clamp(x, -c, c, rule="zero"))',
            "At |x| == t the value is 0.",
            of.ste_tern,
            {"t": 0.25, "c": 0.75},
            (-0.75,),
        ),
        Line(
            "ApproxSign()(x)",
            "pg.sign(x, at_zero=1, rule=pg.rules.triangle(height=2))",
            SAME,
            LARQ["approx_sign"],
            {},
            (1.0, -1.0),
            is_exact=False,
        ),
        Line(
            "SwishSign(beta=b)(x)",
            "pg.sign(x, at_zero=1, rule=pg.rules.custom("
            "lambda x: b * (2 - b * x * torch.tanh(b * x / 2)) / (1 + torch.cosh(b * x))))",
            ONCE,
            LARQ["swish_sign"],
            {"b": 5.0},
            is_exact=False,
        ),
        Line(
            "DoReFa(k_bit=2)(x)",
            'pg.round(pg.clamp(x, 0, 1, rule="zero") * n) / n',
            "n is 2**k_bit - 1.",
            of.dorefa,
            {"n": 3},
            (0.0, 1.0),
            is_exact=False,
        ),
    ),
    "SAELens, dictionary_learning, Gemma Scope": (
        Line(
            "JumpReLU.apply(x, threshold, bandwidth, False), SAELens",
            "pg.jumprelu(x, threshold, bandwidth=bandwidth)",
            f"{EDGES_OF_THE_WINDOW} The threshold has any shape that broadcasts; theirs always sums over the first dimension. A masked "
            "infinity gives 0, theirs NaN.",
            of.jump(to_x=False),
            JUMP,
            is_exact=False,
        ),
        Line(
            "JumpReLU.apply(x, threshold, bandwidth, True), SAELens",
            "pg.jumprelu(x, threshold, bandwidth=bandwidth, window_to_x=True)",
            "As above.",
            of.jump(to_x=True),
            JUMP,
            is_exact=False,
        ),
        Line(
            "Step.apply(x, threshold, bandwidth, False), SAELens",
            f"pg.heaviside(pg.scale_grad(x, 0) - threshold, at_zero=0, rule={RECTANGLE})",
            f"{EDGES_OF_THE_WINDOW} The penalty on the number of features that are on; without a gradient to x, x.detach() does as well.",
            of.is_above(to_x=False),
            JUMP,
            is_exact=False,
        ),
        Line(
            "Step.apply(x, threshold, bandwidth, True), SAELens",
            f"pg.heaviside(x - threshold, at_zero=0, rule={RECTANGLE})",
            "As above.",
            of.is_above(to_x=True),
            JUMP,
            is_exact=False,
        ),
        Line(
            "JumpReLUFunction.apply(x, threshold, bandwidth), dictionary_learning",
            "pg.jumprelu(x, threshold, bandwidth=bandwidth)",
            f"{EDGES_OF_THE_WINDOW} Their bandwidth is rounded to float32, whatever x is.",
            of.jump(to_x=False),
            JUMP,
            is_exact=False,
        ),
        Line(
            "StepFunction.apply(x, threshold, bandwidth), dictionary_learning",
            f"pg.heaviside(pg.scale_grad(x, 0) - threshold, at_zero=0, rule={RECTANGLE})",
            "As above.",
            of.is_above(to_x=False),
            JUMP,
            is_exact=False,
        ),
        Line(
            "x * (x > threshold), Gemma Scope",
            'pg.jumprelu(x, threshold, bandwidth=bandwidth, rule="zero")',
            "The threshold gets zeros, theirs None. With the default rule it learns.",
            of.jump_without_a_window,
            JUMP,
        ),
    ),
    "lucid, lucent, captum": (
        Line(
            "redirected_relu_grad",
            'pg.relu(x, rule="inward", edge="closed")',
            "Without the gate: lucid redirects only in a batch entry that got no gradient, and in the first 16 steps.",
            of.redirected_relu,
            {},
            (0.0,),
        ),
        Line(
            "redirected_relu6_grad",
            'pg.relu6(x, rule="inward", edge="closed")',
            "As above.",
            of.redirected_relu6,
            {},
            (0.0, 6.0),
        ),
        Line(
            "RedirectedReluLayer()(x), lucent",
            'pg.relu(x, rule=pg.rules.leaky(0.1), edge="closed")',
            SAME,
            of.leaky_relu_gradient,
            {},
            (0.0,),
            is_exact=False,
        ),
        Line(
            "RedirectedReLU()(x), captum",
            'pg.relu(x, rule="identity")',
            "Their second branch, always; theirs is the plain gradient unless that is 0 in the whole tensor, and breaks fullgraph.",
            of.whole_relu,
            {},
            (0.0,),
        ),
    ),
    "torchao and torch's quantisation": (
        Line(
            "torch.clamp(_Round.apply(x / s) + z, qmin, qmax)",
            'pg.clamp(pg.round(x / s) + z, -4, 3, rule="zero")',
            "The ends of the grid pass on every torch; from 2.14 on theirs block.",
            of.grid_code,
            {"s": 0.25, "z": 1.0},
            GRID_ENDS,
        ),
        Line(
            "torch.fake_quantize_per_tensor_affine(x, s, z, -4, 3)",
            "pg.fake_quantize(x, s, z, -4, 3)",
            "NaN stays NaN and infinities go to the ends; scale and zero point may learn; forward mode works.",
            lambda x, g, s, z: (of.affine(x, g, s, z)[0], {"x": of.affine(x, g, s, z)[1]["x"]}),
            {"s": 0.25, "z": 1},
            GRID_ENDS,
        ),
        Line(
            "torch.fake_quantize_per_channel_affine(x, s, z, 0, -4, 3)",
            "pg.fake_quantize(x, s, z, -4, 3, axis=0)",
            "As above; theirs sends +inf to the lower end, and adds a float zero point before it rounds, so ties differ where it is odd.",
            of.affine_per_channel,
            {"s": [0.25, 0.5], "z": [1.0, -1.0]},
            GRID_ENDS,
            is_exact=False,
            channels=2,
        ),
        Line(
            "torch._fake_quantize_learnable_per_tensor_affine(x, s, z, -4, 3, factor)",
            "pg.fake_quantize(x, pg.scale_grad(s, factor), pg.scale_grad(z, factor), -4, 3)",
            "Per channel too, with axis=.",
            of.affine_scaled_gradient,
            {**GRID, "factor": 0.125},
            GRID_ENDS,
            is_exact=False,
        ),
        Line(
            "lsq(x, s)",
            'pg.round(pg.clamp(x / s, -4, 3, rule="zero", edge="open")) * s',
            "The paper's formula: x / s is clipped before it is rounded, and the ends are outside. fake_quantize compares codes.",
            of.lsq,
            {"s": [0.25]},
            (-1.0, 0.75),
            is_exact=False,
        ),
    ),
    "AIMET, NVIDIA, EfficientQAT": (
        Line(
            "QuantDequantFunc.apply(x, s, offset, -4, 3)",
            "pg.fake_quantize(x, s, -offset, -4, 3)",
            "The zero point is minus their offset.",
            of.affine_with_offset,
            {"s": [0.25], "offset": [-1.0]},
            GRID_ENDS,
            is_exact=False,
        ),
        Line(
            "clip(x, lo, hi), pytorch-quantization (PACT)",
            'pg.clamp(x, lo, hi, rule="zero", edge="open")',
            "Bounds of any shape learn; theirs are scalars.",
            of.learned_open,
            LEARNED,
            (-0.5, 0.75),
            is_exact=False,
        ),
        Line(
            "not possible: clip(x, lo, hi) per channel",
            'pg.clamp(x, lo[:, None], hi[:, None], rule="zero", edge="open")',
            "Theirs raises in backward.",
            of.learned_open_per_channel,
            {"lo": [-0.5, -1.0], "hi": [0.75, 0.25]},
            (-0.5, 0.75, -1.0, 0.25),
            is_exact=False,
            channels=2,
        ),
        Line("round_ste(x), clamp_ste(x, lo, hi)", 'pg.clamp(x, lo, hi, rule="identity")', EXACT, of.whole, BOUNDS),
    ),
    "QuEST, StableQAT": (
        Line(
            "TrustQuantizer(bits=3, centered=False, trust=T)(x)",
            'pg.clamp(pg.round(x / s, rule=pg.rules.trust(within=t)), -3, 4, rule="zero") * s',
            "s is their step, t their T times the standard deviation, in steps: below 1/2. By their default it is 1/2: leave the rule out. "
            "Theirs rounds the value by the detach trick, and clips too far below. For the centred grid round x / s + 1/2, and take 1/2 "
            "off afterwards.",
            of.quest,
            {"s": 0.25, "t": 0.1875},
            (1.0, -0.75, 1.046875, -0.796875, 0.046875, 0.203125),
            is_exact=False,
        ),
        Line(
            "LsqBinaryTernaryExtensionRegular.apply(x, s, 3, True, sine_soft_q)",
            'pg.round(pg.clamp(x / s, -4, 3, rule="zero"), rule=pg.rules.fourier(amplitude=a)) * s',
            "The first term of their series, which is what they run; a is its amplitude. A scale that learns would get another gradient: "
            "theirs is LSQ's, whatever the slope.",
            of.stable_qat,
            {"s": 0.25, "a": 0.21},
            (-1.0, 0.75, 0.125, 0.0625),
            is_exact=False,
        ),
    ),
    "TensorFlow Probability, pyro, flowtorch, botorch, drqv2, mvae": (
        Line(
            "clip_by_value_preserve_gradient(x, lo, hi)",
            'pg.clamp(x, lo, hi, rule="identity")',
            EXACT,
            of.whole,
            BOUNDS,
        ),
        Line("clamp_preserve_gradients(x, lo, hi)", 'pg.clamp(x, lo, hi, rule="identity")', EXACT, of.whole, BOUNDS),
        Line("RoundSTE.apply(x)", "pg.round(x)", SAME, of.ROUND, {}, (0.5, 1.5)),
        Line(
            "OneHotArgmaxSTE.apply(x)",
            "pg.straight_through(one_hot)(x)",
            "`one_hot` is yours: `F.one_hot(x.argmax(-1), x.shape[-1]).to(x.dtype)`.",
            of.MAX_IS_ONE,
            {"one_hot": lambda x: _one_hot},
        ),
        Line(
            "TruncatedNormal._clamp(x)",
            'pg.clamp(x, lo, hi, rule="identity")',
            "Nothing for finite x.",
            of.whole,
            BOUNDS,
        ),
        Line(
            "leaky_clamp(x, lo, hi), mvae",
            "pg.clamp(x, lo, hi, rule=pg.rules.leaky(eps))",
            "Saves x; theirs saves a mask.",
            of.leaky_outside,
            {**BOUNDS, "eps": 2.0**-27},
        ),
    ),
    "mistify, turboae, exponential windows": (
        Line(
            "ClampG(lo, hi, c)(x)",
            'pg.clamp(torch.where((x < lo) | (x > hi), pg.clip_grad(x, c), x), lo, hi, rule="identity")',
            "No rule of ours has this name; it is put together.",
            of.clipped_outside,
            {**BOUNDS, "c": 0.625},
        ),
        Line(
            "STE with all gradients in +-c",
            'pg.sign(pg.clip_grad(x, c), rule="identity")',
            "The arriving gradient is not changed in place.",
            of.sign_of_clipped_gradient,
            {"c": 0.25},
        ),
        Line(
            "clamp with max(exp(-distance), c) outside",
            "pg.replace_grad(torch.clamp(x, lo, hi), x * torch.exp(-(x - x.clamp(lo, hi)).abs()).clamp(min=c).detach())",
            "The general form for a rule that is linear in grad: value `y`, gradient of `x * slope.detach()`. The bounds do not learn.",
            of.exponential_outside,
            {**BOUNDS, "c": 0.125},
            is_exact=False,
        ),
    ),
    "Inverting gradients (MP-DQN)": (
        Line(
            "invert_gradients(grad, x, lo, hi)",
            'pg.replace_grad(x, pg.clamp(x, lo, hi, rule="inverting", maximize=True))',
            "Inside the graph instead of on a gradient tensor. Theirs gets an ascent direction: leave `maximize` out for a loss. "
            "Without `replace_grad` the value is clamped too.",
            of.inverting,
            BOUNDS,
            is_exact=False,
        ),
    ),
    "TRL, verl, stable-baselines3: policy losses": (
        Line(
            "-torch.min(x.exp() * a, torch.clamp(x.exp(), 1 - lo, 1 + hi) * a)",
            "pg.policy.loss(x, a, low=lo, high=hi)",
            'x is the log ratio, a the advantage. On a bound ours passes all, as theirs on torch ≤ 2.13; `edge="half"` is torch ≥ 2.14. '
            "All that differs: [policy_clips.md](policy_clips.md).",
            of.ppo,
            ADVANTAGE,
            is_exact=False,
        ),
        Line(
            "-torch.clamp(x.exp(), max=1 + hi).detach() * a * log_prob",
            'pg.policy.loss(x, a, low=None, high=hi, rule="identity", space="log", value="clipped")',
            'The same gradient; the value is -a times the clipped ratio. `pg.policy.presets["cispo"]` has the bound that TRL recommends.',
            of.cispo,
            ADVANTAGE,
            is_exact=False,
        ),
    ),
    "optax and gradient reversal": (
        Line(
            "optax.scale_gradient(x, s)",
            "pg.scale_grad(x, s)",
            "s = 0 blocks an infinite grad, too.",
            of.multiplied,
            {"s": 0.25},
        ),
        Line(
            "frac_gradient(x, s)",
            "pg.scale_grad(x, s)",
            "As above, and the value is exact.",
            of.multiplied,
            {"s": 0.25},
        ),
        Line("GradientReversal.apply(x, s)", "pg.reverse_grad(x, s)", "As above.", of.reversed_, {"s": 0.25}),
    ),
    "JAX, qwix, AQT": (
        Line("jnp.clip(x, lo, hi)", 'pg.clamp(x, lo, hi, rule="zero", edge="half")', SAME, of.half, BOUNDS),
        Line("lax.clamp(lo, x, hi)", 'pg.clamp(x, lo, hi, rule="zero", edge="open")', SAME, of.open_, BOUNDS),
        Line(
            "jax.nn.hard_tanh(x)",
            'pg.hardtanh(x, edge="closed")',
            "torch's own hardtanh is open.",
            lambda x, g: of.closed(x, g, -1.0, 1.0),
            {},
            (-1.0, 1.0),
        ),
        Line("jax.nn.relu(x)", "pg.relu(x)", SAME, of.open_relu, {}, (0.0,)),
        Line(
            "clip_gradient_to_calibration(x), then x + stop_gradient(y - x)",
            'pg.replace_grad(y, pg.clamp(x, lo, hi, rule="zero"))',
            EXACT,
            of.value_of_another,
            {**BOUNDS, "y": lambda x: x.detach() / 2},
        ),
        Line(
            "pass_through(x, fn)",
            "pg.straight_through(fn)(x)",
            SAME,
            of.EVEN_NUMBERS,
            {"fn": lambda x: _to_even_numbers},
            (0.5, 1.5),
        ),
    ),
    "kornia": (
        Line(
            "StraightThroughEstimator(fn)(x)",
            "pg.straight_through(fn)(x)",
            "The gradient is 1; theirs counts twice and gives 2 for nn.Identity().",
            of.EVEN_NUMBERS,
            {"fn": lambda x: _to_even_numbers},
            (0.5, 1.5),
        ),
        Line("STEFunction.apply(x, hard, None)", "pg.replace_grad(hard, x)", SAME, of.gradient_to, HARD),
        Line(
            "STEFunction.apply(x, hard, F.hardtanh)",
            "pg.replace_grad(hard, pg.clip_grad(x, 1.0))",
            SAME,
            of.gradient_clipped_to,
            HARD,
        ),
    ),
    "vector-quantize-pytorch": (
        Line(
            "VectorQuantize(rotation_trick=False)(x)",
            "pg.codebook.vector_quantize(x, codebook)[0]",
            "The code words are exact: theirs come out rounded, 35 % of random ones. The losses are functions of their own.",
            of.nearest_code,
            CODES,
            channels=2,
        ),
        Line(
            "VectorQuantize(rotation_trick=True)(x)",
            'pg.codebook.vector_quantize(x, codebook, rule="rotation")[0]',
            "The value is the code to the bit (theirs is off by 0.083 in bfloat16), and a zero vector gets grad (theirs about 1e6).",
            of.rotated_to_nearest_code,
            CODES,
            is_exact=False,
            channels=2,
            subtracts=True,
        ),
        Line("straight_through(x, hard)", "pg.replace_grad(hard, x)", "The value: exact.", of.gradient_to, HARD),
        Line("round_ste(x)", "pg.round(x)", "An infinite x gives NaN there.", of.ROUND, {}, (0.5, 1.5)),
        Line("floor_ste(x)", "pg.floor(x)", "As above.", of.FLOOR, {}, (1.0, 2.0)),
    ),
    "Detach tricks": (
        Line(
            "x + (torch.clamp(x, lo, hi) - x).detach()", 'pg.clamp(x, lo, hi, rule="identity")', EXACT, of.whole, BOUNDS
        ),
        Line(
            "x + (torch.round(x) - x).detach()",
            "pg.round(x)",
            "An infinite x gives NaN there.",
            of.ROUND,
            {},
            (0.5, 1.5),
        ),
        Line(
            "x + (f(x) - x).detach()",
            "pg.straight_through(f)(x)",
            EXACT,
            of.EVEN_NUMBERS,
            {"f": lambda x: _to_even_numbers},
            (0.5, 1.5),
        ),
        Line(
            "x + (hard - x).detach()",
            "pg.replace_grad(hard, x)",
            "The value: 35 % of random code words come out changed there, none here.",
            of.gradient_to,
            HARD,
        ),
        Line(
            "one_hot - soft.detach() + soft",
            "pg.replace_grad(one_hot, torch.softmax(x, -1))",
            "The value is one-hot to the bit.",
            of.softmax_gradient,
            ONE_HOT,
            is_exact=False,
            subtracts=True,
        ),
    ),
    "torch itself, another version": (
        Line(
            "torch.clamp(x, lo, hi), torch <= 2.13",
            'pg.clamp(x, lo, hi, rule="zero")',
            "The same on every torch, here and below.",
            of.closed,
            BOUNDS,
        ),
        Line(
            "torch.clamp(x, lo, hi), torch >= 2.14",
            'pg.clamp(x, lo, hi, rule="zero", edge="open")',
            SAME,
            of.open_,
            BOUNDS,
        ),
        Line(
            "torch.maximum(x, b)",
            'pg.lower_bound(x, b, rule="zero", edge="half")',
            SAME,
            of.half_and_the_bound,
            {"b": [0.25]},
            (0.25,),
            is_exact=False,
        ),
    ),
}

# Defects measured in the projects that ours must not have; test_defects.py has a test of each.
DEFECTS: dict[str, tuple[str, str]] = {
    "underflow": (
        "ClampWithGrad",
        "float16, x = 1.002, bounds ±1, grad = -1e-5: the product underflows and the outward gradient passes; "
        "so do smaller ones in every dtype. Ours: 0.",
    ),
    "infinite grad": (
        "ClampWithGrad",
        "grad = inf gives NaN inside the range. Ours: inf inside, 0 where it points outward.",
    ),
    "infinite bound": (
        "ClampWithGrad",
        "x = inf with max = inf is blocked, because inf - inf is NaN. Ours: at the bound, grad passes.",
    ),
    "dtype and shape": (
        "CompressAI LowerBound",
        "float16 and bfloat16 become float32, a 0-d input gets shape (1,). Ours: both stay.",
    ),
    "disconnected": ("NeuralCompression", '"disconnected" returns the input as the gradient. Ours: grad or 0.'),
    "sigmoid": ("snnTorch sigmoid", "NaN for x <= -3.5 at slope 25 in float32. Ours: finite for every x and dtype."),
    "leaf in place": (
        "brevitas tensor_clamp_",
        "changes a leaf that requires grad silently. Ours: torch's error, and the leaf unchanged.",
    ),
    "detach trick": (
        "Detach trick",
        "x + (f(x) - x).detach() is rounded: of normal x of standard deviation 5 in float32, "
        "83 % of what bounds (-0.3, 0.7) clamp is wrong; "
        "clamp(3e7, 0, 1) is 0, 300 in bfloat16 is not 1, and infinity gives NaN. Ours: the bits of torch.clamp.",
    ),
    "double count": ("kornia StraightThroughEstimator", "gradient 2 for nn.Identity(). Ours: 1."),
    "code words": (
        "vector-quantize-pytorch straight_through",
        "about 35 % of the elements of random code words change. Ours: none.",
    ),
    "not finite": (
        "torch.fake_quantize",
        "per channel +inf goes to quant_min, and NaN becomes a number per tensor and per channel. "
        "Ours: infinities go to the ends, NaN stays NaN.",
    ),
    "two losses": (
        "ClampWithGrad and every directional rule, ours too",
        "3 f(x) - f(x) has gradient 2 through one shared call and 3 through two calls: such rules do not add up. "
        "Ours say so, and raise in forward mode.",
    ),
}

# What the page must not promise.
NOT_THERE: tuple[tuple[str, str], ...] = (
    (
        "lucid's and captum's gates",
        "The plain gradient where any passes, per batch entry or per tensor, and the first 16 steps: a rule of ours sees elements.",
    ),
    ("snnTorch SSO", "Stochastic: our rules are functions of x and grad."),
    (
        "custom_surrogate(fn(input, grad, spikes))",
        "`rules.custom(slope)` takes functions of x, and multiplies by grad.",
    ),
    ("zenkai ClampSTE(g=0.01)", "A constant outside, whatever grad and side."),
    (
        "soft_round, approximate_round, polynomial round, soft clip, pfhedge leaky_clamp",
        "They change the value; write them in torch.",
    ),
    ("SpikingJelly set_spiking_mode(False)", "Trains with the smooth primitive in place of the step: another value."),
    ("disco-diffusion's range_loss", "A penalty in the loss, not a rule."),
    ("ONNX symbolics of brevitas and AIMET", "Exported graphs show torch's own op; see docs/limits.md."),
    (
        "1 byte or nothing saved (brevitas, AIMET, torch.fake_quantize)",
        'Rules that read x save x; `rule="identity"` saves nothing.',
    ),
)

# The recipe is the page's code block; test_recipe.py runs it with and without pseudograd and compares.
RECIPE = """\
try:
    from pseudograd import clamp
except ImportError:

    def clamp(x, min, max):
        y = x.clone()
        y.detach().clamp_(min, max)  # the same storage: the value changes, the gradient still passes
        if y.requires_grad:
            y.register_hook(lambda g: g.masked_fill((x < min) & (g > 0) | (x > max) & (g < 0), 0))
        return y
"""
