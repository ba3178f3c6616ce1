"""What stands behind each line of docs/coming_from.md: the formula that must come out, and the values of its names.

The page has the code; `LINES` joins the two. The test fails where one of them has a line that the other has not.
"""

import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import formulas as of
from .formulas import JELLY, LARQ, LOWER, SNN

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "coming_from.md").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Truth:
    """formula: of the left side. names: what the code uses besides x; a list stands for a tensor that learns. points: further values of x.

    apart: values of x where the page says that the two gradients differ.
    channels: x is a matrix of so many rows. subtracts: a difference of numbers as large as grad, so rounded as they are.
    """

    formula: of.Truth
    names: dict[str, Any] = field(default_factory=dict)
    points: tuple[float, ...] = ()
    is_exact: bool = True
    channels: int = 0
    subtracts: bool = False
    apart: tuple[float, ...] = ()


@dataclass(frozen=True)
class Line:
    """A line of the page, and what stands behind it."""

    before: str
    after: str
    differs: str
    truth: Truth


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
JUMP_EDGES = (0.25, 0.75)
HARD = {"hard": lambda x: torch.sign(x.detach())}
CODES = {"codebook": lambda x: torch.cos(torch.arange(1.0, 4.0)[:, None] * torch.arange(x.shape[-1])).to(x.dtype)}
ONE_HOT = {"one_hot": lambda x: _one_hot(x.detach())}

ADVANTAGE = {"lo": 0.25, "hi": 0.5, "a": lambda x: torch.where(torch.arange(x.numel()) % 2 > 0, -1.5, 0.5).to(x.dtype)}

near = partial(Truth, is_exact=False)
TRUTHS: dict[str, dict[str, Truth]] = {
    "VQGAN+CLIP scripts, pixray, pytti, joehalliwell's blog": {
        "clamp_with_grad(x, lo, hi)": Truth(of.towards, BOUNDS),
        "ClampWithGrad.apply(x, lo, hi)": Truth(of.towards, BOUNDS),
        "clamp_grad(x, lo, hi)": Truth(of.whole, BOUNDS),
        "clamp_with_grad = torch.clamp": Truth(of.closed, BOUNDS),
        "replace_grad(hard, x)": Truth(of.gradient_to, HARD),
        "replace_grad(x, torch.maximum(x, stop))": Truth(of.stopped_below, {"stop": 0.25}),
        "ClampWithGradProposed.apply(x, lo, hi)": Truth(of.sign_outside, BOUNDS),
    },
    "tensorflow-compression, CompressAI, NeuralCompression": {
        "lower_bound(x, b)": Truth(LOWER["towards"], BOUND),
        'lower_bound(x, b, gradient="identity")': Truth(LOWER["identity"], BOUND),
        'lower_bound(x, b, gradient="disconnected")': Truth(LOWER["disconnected"], BOUND),
        "round_st(x), quantize_ste(x)": Truth(of.ROUND, {}, (0.5, 1.5, 2.5)),
        "round_st(x, offset)": Truth(of.round_with_offset, {"offset": [0.25]}, (0.75, 1.75)),
        "perturb_and_apply(f, x, u=u, expected_grads=True)": near(
            of.expected_under_noise, {"u": 0.125, "f": lambda x: _smooth}
        ),
        "GDNParameter()(x), NonNegativeParametrizer()(x)": near(of.squared_above, {"b": 0.25, "pedestal": 0.0625}),
        "LowerBound(b)(x)": Truth(LOWER["towards"], BOUND),
        'lower_bound(x, b, "disconnected")': Truth(LOWER["disconnected"], BOUND),
    },
    "brevitas": {
        "scalar_clamp_ste_impl(x, lo, hi)": Truth(of.whole, BOUNDS),
        "scalar_clamp_min_ste_impl(x, b)": Truth(LOWER["identity"], BOUND),
        "tensor_clamp_ste_impl(x, lo, hi)": Truth(
            of.whole, {key: torch.tensor(value) for key, value in BOUNDS.items()}
        ),
        "tensor_clamp_ste_impl_(x * 1, lo, hi)": Truth(of.whole, BOUNDS),
        "round_ste_impl(x)": Truth(of.ROUND, {}, (0.5, 1.5)),
        "floor_ste_impl(x)": Truth(of.FLOOR, {}, (1.0, 2.0)),
        "ceil_ste_impl(x)": Truth(of.CEIL, {}, (1.0, 2.0)),
        "round_to_zero_ste_impl(x)": Truth(of.TRUNC, {}, (1.0, -1.0)),
        "dpu_round_ste_impl(x)": Truth(of.EVEN_NUMBERS, {"hard": lambda x: _to_even_numbers}, (0.5, 1.5)),
        "binary_sign_ste_impl(x)": Truth(LARQ["sign_identity"]),
        "ternary_sign_ste_impl(x)": Truth(LARQ["ternary_identity"]),
        "abs_binary_sign_grad(x)": Truth(lambda x, g: (torch.where(x < 0, -x, x), {"x": torch.where(x >= 0, g, -g)})),
    },
    "snnTorch": {
        "straight_through_estimator()(x)": Truth(SNN["identity"]),
        "fast_sigmoid(slope=k)(x)": near(SNN["fast_sigmoid"], {"k": 25.0}),
        "atan(alpha=a)(x)": near(SNN["atan"], {"a": 2.0}),
        "sigmoid(slope=k)(x)": near(SNN["sigmoid"], {"k": 4.0}),
        "triangular(threshold=threshold)(x)": Truth(SNN["triangular"], {"threshold": 0.5}),
        "Heaviside()(x)": Truth(SNN["heaviside"]),
        "SpikeRateEscape(beta=b, slope=k)(x)": near(SNN["escape"], {"k": 25.0, "b": 1.0}),
        "LSO(slope=leak)(x)": Truth(SNN["leaky"], {"leak": 0.125}),
    },
    "SpikingJelly": {
        "Sigmoid(alpha=a)(x)": near(JELLY["sigmoid"], {"a": 4.0}),
        "ATan(alpha=a)(x)": near(JELLY["atan"], {"a": 2.0}),
        "PiecewiseQuadratic(alpha=a)(x)": near(JELLY["quadratic"], {"a": 2.0}, (0.5, -0.5)),
        "PiecewiseExp(alpha=a)(x)": near(JELLY["exponential"], {"a": 2.0}),
        "Erf(alpha=a)(x)": near(JELLY["erf"], {"a": 2.0}),
        "SoftSign(alpha=a)(x)": near(JELLY["softsign"], {"a": 2.0}),
        "SuperSpike(alpha=a)(x)": near(JELLY["superspike"], {"a": 2.0}),
        "Rect(alpha=a)(x)": Truth(JELLY["rect"], {"a": 2.0}, apart=(0.25, -0.25)),
        "quantize.clamp(x, lo, hi)": Truth(of.closed, BOUNDS),
        "quantize.round(x)": Truth(of.ROUND, {}, (0.5, 1.5)),
    },
    "larq": {
        "SteSign(clip_value=c)(x)": Truth(LARQ["ste_sign"], {"c": 0.75}, (-0.75,)),
        "SteHeaviside(clip_value=c)(x)": Truth(LARQ["ste_heaviside"], {"c": 0.75}, (-0.75,)),
        "SteTern(threshold_value=t, clip_value=c)(x)": Truth(of.ste_tern, {"t": 0.25, "c": 0.75}, (-0.75,)),
        "ApproxSign()(x)": near(LARQ["approx_sign"], {}, (1.0, -1.0)),
        "SwishSign(beta=b)(x)": near(LARQ["swish_sign"], {"b": 5.0}),
        "DoReFa(k_bit=2)(x)": near(of.dorefa, {"n": 3}, (0.0, 1.0)),
    },
    "SAELens, dictionary_learning, Gemma Scope": {
        "JumpReLU.apply(x, threshold, bandwidth, False), JumpReLUFunction.apply(x, threshold, bandwidth)": near(
            of.jump(to_x=False), JUMP, apart=JUMP_EDGES
        ),
        "JumpReLU.apply(x, threshold, bandwidth, True)": near(of.jump(to_x=True), JUMP, apart=JUMP_EDGES),
        "Step.apply(x, threshold, bandwidth, False), StepFunction.apply(x, threshold, bandwidth)": near(
            of.is_above(to_x=False), JUMP, apart=JUMP_EDGES
        ),
        "Step.apply(x, threshold, bandwidth, True)": near(of.is_above(to_x=True), JUMP, apart=JUMP_EDGES),
        "x * (x > threshold), Gemma Scope": Truth(of.jump_without_a_window, JUMP),
    },
    "lucid, lucent, captum": {
        "redirected_relu_grad": Truth(of.redirected_relu, {}, (0.0,)),
        "redirected_relu6_grad": Truth(of.redirected_relu6, {}, (0.0, 6.0)),
        "RedirectedReluLayer()(x), lucent": near(of.leaky_relu_gradient, {}, (0.0,)),
        "RedirectedReLU()(x), captum": Truth(of.whole_relu, {}, (0.0,)),
    },
    "torchao and torch's quantisation": {
        "torch.clamp(_Round.apply(x / s) + z, qmin, qmax)": Truth(of.grid_code, {"s": 0.25, "z": 1.0}, GRID_ENDS),
        "torch.fake_quantize_per_tensor_affine(x, s, z, -4, 3)": Truth(
            lambda x, g, s, z: (of.affine(x, g, s, z)[0], {"x": of.affine(x, g, s, z)[1]["x"]}),
            {"s": 0.25, "z": 1},
            GRID_ENDS,
        ),
        "torch.fake_quantize_per_channel_affine(x, s, z, 0, -4, 3)": near(
            of.affine_per_channel, {"s": [0.25, 0.5], "z": [1.0, -1.0]}, GRID_ENDS, channels=2
        ),
        "torch._fake_quantize_learnable_per_tensor_affine(x, s, z, -4, 3, factor)": near(
            of.affine_scaled_gradient, {**GRID, "factor": 0.125}, GRID_ENDS
        ),
        "lsq(x, s)": near(of.lsq, {"s": [0.25]}, (-1.0, 0.75)),
    },
    "AIMET, NVIDIA, EfficientQAT, QuEST, StableQAT": {
        "QuantDequantFunc.apply(x, s, offset, -4, 3)": near(
            of.affine_with_offset, {"s": [0.25], "offset": [-1.0]}, GRID_ENDS
        ),
        "clip(x, lo, hi), pytorch-quantization (PACT)": near(of.learned_open, LEARNED, (-0.5, 0.75)),
        "clip(x, lo, hi), PACT per channel": near(
            of.per_channel(of.learned_open),
            {"lo": [-0.5, -1.0], "hi": [0.75, 0.25]},
            (-0.5, 0.75, -1.0, 0.25),
            channels=2,
        ),
        "round_ste(x), clamp_ste(x, lo, hi)": Truth(of.whole, BOUNDS),
        "TrustQuantizer(bits=3, centered=False, trust=T)(x)": near(
            of.quest, {"s": 0.25, "t": 0.1875}, (1.0, -0.75, 1.046875, -0.796875, 0.046875, 0.203125)
        ),
        "LsqBinaryTernaryExtensionRegular.apply(x, s, 3, True, sine_soft_q)": near(
            of.stable_qat, {"s": 0.25, "a": 0.21}, (-1.0, 0.75, 0.125, 0.0625)
        ),
    },
    "TensorFlow Probability, pyro, flowtorch, botorch, drqv2, mvae": {
        "clip_by_value_preserve_gradient(x, lo, hi), clamp_preserve_gradients(x, lo, hi), TruncatedNormal._clamp(x)": Truth(
            of.whole, BOUNDS
        ),
        "RoundSTE.apply(x)": Truth(of.ROUND, {}, (0.5, 1.5)),
        "OneHotArgmaxSTE.apply(x)": Truth(of.MAX_IS_ONE, {"one_hot": lambda x: _one_hot}),
        "leaky_clamp(x, lo, hi), mvae": Truth(of.leaky_outside, {**BOUNDS, "eps": 2.0 ** (-27)}),
    },
    "Exponential windows, inverting gradients (MP-DQN)": {
        "clamp with max(exp(-distance), c) outside": near(of.exponential_outside, {**BOUNDS, "c": 0.125}),
        "invert_gradients(grad, x, lo, hi)": near(of.inverting, BOUNDS),
    },
    "TRL, verl, stable-baselines3: policy losses": {
        "-torch.min(x.exp() * a, torch.clamp(x.exp(), 1 - lo, 1 + hi) * a)": near(of.ppo, ADVANTAGE),
        "-torch.clamp(x.exp(), max=1 + hi).detach() * a * log_prob": near(of.cispo, ADVANTAGE),
    },
    "optax and gradient reversal": {
        "optax.scale_gradient(x, s), frac_gradient(x, s)": Truth(of.multiplied, {"s": 0.25}),
        "GradientReversal.apply(x, s)": Truth(of.reversed_, {"s": 0.25}),
    },
    "JAX, qwix, AQT, another version of torch": {
        "jnp.clip(x, lo, hi)": Truth(of.half, BOUNDS),
        "lax.clamp(lo, x, hi)": Truth(of.open_, BOUNDS),
        "jax.nn.relu(x)": Truth(of.open_relu, {}, (0.0,)),
        "jax.nn.hard_tanh(x)": Truth(lambda x, g: of.closed(x, g, -1.0, 1.0), {}, (-1.0, 1.0)),
        "clip_gradient_to_calibration(x), then x + stop_gradient(y - x)": Truth(
            of.value_of_another, {**BOUNDS, "y": lambda x: x.detach() / 2}
        ),
        "pass_through(x, fn)": Truth(of.EVEN_NUMBERS, {"fn": lambda x: _to_even_numbers}, (0.5, 1.5)),
        "torch.clamp(x, lo, hi), torch <= 2.13": Truth(of.closed, BOUNDS),
        "torch.clamp(x, lo, hi), torch >= 2.14": Truth(of.open_, BOUNDS),
        "torch.maximum(x, b)": near(of.half_and_the_bound, {"b": [0.25]}, (0.25,)),
    },
    "kornia, detach tricks": {
        "StraightThroughEstimator(fn)(x)": Truth(of.EVEN_NUMBERS, {"fn": lambda x: _to_even_numbers}, (0.5, 1.5)),
        "STEFunction.apply(x, hard, F.hardtanh)": Truth(of.gradient_clipped_to, HARD),
        "x + (torch.clamp(x, lo, hi) - x).detach()": Truth(of.whole, BOUNDS),
        "x + (torch.round(x) - x).detach()": Truth(of.ROUND, {}, (0.5, 1.5)),
        "x + (f(x) - x).detach()": Truth(of.EVEN_NUMBERS, {"f": lambda x: _to_even_numbers}, (0.5, 1.5)),
        "x + (hard - x).detach(), STEFunction.apply(x, hard, None)": Truth(of.gradient_to, HARD),
        "one_hot - soft.detach() + soft": near(of.softmax_gradient, ONE_HOT, subtracts=True),
    },
    "vector-quantize-pytorch": {
        "VectorQuantize(rotation_trick=False)(x)": Truth(of.nearest_code, CODES, channels=2),
        "VectorQuantize(rotation_trick=True)(x)": near(of.rotated_to_nearest_code, CODES, channels=2, subtracts=True),
    },
}


def _lines() -> dict[str, dict[str, tuple[str, str]]]:
    """By section of the page and left side: the right side, and what differs."""
    sections: dict[str, dict[str, tuple[str, str]]] = {}
    for title, text in re.findall(r"^## (.*)\n((?:(?!## ).*\n?)*)", PAGE, re.MULTILINE):
        rows = re.findall(r"^\| `(.*?)` \| `(.*?)` \| (.*) \|$", text, re.MULTILINE)
        if rows:
            sections[title] = {
                before.replace("\\|", "|"): (after.replace("\\|", "|"), differs) for before, after, differs in rows
            }
    return sections


ROWS = _lines()
LINES = {
    project: [Line(before, *ROWS[project][before], truth) for before, truth in truths.items()]
    for project, truths in TRUTHS.items()
}
RECIPE = re.findall(r"```python\n(try:.*?)```\n", PAGE, re.DOTALL)[0]  # the optional dependency; test_recipe.py runs it
