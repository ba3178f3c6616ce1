"""Measure points of the kink table in JAX or TensorFlow, in an environment that has no torch.

python scripts/kinks_elsewhere.py jax|tensorflow POINTS.json RESULT.json

POINTS.json and RESULT.json are what scripts/collect_kinks.py writes and reads.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
Json = Any  # what a file of JSON holds
Function = Callable[..., Any]  # on the arrays of a framework
Rows = list[Json]
Gradient = Callable[[Function, Rows, list[int], list[float]], Rows]


def main() -> int:
    framework, points, result = sys.argv[1], json.loads(Path(sys.argv[2]).read_text()), Path(sys.argv[3])
    warnings.simplefilter("ignore")
    version, names, routes = {"jax": _jax, "tensorflow": _tensorflow}[framework]()
    outcomes: dict[str, object] = {}
    for at, point in enumerate(points):
        if at % 50 == 0:
            print(f"  point {at} of {len(points)}", file=sys.stderr, flush=True)
        if framework in point["expressions"]:
            by_route = {route: _outcome(point, framework, names, gradient) for route, gradient in routes.items()}
            outcomes[point["id"]] = by_route
    result.write_text(json.dumps({"version": version, "routes": list(routes), "outcomes": outcomes}))
    return 0


def _outcome(point: dict[str, Json], framework: str, names: dict[str, Json], gradient: Gradient) -> dict[str, Json]:
    arguments = ", ".join("xyzw"[: len(point["inputs"])])
    names = {**names, "math": math, "inf": math.inf, "nan": math.nan}
    try:
        f = eval(f"lambda {arguments}: {point['expressions'][framework]}", names)
        rows = gradient(f, _floats(point["inputs"]), point["differentiated"], point.get("weights", []))
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        return {"error": f"{type(error).__name__}: {re.sub('0x[0-9a-f]+', '0x…', first)[:160]}".rstrip(": ")}
    return {"gradient": [None if row is None else [_as_json(value) for value in row] for row in rows]}


def _floats(value: Json) -> Json:
    return [_floats(item) for item in value] if isinstance(value, list) else float(value)


def _as_json(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))


def _jax() -> tuple[str, dict[str, Json], dict[str, Gradient]]:
    import jax
    import jax.numpy as jnp

    def reverse(f: Function, inputs: Rows, wrt: list[int], weights: list[float]) -> Rows:
        arrays = [jnp.array(value, jnp.float32) for value in inputs]
        return [row.ravel().tolist() for row in jax.grad(summed(f, weights), tuple(wrt))(*arrays)]

    def summed(f: Function, weights: list[float]) -> Function:
        return lambda *arrays: (f(*arrays).ravel() * (jnp.array(weights) if weights else 1.0)).sum()

    return jax.__version__, {"jax": jax, "jnp": jnp, "jsp": jax.scipy}, {"eager": reverse}


def _tensorflow() -> tuple[str, dict[str, Json], dict[str, Gradient]]:
    import tensorflow as tf

    def reverse(f: Function, inputs: Rows, wrt: list[int], weights: list[float]) -> Rows:
        tensors = [tf.constant(value, tf.float32) for value in inputs]
        rows = gradients(f, tensors, wrt, weights)
        return [None if row is None else tf.reshape(tf.convert_to_tensor(row), [-1]).numpy().tolist() for row in rows]

    def gradients(f: Function, tensors: Rows, wrt: list[int], weights: list[float]) -> Rows:
        with tf.GradientTape() as tape:
            for tensor in tensors:
                tape.watch(tensor)
            flat = tf.reshape(f(*tensors), [-1])
            y = tf.reduce_sum(flat * (tf.constant(weights) if weights else 1.0))
        return tape.gradient(y, [tensors[at] for at in wrt])

    return tf.__version__, {"tf": tf}, {"eager": reverse}


if __name__ == "__main__":
    sys.exit(main())
