"""What a public module shows, and where names have gone."""

from collections.abc import Callable, Mapping
from importlib import import_module

# Names that were in the root of the package in 0.1, and work there with a warning until 1.0.
MOVED = {
    "policy_loss": "policy.loss",
    "policies": "policy.presets",
    "clip_report": "policy.clip_report",
    **{name: f"codebook.{name}" for name in ("vector_quantize", "codebook_loss", "commitment_loss")},
    **{name: f"familiar.{name}" for name in ("clamp_with_grad", "clamp_with_grad2", "clamp_with_grad_proposed")},
    **{name: f"familiar.{name}" for name in ("ClampWithGrad", "ClampWithGrad2", "ClampWithGradProposed")},
    **{name: f"familiar.{name}" for name in ("ClampWithGradThatWorks", "ReplaceGrad", "get_gradient")},
    **{name: f"ops.{name}" for name in ("leaky_relu", "hardsigmoid")},
}


def place_of(op: str) -> str:
    """Where an op is called behind `pseudograd.`. All stand in `ops`; what many need also in the root, which is short."""
    return MOVED.get(op) or (op if op in import_module(__package__).__all__ else f"ops.{op}")


def dir_of(module: Mapping[str, object]) -> Callable[[], list[str]]:
    """Its `__dir__`: the public names, those not yet loaded too, and no module that one of them happened to import."""
    public: list[str] = module["__all__"]  # type: ignore[assignment]
    return lambda: sorted({*public, *(name for name in module if name.startswith("__"))})
