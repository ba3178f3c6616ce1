"""What a public module shows, and how a program writes the name of an op."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import cast

_SPELLED_ELSEWHERE = {
    "policy_loss": "policy.loss",
    **{name: f"codebook.{name}" for name in ("vector_quantize", "codebook_loss", "commitment_loss")},
}


def public_path(op: str) -> str:
    """How a program calls an op behind `pseudograd.`: `clamp`, `policy.loss`, `ops.leaky_relu`."""
    return _SPELLED_ELSEWHERE.get(op) or (op if op in import_module(__package__).__all__ else f"ops.{op}")


def dir_of(module: Mapping[str, object]) -> Callable[[], list[str]]:
    """The `__dir__` of a module: its public names, also those that are not loaded yet, and none of the modules that it imports."""
    public = cast("list[str]", module["__all__"])
    return lambda: sorted({*public, *(name for name in module if name.startswith("__"))})
