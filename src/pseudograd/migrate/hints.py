"""Our lines for classes of other libraries, as docs/coming_from.md has them. A test compares the two."""

from __future__ import annotations

_SAE, _SNN, _JELLY = "SAELens", "snnTorch", "SpikingJelly"
_STEP, _SPIKE = "pg.heaviside(x, at_zero=0, rule=pg.rules.", "pg.heaviside(x, rule=pg.rules."
_JUMP = "pg.jumprelu(x, threshold, bandwidth=bandwidth)"
_WINDOW = (
    "pg.heaviside(pg.scale_grad(x, 0) - threshold, at_zero=0, "
    "rule=pg.rules.window(scale=bandwidth / 2, height=1 / bandwidth))"
)
# The name of the class, in small letters and without "_"; the number of inputs of its forward; the library, its line, our line.
HINTS = (
    ("atan", 2, _SNN, "atan(alpha=a)(x)", f"{_STEP}arctan(scale=2 / a))"),
    ("atan", 2, _JELLY, "ATan(alpha=a)(x)", f"{_SPIKE}arctan(scale=2 / a))"),
    ("sigmoid", 2, _SNN, "sigmoid(slope=k)(x)", f"{_STEP}sigmoid(scale=1 / k))"),
    ("sigmoid", 2, _JELLY, "Sigmoid(alpha=a)(x)", f"{_SPIKE}sigmoid(scale=1 / a))"),
    ("fastsigmoid", 2, _SNN, "fast_sigmoid(slope=k)(x)", f"{_STEP}fast_sigmoid(scale=1 / k))"),
    ("piecewisequadratic", 2, _JELLY, "PiecewiseQuadratic(alpha=a)(x)", f"{_SPIKE}triangle(scale=1 / a, height=a))"),
    ("erf", 2, _JELLY, "Erf(alpha=a)(x)", f"{_SPIKE}gaussian(scale=1 / (a * 2**0.5)))"),
    ("softsign", 2, _JELLY, "SoftSign(alpha=a)(x)", f"{_SPIKE}fast_sigmoid(scale=1 / a, height=a / 2))"),
    ("superspike", 2, _JELLY, "SuperSpike(alpha=a)(x)", f"{_SPIKE}fast_sigmoid(height=a))"),
    ("rect", 2, _JELLY, "Rect(alpha=a)(x)", f"{_SPIKE}window(scale=0.5 / a, height=a))"),
    (
        "piecewiseexp",
        2,
        _JELLY,
        "PiecewiseExp(alpha=a)(x)",
        f"{_SPIKE}custom(lambda x: a / 2 * torch.exp(-a * x.abs())))",
    ),
    ("heaviside", 1, _SNN, "Heaviside()(x)", f"{_STEP}custom(lambda x: (x > 0).to(x.dtype)))"),
    (
        "spikerateescape",
        3,
        _SNN,
        "SpikeRateEscape(beta=b, slope=k)(x)",
        f"{_STEP}custom(lambda x: k * torch.exp(-b * (x - 1).abs())))",
    ),
    (
        "triangular",
        2,
        _SNN,
        "triangular(threshold=threshold)(x)",
        f"{_STEP}custom(lambda x: torch.where(x < 0, threshold, -threshold)))",
    ),
    ("step", 4, _SAE, "Step.apply(x, threshold, bandwidth, False)", _WINDOW),
    ("stepfunction", 3, "dictionary_learning", "StepFunction.apply(x, threshold, bandwidth)", _WINDOW),
    ("jumprelu", 4, _SAE, "JumpReLU.apply(x, threshold, bandwidth, False)", _JUMP),
    ("jumprelufunction", 3, "dictionary_learning", "JumpReLUFunction.apply(x, threshold, bandwidth)", _JUMP),
    ("stefunction", 3, "kornia", "STEFunction.apply(x, hard, None)", "pg.replace_grad(hard, x)"),
    (
        "quantdequantfunc",
        5,
        "AIMET",
        "QuantDequantFunc.apply(x, s, offset, -4, 3)",
        "pg.fake_quantize(x, s, -offset, -4, 3)",
    ),
    ("onehotargmaxste", 1, "botorch", "OneHotArgmaxSTE.apply(x)", "pg.straight_through(one_hot)(x)"),
)


def hints_for(name: str, inputs: int) -> tuple[str, ...]:
    """The lines for a class with this name and number of inputs. It may be another class, because its gradients were not recognised."""
    return tuple(
        f"{library}'s {before} is {after}; compare before you replace a class of that name"
        for known, count, library, before, after in HINTS
        if (known, count) == (name.lower().replace("_", ""), inputs)
    )
