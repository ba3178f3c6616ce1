"""Pooling where a window has ties, padding or zeros."""

from math import inf, nan

from ..point import family

_of = family("pooling")
_WINDOW = "jax.lax.reduce_window(x.reshape({0}), -jnp.inf, jax.lax.max, ({1}), ({2}), 'VALID')"
_TIE = [[[1.0, 1.0, 0.0, 0.0]]]
_SQUARE = [[[[1.0, 1.0], [1.0, 1.0]]]]
_SAMPLES = "torch.tensor([[[0.5, 0.5]]], dtype=x.dtype, device=x.device)"

POINTS = (
    *_of(
        "max_pool1d(2)",
        "tie",
        "F.max_pool1d(x, 2)",
        {"tie": _TIE, "nan": [[[nan, nan]]], "-inf": [[[-inf, -inf]]]},
        jax=_WINDOW.format("1, 1, -1", "1, 1, 2", "1, 1, 2"),
        tf="tf.nn.max_pool1d(tf.reshape(x, [1, -1, 1]), 2, 2, 'VALID')",
    ),
    *_of(
        "max_pool1d(2,1)",
        "tie",
        "F.max_pool1d(x, 2, 1)",
        {"overlapping tie": [[[1.0, 1.0, 1.0]]]},
        jax=_WINDOW.format("1, 1, -1", "1, 1, 2", "1, 1, 1"),
        tf="tf.nn.max_pool1d(tf.reshape(x, [1, -1, 1]), 2, 1, 'VALID')",
    ),
    *_of(
        "max_pool2d(2)",
        "tie",
        "F.max_pool2d(x, 2)",
        {"tie": _SQUARE, "-inf": [[[[-inf, -inf], [-inf, -inf]]]]},
        jax=_WINDOW.format("1, 1, 2, 2", "1, 1, 2, 2", "1, 1, 2, 2"),
        tf="tf.nn.max_pool2d(tf.reshape(x, [1, 2, 2, 1]), 2, 2, 'VALID')",
    ),
    *_of(
        "max_pool2d(channels_last)",
        "tie",
        "F.max_pool2d(x.contiguous(memory_format=torch.channels_last), 2)",
        {"tie": _SQUARE},
    ),
    *_of("max_pool2d(padding)", "tie", "F.max_pool2d(x, 2, padding=1)", {"tie": _SQUARE}),
    *_of("max_pool2d(return_indices)", "tie", "F.max_pool2d(x, 2, return_indices=True)[0]", {"tie": _SQUARE}),
    *_of(
        "max_pool3d(2)",
        "tie",
        "F.max_pool3d(x.expand(1, 1, 2, 2, 2), 2)",
        {"tie": _SQUARE},
        tf="tf.nn.max_pool3d(tf.broadcast_to(tf.reshape(x, [1, 1, 2, 2, 1]), [1, 2, 2, 2, 1]), 2, 2, 'VALID')",
    ),
    *_of("adaptive_max_pool1d(1)", "tie", "F.adaptive_max_pool1d(x, 1)", {"tie": _TIE}),
    *_of("adaptive_max_pool2d(1)", "tie", "F.adaptive_max_pool2d(x, 1)", {"tie": _SQUARE}),
    *_of("adaptive_max_pool3d(1)", "tie", "F.adaptive_max_pool3d(x.unsqueeze(2), 1)", {"tie": _SQUARE}),
    *_of(
        "fractional_max_pool2d(2,1)",
        "tie",
        f"F.fractional_max_pool2d(x, 2, output_size=1, _random_samples={_SAMPLES})",
        {"tie": _SQUARE},
    ),
    *_of("lp_pool1d(2,2)", "singular", "F.lp_pool1d(x, 2.0, 2)", {"0": [[[0.0, 0.0]]], "one zero": [[[3.0, 0.0]]]}),
    *_of(
        "lp_pool1d(1,2)",
        "kink",
        "F.lp_pool1d(x, 1.0, 2)",
        {"0": [[[0.0, 0.0]]], "negative sum": [[[-1.0, -2.0]]]},
        note="torch clips the sum of the powers at 0",
    ),
    *_of("lp_pool2d(2,2)", "singular", "F.lp_pool2d(x, 2.0, 2)", {"0": [[[[0.0, 0.0], [0.0, 0.0]]]]}),
    *_of("lp_pool2d(3,2)", "singular", "F.lp_pool2d(x, 3.0, 2)", {"0": [[[[0.0, 0.0], [0.0, 0.0]]]]}),
    *_of("local_response_norm", "guard", "F.local_response_norm(x, 2, k=0.0)", {"0": [[[0.0], [0.0]]]}),
)
