"""Powers, roots, logarithms and quotients where their slope is infinite or has no limit."""

from math import inf, nan

from ..point import family

_of = family("power, root and logarithm", elementwise=True)

POINTS = (
    *_of(
        "sqrt",
        "singular",
        "torch.sqrt(x)",
        {"0": [0.0], "-0": [-0.0], "inf": [inf]},
        jax="jnp.sqrt(x)",
        tf="tf.sqrt(x)",
    ),
    *_of(
        "rsqrt", "singular", "torch.rsqrt(x)", {"0": [0.0], "-0": [-0.0]}, jax="jax.lax.rsqrt(x)", tf="tf.math.rsqrt(x)"
    ),
    *_of(
        "log",
        "singular",
        "torch.log(x)",
        {"0": [0.0], "-0": [-0.0], "-1": [-1.0]},
        jax="jnp.log(x)",
        tf="tf.math.log(x)",
    ),
    *_of("log2", "singular", "torch.log2(x)", {"0": [0.0]}, jax="jnp.log2(x)"),
    *_of("log10", "singular", "torch.log10(x)", {"0": [0.0]}, jax="jnp.log10(x)"),
    *_of("log1p", "singular", "torch.log1p(x)", {"-1": [-1.0]}, jax="jnp.log1p(x)", tf="tf.math.log1p(x)"),
    *_of("exp", "guard", "torch.exp(x)", {"-inf": [-inf]}, jax="jnp.exp(x)", tf="tf.exp(x)"),
    *_of("reciprocal", "singular", "torch.reciprocal(x)", {"0": [0.0], "inf": [inf]}, jax="1 / x", tf="1 / x"),
    *_of(
        "div",
        "singular",
        "x / y",
        {"0/0": ([0.0], [0.0]), "1/0": ([1.0], [0.0]), "inf/inf": ([inf], [inf])},
        jax="x / y",
        tf="x / y",
    ),
    *_of(
        "divide_no_nan",
        "guard",
        "torch.where(y == 0, 0.0, x / y)",
        {"0/0": ([0.0], [0.0])},
        jax="jnp.where(y == 0, 0.0, x / y)",
        tf="tf.math.divide_no_nan(x, y)",
    ),
    *_of("x**0", "guard", "x ** 0", {"0": [0.0], "nan": [nan]}, jax="x ** 0", tf="x ** 0"),
    *_of("x**0.5", "singular", "x ** 0.5", {"0": [0.0], "-1": [-1.0]}, jax="x ** 0.5", tf="x ** 0.5"),
    *_of("x**1.0", "guard", "x ** 1.0", {"0": [0.0]}, jax="x ** 1.0", tf="x ** 1.0"),
    *_of("x**1.5", "guard", "x ** 1.5", {"0": [0.0]}, jax="x ** 1.5", tf="x ** 1.5"),
    *_of("x**2", "guard", "x ** 2", {"inf": [inf]}, jax="x ** 2", tf="x ** 2"),
    *_of("x**-1", "singular", "x ** -1.0", {"0": [0.0]}, jax="x ** -1.0", tf="x ** -1.0"),
    *_of("x**(1/3)", "singular", "x ** (1 / 3)", {"0": [0.0]}, jax="jnp.cbrt(x)", tf="x ** (1 / 3)", note="JAX's cbrt"),
    *_of(
        "0**x", "singular", "torch.pow(0.0, x)", {"0": [0.0], "1": [1.0]}, jax="jnp.power(0.0, x)", tf="tf.pow(0.0, x)"
    ),
    *_of(
        "pow",
        "singular",
        "torch.pow(x, y)",
        {
            "0,0": ([0.0], [0.0]),
            "0,1": ([0.0], [1.0]),
            "0,0.5": ([0.0], [0.5]),
            "0,2": ([0.0], [2.0]),
            "-1,2": ([-1.0], [2.0]),
            "1,inf": ([1.0], [inf]),
        },
        jax="jnp.power(x, y)",
        tf="tf.pow(x, y)",
    ),
    *_of("float_power", "singular", "torch.float_power(x, y)", {"0,0": ([0.0], [0.0])}, jax="jnp.float_power(x, y)"),
    *_of(
        "xlogy",
        "guard",
        "torch.xlogy(x, y)",
        {"0,0": ([0.0], [0.0]), "0,1": ([0.0], [1.0]), "0,-1": ([0.0], [-1.0]), "1,0": ([1.0], [0.0])},
        jax="jax.scipy.special.xlogy(x, y)",
        tf="tf.math.xlogy(x, y)",
    ),
    *_of(
        "xlog1py",
        "guard",
        "torch.special.xlog1py(x, y)",
        {"0,-1": ([0.0], [-1.0])},
        jax="jax.scipy.special.xlog1py(x, y)",
        tf="tf.math.xlog1py(x, y)",
    ),
    *_of("x*log(x)", "singular", "x * torch.log(x)", {"0": [0.0]}, jax="x * jnp.log(x)", tf="x * tf.math.log(x)"),
    *_of("entr", "singular", "torch.special.entr(x)", {"0": [0.0], "-1": [-1.0]}, jax="jax.scipy.special.entr(x)"),
    *_of("logit", "singular", "torch.logit(x)", {"0": [0.0], "1": [1.0]}, jax="jax.scipy.special.logit(x)"),
    *_of("logit(eps=0.25)", "kink", "torch.logit(x, 0.25)", {"eps": [0.25], "1-eps": [0.75], "0": [0.0]}),
    *_of("ldexp", "guard", "torch.ldexp(x, y)", {"0,inf": ([0.0], [inf]), "1,-inf": ([1.0], [-inf])}),
    *_of(
        "where(sqrt)",
        "guard",
        "torch.where(x > 0, torch.sqrt(x), x)",
        {"0": [0.0]},
        jax="jnp.where(x > 0, jnp.sqrt(x), x)",
        tf="tf.where(x > 0, tf.sqrt(x), x)",
    ),
    *_of(
        "where(where(sqrt))",
        "guard",
        "torch.where(x > 0, torch.sqrt(torch.where(x > 0, x, 1.0)), x)",
        {"0": [0.0]},
        jax="jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), x)",
        tf="tf.where(x > 0, tf.sqrt(tf.where(x > 0, x, 1.0)), x)",
        note="guarded twice, as one should",
    ),
    *_of(
        "sqrt(x+eps)", "guard", "torch.sqrt(x + 1e-8)", {"0": [0.0]}, jax="jnp.sqrt(x + 1e-8)", tf="tf.sqrt(x + 1e-8)"
    ),
    *_of(
        "sqrt(maximum(x,0))",
        "guard",
        "torch.maximum(x, torch.zeros_like(x)).sqrt()",
        {"0": [0.0]},
        jax="jnp.sqrt(jnp.maximum(x, 0.))",
        tf="tf.sqrt(tf.maximum(x, 0.))",
    ),
    *_of("mul", "guard", "torch.mul(x, y)", {"0,inf": ([0.0], [inf])}, jax="x * y", tf="x * y"),
)
