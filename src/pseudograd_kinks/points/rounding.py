"""Rounding, remainders and grids at their jumps."""

from math import inf, nan

from ..point import family

_of = family("rounding and grid", elementwise=True)
_AFFINE = "torch.fake_quantize_per_tensor_affine(x, 0.5, 0, -2, 1)"
_LEARNABLE = "torch._fake_quantize_learnable_per_tensor_affine(x, y, z, -2, 1, 1.0)"
_CHANNELS = (
    "torch.fake_quantize_per_channel_affine("
    "x, torch.tensor([0.5], device=x.device), torch.tensor([0], dtype=torch.int32, device=x.device), 0, -2, 1)"
)

POINTS = (
    *_of("round", "jump", "torch.round(x)", {"0.5": [0.5], "1.5": [1.5]}, jax="jnp.round(x)", tf="tf.round(x)"),
    *_of("round(decimals=1)", "jump", "torch.round(x, decimals=1)", {"0.25": [0.25]}, jax="jnp.round(x, 1)"),
    *_of("floor", "jump", "torch.floor(x)", {"1": [1.0]}, jax="jnp.floor(x)", tf="tf.floor(x)"),
    *_of("ceil", "jump", "torch.ceil(x)", {"1": [1.0]}, jax="jnp.ceil(x)", tf="tf.math.ceil(x)"),
    *_of("trunc", "jump", "torch.trunc(x)", {"1": [1.0]}, jax="jnp.trunc(x)"),
    *_of("frac", "jump", "torch.frac(x)", {"1": [1.0], "0": [0.0]}, jax="jnp.fmod(x, 1.0)"),
    *_of(
        "fmod",
        "jump",
        "torch.fmod(x, y)",
        {"multiple": ([2.0], [1.0]), "negative": ([-2.5], [1.0]), "y=0": ([1.0], [0.0])},
        jax="jnp.fmod(x, y)",
        tf="tf.truncatemod(x, y)",
    ),
    *_of("fmod(1)", "jump", "torch.fmod(x, 1.0)", {"multiple": [2.0]}, jax="jnp.fmod(x, 1.0)"),
    *_of(
        "remainder",
        "jump",
        "torch.remainder(x, y)",
        {"multiple": ([2.0], [1.0]), "negative": ([-2.5], [1.0]), "y=0": ([1.0], [0.0])},
        jax="jnp.remainder(x, y)",
        tf="tf.math.floormod(x, y)",
    ),
    *_of(
        "remainder(1)",
        "jump",
        "torch.remainder(x, 1.0)",
        {"multiple": [2.0]},
        jax="jnp.remainder(x, 1.0)",
        tf="tf.math.floormod(x, 1.0)",
    ),
    *_of(
        "floor_divide",
        "jump",
        "torch.floor_divide(x, y)",
        {"multiple": ([2.0], [1.0])},
        jax="jnp.floor_divide(x, y)",
        tf="tf.math.floordiv(x, y)",
    ),
    *_of(
        "div(floor)",
        "jump",
        "torch.div(x, y, rounding_mode='floor')",
        {"multiple": ([2.0], [1.0])},
        jax="jnp.floor_divide(x, y)",
        tf="tf.math.floordiv(x, y)",
    ),
    *_of("div(trunc)", "jump", "torch.div(x, y, rounding_mode='trunc')", {"multiple": ([2.0], [1.0])}),
    *_of(
        "nan_to_num",
        "guard",
        "torch.nan_to_num(x)",
        {"nan": [nan], "inf": [inf], "-inf": [-inf]},
        jax="jnp.nan_to_num(x)",
    ),
    *_of(
        "fake_quantize",
        "kink",
        _AFFINE,
        {
            "lowest": [-1.0],
            "highest": [0.5],
            "half a step below": [-1.25],
            "half a step above": [0.75],
            "between": [0.25],
            "nan": [nan],
        },
        tf="tf.quantization.fake_quant_with_min_max_args(x, -1.0, 0.5, 2)",
        note="a grid of four values from -1 to 0.5",
    ),
    *_of("fake_quantize(channel)", "kink", _CHANNELS, {"lowest": [-1.0], "highest": [0.5]}, alone=True),
    *_of(
        "fake_quantize(learnable)",
        "kink",
        _LEARNABLE,
        {
            "lowest": ([-1.0], [0.5], [0.0]),
            "highest": ([0.5], [0.5], [0.0]),
            "above": ([2.0], [0.5], [0.0]),
            "between": ([0.25], [0.5], [0.0]),
        },
        alone=True,
        note="x, scale and zero point",
    ),
    *_of(
        "clamp(round)",
        "kink",
        "torch.clamp(x + (torch.round(x) - x).detach(), -2, 1)",
        {"lowest": [-2.0], "highest": [1.0]},
        jax="jnp.clip(x + jax.lax.stop_gradient(jnp.round(x) - x), -2., 1.)",
        tf="tf.clip_by_value(x + tf.stop_gradient(tf.round(x) - x), -2., 1.)",
        note="as quantisers are written by hand",
    ),
)
