"""The larger or smaller of two, where they are equal."""

from math import inf, nan

from ..point import family

_of = family("larger and smaller of two", elementwise=True)

POINTS = (
    *_of(
        "maximum",
        "tie",
        "torch.maximum(x, y)",
        {
            "tie": ([0.0], [0.0]),
            "0,-0": ([0.0], [-0.0]),
            "inf,inf": ([inf], [inf]),
            "nan,0": ([nan], [0.0]),
            "0,nan": ([0.0], [nan]),
            "nan,nan": ([nan], [nan]),
        },
        jax="jnp.maximum(x, y)",
        tf="tf.maximum(x, y)",
    ),
    *_of(
        "minimum",
        "tie",
        "torch.minimum(x, y)",
        {"tie": ([0.0], [0.0]), "nan,0": ([nan], [0.0])},
        jax="jnp.minimum(x, y)",
        tf="tf.minimum(x, y)",
    ),
    *_of(
        "maximum(x,0)",
        "kink",
        "torch.maximum(x, torch.zeros_like(x))",
        {"0": [0.0]},
        jax="jnp.maximum(x, 0.)",
        tf="tf.maximum(x, 0.)",
    ),
    *_of(
        "minimum(x,0)",
        "kink",
        "torch.minimum(x, torch.zeros_like(x))",
        {"0": [0.0]},
        jax="jnp.minimum(x, 0.)",
        tf="tf.minimum(x, 0.)",
    ),
    *_of("maximum(x,x)", "tie", "torch.maximum(x, x)", {"0": [0.0]}, jax="jnp.maximum(x, x)", tf="tf.maximum(x, x)"),
    *_of(
        "max(other)", "tie", "torch.max(x, y)", {"tie": ([0.0], [0.0])}, jax="jnp.maximum(x, y)", tf="tf.maximum(x, y)"
    ),
    *_of(
        "min(other)", "tie", "torch.min(x, y)", {"tie": ([0.0], [0.0])}, jax="jnp.minimum(x, y)", tf="tf.minimum(x, y)"
    ),
    *_of(
        "fmax",
        "tie",
        "torch.fmax(x, y)",
        {"tie": ([0.0], [0.0]), "nan,0": ([nan], [0.0]), "0,nan": ([0.0], [nan]), "nan,nan": ([nan], [nan])},
        jax="jnp.fmax(x, y)",
    ),
    *_of("fmin", "tie", "torch.fmin(x, y)", {"tie": ([0.0], [0.0]), "nan,nan": ([nan], [nan])}, jax="jnp.fmin(x, y)"),
    *_of(
        "where(x>=y)",
        "tie",
        "torch.where(x >= y, x, y)",
        {"tie": ([0.0], [0.0])},
        jax="jnp.where(x >= y, x, y)",
        tf="tf.where(x >= y, x, y)",
    ),
    *_of(
        "where(x>y)",
        "tie",
        "torch.where(x > y, x, y)",
        {"tie": ([0.0], [0.0])},
        jax="jnp.where(x > y, x, y)",
        tf="tf.where(x > y, x, y)",
    ),
    *_of(
        "logaddexp",
        "guard",
        "torch.logaddexp(x, y)",
        {"-inf,-inf": ([-inf], [-inf]), "inf,inf": ([inf], [inf]), "-inf,0": ([-inf], [0.0])},
        jax="jnp.logaddexp(x, y)",
    ),
    *_of(
        "logaddexp",
        "tie",
        "torch.logaddexp(x, y)",
        {"tie": ([0.0], [0.0])},
        jax="jnp.logaddexp(x, y)",
        note="smooth, and written with a maximum",
    ),
    *_of("logaddexp2", "guard", "torch.logaddexp2(x, y)", {"-inf,-inf": ([-inf], [-inf])}, jax="jnp.logaddexp2(x, y)"),
)
