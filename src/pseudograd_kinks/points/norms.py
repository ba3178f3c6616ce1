"""Norms and distances at zero, at ties, and at their guards."""

from collections.abc import Iterator
from math import inf, nan

from ..point import Point, family

_of = family("norm and distance")
_ZERO, _AXIS = [0.0, 0.0], [3.0, 0.0]
_NULL, _ONE = [[0.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]
_SIGNED = [1.0, -1.0, 0.0]


def _vector_norm(name: str, p: float, **places: object) -> Iterator[Point]:
    torch, jnp, tf = (
        ("inf", "jnp.inf", "inf")
        if p == inf
        else ("-inf", "-jnp.inf", "")
        if p == -inf
        else (f"{p:g}", f"{p:g}", f"{p:g}" if p else "")
    )
    return _of(
        f"vector_norm({name})",
        "singular",
        f"torch.linalg.vector_norm(x, {torch})",
        places,
        jax=f"jnp.linalg.vector_norm(x, ord={jnp})",
        tf=f"tf.norm(x, ord={tf})" if tf else "",
    )


POINTS = (
    *_vector_norm("0", 0, **{"0": _ZERO, "one zero": _AXIS}),
    *_vector_norm("0.5", 0.5, **{"0": _ZERO, "one zero": _AXIS}),
    *_vector_norm("1", 1, **{"0": _ZERO, "one zero": _AXIS}),
    *_vector_norm("1.5", 1.5, **{"0": _ZERO, "one zero": _AXIS}),
    *_vector_norm("2", 2, **{"0": _ZERO, "one zero": _AXIS, "inf": [inf, 1.0], "nan": [nan, 1.0]}),
    *_vector_norm("3", 3, **{"0": _ZERO, "one zero": _AXIS}),
    *_vector_norm("inf", inf, **{"0": _ZERO, "tie": _SIGNED}),
    *_vector_norm("-inf", -inf, **{"0": _ZERO, "tie": [1.0, -1.0, 2.0]}),
    *_of("norm", "singular", "torch.norm(x)", {"0": _ZERO}, jax="jnp.linalg.norm(x)", tf="tf.norm(x)"),
    *_of("norm(1)", "kink", "torch.norm(x, p=1)", {"0": _ZERO}, jax="jnp.linalg.norm(x, 1)", tf="tf.norm(x, ord=1)"),
    *_of(
        "norm(inf)",
        "tie",
        "torch.norm(x, p=inf)",
        {"tie": _SIGNED},
        jax="jnp.linalg.norm(x, jnp.inf)",
        tf="tf.norm(x, ord=inf)",
    ),
    *_of(
        "norm(dim)",
        "singular",
        "torch.norm(x, dim=1)",
        {"one row 0": [[0.0, 0.0], [3.0, 4.0]]},
        jax="jnp.linalg.norm(x, axis=1)",
        tf="tf.norm(x, axis=1)",
    ),
    *_of("_foreach_norm", "singular", "torch._foreach_norm([x])[0]", {"0": _ZERO}),
    *_of(
        "matrix_norm(fro)",
        "singular",
        "torch.linalg.matrix_norm(x)",
        {"0": _NULL},
        jax="jnp.linalg.matrix_norm(x)",
        tf="tf.norm(x, axis=[-2, -1])",
    ),
    *_of(
        "matrix_norm(nuc)",
        "singular",
        "torch.linalg.matrix_norm(x, 'nuc')",
        {"0": _NULL, "identity": _ONE},
        jax="jnp.linalg.matrix_norm(x, ord='nuc')",
    ),
    *_of(
        "matrix_norm(2)",
        "tie",
        "torch.linalg.matrix_norm(x, 2)",
        {"0": _NULL, "identity": _ONE},
        jax="jnp.linalg.matrix_norm(x, ord=2)",
        tf="tf.norm(x, ord=2, axis=[-2, -1])",
    ),
    *_of(
        "matrix_norm(-2)",
        "tie",
        "torch.linalg.matrix_norm(x, -2)",
        {"identity": _ONE},
        jax="jnp.linalg.matrix_norm(x, ord=-2)",
    ),
    *_of(
        "matrix_norm(1)",
        "tie",
        "torch.linalg.matrix_norm(x, 1)",
        {"tie": _ONE},
        jax="jnp.linalg.matrix_norm(x, ord=1)",
        tf="tf.norm(x, ord=1, axis=[-2, -1])",
    ),
    *_of(
        "matrix_norm(inf)",
        "tie",
        "torch.linalg.matrix_norm(x, inf)",
        {"tie": _ONE},
        jax="jnp.linalg.matrix_norm(x, ord=jnp.inf)",
        tf="tf.norm(x, ord=inf, axis=[-2, -1])",
    ),
    *_of("dist(2)", "singular", "torch.dist(x, y)", {"equal": (_AXIS, _AXIS)}),
    *_of("dist(1)", "kink", "torch.dist(x, y, 1)", {"equal": (_AXIS, _AXIS)}),
    *_of("dist(inf)", "tie", "torch.dist(x, y, inf)", {"tie": ([1.0, 1.0], _ZERO)}),
    *_of("dist(0)", "jump", "torch.dist(x, y, 0)", {"equal": (_AXIS, _AXIS)}),
    *_of("cdist(2)", "singular", "torch.cdist(x, y)", {"equal": ([_AXIS], [_AXIS])}),
    *_of(
        "cdist(2,matmul)",
        "singular",
        "torch.cdist(x, y, compute_mode='use_mm_for_euclid_dist')",
        {"equal": ([_AXIS], [_AXIS])},
    ),
    *_of("cdist(1)", "kink", "torch.cdist(x, y, 1.0)", {"equal": ([_AXIS], [_AXIS])}),
    *_of("cdist(inf)", "tie", "torch.cdist(x, y, inf)", {"equal": ([_AXIS], [_AXIS]), "tie": ([[1.0, 1.0]], [_ZERO])}),
    *_of(
        "cdist(0.5)",
        "singular",
        "torch.cdist(x, y, 0.5)",
        {"equal": ([_AXIS], [_AXIS]), "one equal": ([[1.0, 0.0]], [_ZERO])},
    ),
    *_of("cdist(1.5)", "singular", "torch.cdist(x, y, 1.5)", {"equal": ([_AXIS], [_AXIS])}),
    *_of("cdist(3)", "singular", "torch.cdist(x, y, 3.0)", {"equal": ([_AXIS], [_AXIS])}),
    *_of("pdist(2)", "singular", "F.pdist(x)", {"equal": [_AXIS, _AXIS]}),
    *_of("pdist(1)", "kink", "F.pdist(x, 1.0)", {"equal": [_AXIS, _AXIS]}),
    *_of("pdist(inf)", "tie", "F.pdist(x, inf)", {"tie": [[1.0, 1.0], _ZERO]}),
    *_of(
        "pairwise_distance",
        "guard",
        "F.pairwise_distance(x, y)",
        {"equal": ([_AXIS], [_AXIS])},
        note="1e-6 is added to the difference",
    ),
    *_of("pairwise_distance(eps=0)", "singular", "F.pairwise_distance(x, y, eps=0.0)", {"equal": ([_AXIS], [_AXIS])}),
    *_of("normalize", "guard", "F.normalize(x, dim=0)", {"0": _ZERO}, tf="tf.math.l2_normalize(x)", weights=[1, 0]),
    *_of("normalize(eps=5)", "kink", "F.normalize(x, dim=0, eps=5.0)", {"norm=eps": [3.0, 4.0]}, weights=[1, 0]),
    *_of("normalize(1)", "guard", "F.normalize(x, p=1.0, dim=0)", {"0": _ZERO}, weights=[1, 0]),
    *_of(
        "cosine_similarity",
        "guard",
        "F.cosine_similarity(x, y, dim=0)",
        {"0": (_ZERO, [1.0, 0.0]), "both 0": (_ZERO, _ZERO)},
        tf="-tf.keras.losses.cosine_similarity(x, y)",
    ),
    *_of(
        "cosine_similarity(eps=5)",
        "kink",
        "F.cosine_similarity(x, y, dim=0, eps=5.0)",
        {"norm=eps": ([3.0, 4.0], [6.0, 8.0])},
    ),
    *_of("renorm(2)", "kink", "torch.renorm(x, 2, 0, 5.0)", {"norm=max": [[3.0, 4.0]], "0": [_ZERO]}, weights=[1, 0]),
    *_of("_weight_norm", "singular", "torch._weight_norm(x, y, 0)", {"0": ([_ZERO], [[1.0]])}),
    *_of("rms_norm(eps=0)", "singular", "F.rms_norm(x, (2,), eps=0.0)", {"0": _ZERO}, weights=[1, 0]),
    *_of("rms_norm", "guard", "F.rms_norm(x, (2,))", {"0": _ZERO}, weights=[1, 0], note="eps is that of the dtype"),
    *_of("layer_norm", "guard", "F.layer_norm(x, (2,))", {"constant": [1.0, 1.0]}, weights=[1, 0]),
    *_of("layer_norm(eps=0)", "singular", "F.layer_norm(x, (2,), eps=0.0)", {"constant": [1.0, 1.0]}, weights=[1, 0]),
    *_of("group_norm(eps=0)", "singular", "F.group_norm(x, 1, eps=0.0)", {"constant": [[1.0, 1.0]]}, weights=[1, 0]),
)
