"""Our lines for classes of other libraries, as docs/coming_from.md has them. A test compares the two."""

from __future__ import annotations

import ast

_STEP, _SPIKE = "pg.heaviside(x, at_zero=0, rule=pg.rules.", "pg.heaviside(x, rule=pg.rules."
_JUMP = "pg.jumprelu(x, threshold, bandwidth=bandwidth)"
_WINDOW = (
    "pg.heaviside(pg.scale_grad(x, 0) - threshold, at_zero=0, "
    "rule=pg.rules.window(scale=bandwidth / 2, height=1 / bandwidth))"
)
# By library: a line with its class, and our line. The arguments of its line are the inputs of the forward of its class.
HINTS = {
    "snnTorch": {
        "atan(alpha=a)(x)": f"{_STEP}arctan(scale=2 / a))",
        "sigmoid(slope=k)(x)": f"{_STEP}sigmoid(scale=1 / k))",
        "fast_sigmoid(slope=k)(x)": f"{_STEP}fast_sigmoid(scale=1 / k))",
        "Heaviside()(x)": f"{_STEP}custom(lambda x: (x > 0).to(x.dtype)))",
        "SpikeRateEscape(beta=b, slope=k)(x)": f"{_STEP}custom(lambda x: k * torch.exp(-b * (x - 1).abs())))",
        "triangular(threshold=threshold)(x)": f"{_STEP}custom(lambda x: torch.where(x < 0, threshold, -threshold)))",
    },
    "SpikingJelly": {
        "ATan(alpha=a)(x)": f"{_SPIKE}arctan(scale=2 / a))",
        "Sigmoid(alpha=a)(x)": f"{_SPIKE}sigmoid(scale=1 / a))",
        "PiecewiseQuadratic(alpha=a)(x)": f"{_SPIKE}triangle(scale=1 / a, height=a))",
        "Erf(alpha=a)(x)": f"{_SPIKE}gaussian(scale=1 / (a * 2**0.5)))",
        "SoftSign(alpha=a)(x)": f"{_SPIKE}fast_sigmoid(scale=1 / a, height=a / 2))",
        "SuperSpike(alpha=a)(x)": f"{_SPIKE}fast_sigmoid(height=a))",
        "Rect(alpha=a)(x)": f"{_SPIKE}window(scale=0.5 / a, height=a))",
        "PiecewiseExp(alpha=a)(x)": f"{_SPIKE}custom(lambda x: a / 2 * torch.exp(-a * x.abs())))",
    },
    "SAELens": {
        "Step.apply(x, threshold, bandwidth, False)": _WINDOW,
        "JumpReLU.apply(x, threshold, bandwidth, False)": _JUMP,
    },
    "dictionary_learning": {
        "StepFunction.apply(x, threshold, bandwidth)": _WINDOW,
        "JumpReLUFunction.apply(x, threshold, bandwidth)": _JUMP,
    },
    "kornia": {"STEFunction.apply(x, hard, None)": "pg.replace_grad(hard, x)"},
    "AIMET": {"QuantDequantFunc.apply(x, s, offset, -4, 3)": "pg.fake_quantize(x, s, -offset, -4, 3)"},
    "botorch": {"OneHotArgmaxSTE.apply(x)": "pg.straight_through(one_hot)(x)"},
}


def hints_for(name: str, inputs: int) -> tuple[str, ...]:
    """The lines for a class with this name and number of inputs. It may be another class, because its gradients were not recognised."""
    return tuple(
        f"{library}'s {before} is {after}; compare before you replace a class of that name"
        for library, lines in HINTS.items()
        for before, after in lines.items()
        if (_plain(before.split("(")[0].removesuffix(".apply")), _count_arguments(before)) == (_plain(name), inputs)
    )


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _count_arguments(line: str) -> int:
    return sum(len(node.args + node.keywords) for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Call))
