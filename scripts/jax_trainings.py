"""Three small trainings at kinks, in JAX: python scripts/jax_trainings.py FILE, in an environment with jax 0.10.

`tests/rewrite/trainings.json` keeps what it prints; `tests/rewrite/test_frameworks.py` holds the same trainings in torch under
pin_edge("jax") against it. Each starts where the frameworks disagree, so that another convention trains another model.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from typing import Any

STEPS, RATE = 100, 0.05


def numbers(count: int, seed: float) -> list[float]:
    """Of no random generator, so that every framework has the same."""
    return [math.sin(seed + 1.7 * at) for at in range(count)]


def trained(loss: Callable[..., Any], parameters: list[Any]) -> list[float]:
    """The losses, and at last every parameter."""
    import jax

    both = jax.jit(jax.value_and_grad(lambda given: loss(*given)))
    found = []
    for _ in range(STEPS):
        value, grads = both(parameters)
        found.append(float(value))
        parameters = [one - RATE * grad for one, grad in zip(parameters, grads, strict=True)]
    return found + [float(one) for parameter in parameters for one in parameter.reshape(-1)]


def trainings() -> dict[str, list[float]]:
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp

    x = jnp.array(numbers(24, 0.3)).reshape(8, 3)
    target = jnp.array(numbers(8, 1.1))
    weights = jnp.array(numbers(3, 2.0))

    def gains(gain: Any, weight: Any) -> Any:
        """Gains that start at 0, under abs, and a fit by absolute errors."""
        return jnp.mean(jnp.abs((x * jnp.abs(gain)) @ weight - target)) + 0.01 * jnp.linalg.norm(gain, 1)

    def bounded(weight: Any, bias: Any) -> Any:
        """Parameters that start at their bounds, where clip gives a half."""
        found = x @ jnp.clip(weight, -1.0, 1.0) + jax.nn.hard_tanh(bias)
        return jnp.mean((found - 2.0 * target) ** 2)

    def ties(weight: Any, mix: Any) -> Any:
        """leaky_relu at 0, a maximum over equal entries, a median, and fmax of two equal ones."""
        hidden = jax.nn.leaky_relu(x[:, :, None] * weight, 0.1)
        largest = jnp.max(hidden, axis=2) @ jnp.fmax(mix[0], mix[1])
        return jnp.mean((largest - target) ** 2) + 0.1 * jnp.median(weight) + 0.1 * jnp.max(mix, axis=0).sum()

    return {
        "gains": trained(gains, [jnp.zeros(3), weights]),
        "bounded": trained(bounded, [jnp.array([1.0, -1.0, 1.0]), jnp.array([1.0])]),
        "ties": trained(ties, [jnp.zeros(5), jnp.ones((2, 3)) * 0.5]),
    }


if __name__ == "__main__":
    with open(sys.argv[1], "w") as file:
        json.dump(trainings(), file)
        file.write("\n")
