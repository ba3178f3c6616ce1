"""Lines of the page about other libraries, by the name of their class and the number of inputs of its forward. A test compares the two."""

from __future__ import annotations

_SAE, _DICTIONARY, _SNN, _JELLY = "SAELens", "dictionary_learning", "snnTorch", "SpikingJelly"
_STEP = "pg.heaviside(x, at_zero=0, rule=pg.rules."
# name, in small letters and without "_"; inputs -> the library, its line, our line
HINTS: dict[tuple[str, int], tuple[tuple[str, str, str], ...]] = {
    ("atan", 2): (
        (_SNN, "atan(alpha=a)(x)", f"{_STEP}arctan(scale=2 / a))"),
        (_JELLY, "ATan(alpha=a)(x)", "pg.heaviside(x, rule=pg.rules.arctan(scale=2 / a))"),
    ),
    ("sigmoid", 2): (
        (_SNN, "sigmoid(slope=k)(x)", f"{_STEP}sigmoid(scale=1 / k))"),
        (_JELLY, "Sigmoid(alpha=a)(x)", "pg.heaviside(x, rule=pg.rules.sigmoid(scale=1 / a))"),
    ),
    ("fastsigmoid", 2): ((_SNN, "fast_sigmoid(slope=k)(x)", f"{_STEP}fast_sigmoid(scale=1 / k))"),),
    ("piecewisequadratic", 2): (
        (_JELLY, "PiecewiseQuadratic(alpha=a)(x)", "pg.heaviside(x, rule=pg.rules.triangle(scale=1 / a, height=a))"),
    ),
    ("erf", 2): ((_JELLY, "Erf(alpha=a)(x)", "pg.heaviside(x, rule=pg.rules.gaussian(scale=1 / (a * 2**0.5)))"),),
    ("softsign", 2): (
        (_JELLY, "SoftSign(alpha=a)(x)", "pg.heaviside(x, rule=pg.rules.fast_sigmoid(scale=1 / a, height=a / 2))"),
    ),
    ("superspike", 2): ((_JELLY, "SuperSpike(alpha=a)(x)", "pg.heaviside(x, rule=pg.rules.fast_sigmoid(height=a))"),),
    ("rect", 2): ((_JELLY, "Rect(alpha=a)(x)", "pg.heaviside(x, rule=pg.rules.window(scale=0.5 / a, height=a))"),),
    ("jumprelu", 4): (
        (_SAE, "JumpReLU.apply(x, threshold, bandwidth, False)", "pg.jumprelu(x, threshold, bandwidth=bandwidth)"),
    ),
    ("jumprelufunction", 3): (
        (
            _DICTIONARY,
            "JumpReLUFunction.apply(x, threshold, bandwidth)",
            "pg.jumprelu(x, threshold, bandwidth=bandwidth)",
        ),
    ),
    ("stefunction", 3): (("kornia", "STEFunction.apply(x, hard, None)", "pg.replace_grad(hard, x)"),),
    ("quantdequantfunc", 5): (
        ("AIMET", "QuantDequantFunc.apply(x, s, offset, -4, 3)", "pg.fake_quantize(x, s, -offset, -4, 3)"),
    ),
    ("onehotargmaxste", 1): (("botorch", "OneHotArgmaxSTE.apply(x)", "pg.straight_through(one_hot)(x)"),),
}


def hints_for(name: str, inputs: int) -> tuple[str, ...]:
    """What the page has for a class of this name. Whether this is that class is not known: its gradients were not recognised."""
    return tuple(
        f"{library}'s {before} is {after}; compare before you replace a class of that name"
        for library, before, after in HINTS.get((name.lower().replace("_", ""), inputs), ())
    )
