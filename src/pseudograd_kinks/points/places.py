"""Sampling at pixel borders, and scattering and segments with ties."""

from collections.abc import Iterator

from ..point import Point, family

_of = family("sampling and scattering")
_IMAGE = [[[[1.0, 2.0, 4.0]]]]
_LENGTHS = "lengths=torch.tensor([3], device=x.device)"
_ROWS = [[3.0, 4.0], [0.0, 1.0]]


def _grid(mode: str, padding: str, **places: float) -> Iterator[Point]:
    expression = f"F.grid_sample(y, x, mode={mode!r}, padding_mode={padding!r}, align_corners=True)"
    at = {place: ([[[[value, 0.0]]]], _IMAGE) for place, value in places.items()}
    return _of(f"grid_sample({mode},{padding})", "kink", expression, at, wrt=(0,), note="to the grid")


def _scatter(reduce: str, value: float, include: bool, **how: object) -> Iterator[Point]:
    expression = (
        f"torch.scatter_reduce(x, 0, torch.tensor([0, 0], device=x.device), y, {reduce!r}, include_self={include})"
    )
    name = f"scatter_reduce({reduce}{'' if include else ',without self'})"
    return _of(name, "tie", expression, {"tie": ([value], [value, value])}, **how)


POINTS = (
    *_grid("bilinear", "zeros", **{"a pixel": 0.0, "the last pixel": 1.0, "one outside": 2.0}),
    *_grid("bilinear", "border", **{"a pixel": 0.0, "the last pixel": 1.0, "the first pixel": -1.0}),
    *_grid("bilinear", "reflection", **{"the last pixel": 1.0, "the first pixel": -1.0}),
    *_grid("nearest", "zeros", **{"between pixels": 0.5}),
    *_grid("bicubic", "border", **{"the last pixel": 1.0}),
    *_scatter("amax", 1.0, True, jax="x.at[jnp.array([0, 0])].max(y)"),
    *_scatter("amax", 1.0, False),
    *_scatter("amin", 1.0, True, jax="x.at[jnp.array([0, 0])].min(y)"),
    *_scatter("prod", 0.0, True, jax="x.at[jnp.array([0, 0])].multiply(y)"),
    *_scatter("mean", 1.0, True),
    *_of(
        "scatter_reduce(prod,one zero)",
        "singular",
        "torch.scatter_reduce(x, 0, torch.tensor([0, 0], device=x.device), y, 'prod')",
        {"0": ([2.0], [0.0, 3.0])},
    ),
    *_of(
        "index_reduce(amax)",
        "tie",
        "torch.index_reduce(x, 0, torch.tensor([0, 0], device=x.device), y, 'amax')",
        {"tie": ([1.0], [1.0, 1.0])},
        jax="x.at[jnp.array([0, 0])].max(y)",
    ),
    *_of(
        "index_reduce(amin)",
        "tie",
        "torch.index_reduce(x, 0, torch.tensor([0, 0], device=x.device), y, 'amin')",
        {"tie": ([1.0], [1.0, 1.0])},
        jax="x.at[jnp.array([0, 0])].min(y)",
    ),
    *_of(
        "index_reduce(prod)",
        "singular",
        "torch.index_reduce(x, 0, torch.tensor([0, 0], device=x.device), y, 'prod')",
        {"two zeros": ([2.0], [0.0, 0.0]), "one zero": ([2.0], [0.0, 3.0])},
    ),
    *_of(
        "segment_reduce(max)",
        "tie",
        f"torch.segment_reduce(x, 'max', {_LENGTHS})",
        {"tie": [1.0, 1.0, 0.0]},
        jax="jax.ops.segment_max(x, jnp.array([0, 0, 0]), 1)",
        tf="tf.math.segment_max(x, [0, 0, 0])",
    ),
    *_of(
        "segment_reduce(min)",
        "tie",
        f"torch.segment_reduce(x, 'min', {_LENGTHS})",
        {"tie": [0.0, 0.0, 1.0]},
        jax="jax.ops.segment_min(x, jnp.array([0, 0, 0]), 1)",
        tf="tf.math.segment_min(x, [0, 0, 0])",
    ),
    *_of(
        "segment_reduce(prod)",
        "singular",
        f"torch.segment_reduce(x, 'prod', {_LENGTHS})",
        {"two zeros": [0.0, 0.0, 3.0], "one zero": [0.0, 2.0, 3.0]},
        jax="jax.ops.segment_prod(x, jnp.array([0, 0, 0]), 1)",
        tf="tf.math.segment_prod(x, [0, 0, 0])",
    ),
    *_of(
        "segment_reduce(mean)",
        "guard",
        "torch.segment_reduce(x, 'mean', lengths=torch.tensor([0, 2], device=x.device))",
        {"an empty segment": [1.0, 2.0]},
        tf="tf.math.segment_mean(x, [1, 1])",
        weights=[0, 1],
    ),
    *_of(
        "embedding(max_norm=5)",
        "kink",
        "F.embedding(torch.tensor([0], device=x.device), x * 1, max_norm=5.0)",
        {"norm=max": _ROWS},
        weights=[1, 0],
    ),
    *_of(
        "embedding_bag(max)",
        "tie",
        "F.embedding_bag(torch.tensor([[0, 1]], device=x.device), x, mode='max')",
        {"tie": [[1.0, 0.0], [1.0, 1.0]]},
        weights=[1, 2],
    ),
    *_of(
        "gather(argmax)",
        "tie",
        "torch.gather(x, 0, x.argmax(0, keepdim=True))",
        {"tie": [1.0, 1.0, 0.0]},
        jax="x[jnp.argmax(x)]",
        tf="tf.gather(x, tf.argmax(x))",
    ),
    *_of(
        "unique", "tie", "torch.unique(x)", {"tie": [1.0, 1.0, 0.0]}, jax="jnp.unique(x, size=2)", tf="tf.unique(x)[0]"
    ),
    *_of(
        "masked_fill",
        "guard",
        "torch.softmax(x.masked_fill(x < 0, -inf), 0)",
        {"all masked": [-1.0, -2.0]},
        jax="jax.nn.softmax(jnp.where(x < 0, -jnp.inf, x))",
        tf="tf.nn.softmax(tf.where(x < 0, -inf, x))",
        weights=[1, 2],
    ),
    *_of(
        "interpolate(bicubic)",
        "guard",
        "F.interpolate(x, scale_factor=2.0, mode='bicubic').clamp(0, 1)",
        {"at the bounds": [[[[0.0, 1.0]]]]},
        note="an image resized and clamped, as it is written by hand",
    ),
)
