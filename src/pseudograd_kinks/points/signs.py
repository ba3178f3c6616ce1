"""Absolute values and signs, of real and of complex numbers."""

from math import nan

from ..point import family

_of = family("absolute value and sign", elementwise=True)

POINTS = (
    *_of("abs", "kink", "torch.abs(x)", {"0": [0.0], "-0": [-0.0], "nan": [nan]}, jax="jnp.abs(x)", tf="tf.abs(x)"),
    *_of("_foreach_abs", "kink", "torch._foreach_abs([x])[0]", {"0": [0.0]}),
    *_of(
        "abs(complex)",
        "singular",
        "torch.abs(torch.view_as_complex(x))",
        {"0": [[0.0, 0.0]]},
        jax="jnp.abs(jax.lax.complex(x[..., 0], x[..., 1]))",
        tf="tf.abs(tf.complex(x[..., 0], x[..., 1]))",
        alone=True,
        note="x is a pair of real numbers",
    ),
    *_of("sign", "jump", "torch.sign(x)", {"0": [0.0], "-0": [-0.0]}, jax="jnp.sign(x)", tf="tf.sign(x)"),
    *_of("sgn", "jump", "torch.sgn(x)", {"0": [0.0]}),
    *_of(
        "sgn(complex)",
        "jump",
        "torch.view_as_real(torch.sgn(torch.view_as_complex(x)))",
        {"0": [[0.0, 0.0]]},
        weights=[1, 2],
        alone=True,
        note="x is a pair of real numbers",
    ),
    *_of("angle", "jump", "torch.angle(x)", {"0": [0.0]}, jax="jnp.angle(x)", tf="tf.math.angle(x)"),
    *_of(
        "angle(complex)",
        "singular",
        "torch.angle(torch.view_as_complex(x))",
        {"0": [[0.0, 0.0]]},
        jax="jnp.angle(jax.lax.complex(x[..., 0], x[..., 1]))",
        tf="tf.math.angle(tf.complex(x[..., 0], x[..., 1]))",
        alone=True,
        note="x is a pair of real numbers",
    ),
    *_of(
        "angle(complex)",
        "jump",
        "torch.angle(torch.view_as_complex(x))",
        {"-1": [[-1.0, 0.0]]},
        jax="jnp.angle(jax.lax.complex(x[..., 0], x[..., 1]))",
        tf="tf.math.angle(tf.complex(x[..., 0], x[..., 1]))",
        alone=True,
        note="x is a pair of real numbers",
    ),
    *_of(
        "sqrt(complex)",
        "singular",
        "torch.view_as_real(torch.sqrt(torch.view_as_complex(x)))",
        {"0": [[0.0, 0.0]]},
        weights=[1, 2],
        alone=True,
        note="x is a pair of real numbers",
    ),
    *_of(
        "log(complex)",
        "singular",
        "torch.view_as_real(torch.log(torch.view_as_complex(x)))",
        {"0": [[0.0, 0.0]]},
        weights=[1, 2],
        alone=True,
        note="x is a pair of real numbers",
    ),
    *_of(
        "polar", "singular", "torch.view_as_real(torch.polar(x, y))", {"0": ([0.0], [0.5])}, weights=[1, 2], alone=True
    ),
    *_of(
        "copysign",
        "kink",
        "torch.copysign(x, y)",
        {"x=0": ([0.0], [1.0]), "x=-0": ([-0.0], [1.0])},
        jax="jnp.copysign(x, y)",
    ),
    *_of(
        "copysign",
        "jump",
        "torch.copysign(x, y)",
        {"y=0": ([2.0], [0.0]), "y=-0": ([2.0], [-0.0])},
        jax="jnp.copysign(x, y)",
    ),
    *_of("heaviside", "jump", "torch.heaviside(x, y)", {"0": ([0.0], [0.5])}, jax="jnp.heaviside(x, y)", wrt=(0,)),
    *_of("max(x,-x)", "kink", "torch.maximum(x, -x)", {"0": [0.0]}, jax="jnp.maximum(x, -x)", tf="tf.maximum(x, -x)"),
    *_of("sqrt(x*x)", "singular", "(x * x).sqrt()", {"0": [0.0]}, jax="jnp.sqrt(x * x)", tf="tf.sqrt(x * x)"),
)
