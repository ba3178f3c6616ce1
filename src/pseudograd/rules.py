"""Rule objects: `rules.leaky(0.01)`, `rules.elastic(width=0.5)`, and every other rule of the table by its name.

A rule without parameters can be given by its name alone; `rules.inward()` is the same as "inward".
"""

from __future__ import annotations

from collections.abc import Callable

from .rule import OPS, RuleChoice, rule_named


def leaky(slope: float = 0.1) -> RuleChoice:
    """Outside: slope * grad. `slope` has no unit; finite and above 0."""
    return rule_named("leaky", slope=slope)


def elastic(width: float = 1.0) -> RuleChoice:
    """Outside: grad where it leads back, else -grad * min(1, distance / (width * (max - min))).

    `width` is in units of the range max - min; finite and above 0.
    """
    return rule_named("elastic", width=width)


def __getattr__(name: str) -> Callable[..., RuleChoice]:
    if name.startswith("_") or not any(name in op.rules for op in OPS.values()):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__dir__())}")

    def make(**parameters: float) -> RuleChoice:
        return rule_named(name, **parameters)

    return make


def __dir__() -> list[str]:
    return sorted({name for op in OPS.values() for name in op.rules})
