"""Choose the gradient of a clamp, the same on every torch, and see what the choice does.

import pseudograd as pg

y = pg.clamp(x, 0, 1)                            # torch.clamp, but a gradient that leads back inside passes
y = pg.clamp(x, 0, 1, rule="zero", edge="open")  # the true gradient, the same on every torch
"""

from typing import TYPE_CHECKING, Any

import torch.fx

from . import ops
from .ops import (
    ClampWithGrad,
    ClampWithGrad2,
    ClampWithGradProposed,
    ClampWithGradThatWorks,
    ReplaceGrad,
    abs,
    ceil,
    clamp,
    clamp_,
    clamp_with_grad,
    clamp_with_grad2,
    clamp_with_grad_proposed,
    clip_grad,
    codebook_loss,
    commitment_loss,
    fake_quantize,
    floor,
    gelu,
    hardsigmoid,
    hardtanh,
    heaviside,
    jumprelu,
    leaky_relu,
    lower_bound,
    policy_loss,
    register_rule,
    relu,
    relu6,
    replace_grad,
    reverse_grad,
    round,
    scale_grad,
    sign,
    silu,
    straight_through,
    surrogate,
    trunc,
    upper_bound,
    vector_quantize,
)

if TYPE_CHECKING:
    from . import nn, optim, rules
    from .analysis import get_gradient, gradient, plot
    from .analysis.auditing import audit
    from .analysis.clipping import clip_report
    from .diagnosis import diagnose
    from .ops.policy_rows import policies
    from .rewrite import convert, override, pin_edge
    from .trials import compare, tune

__all__ = [
    "ClampWithGrad",
    "ClampWithGrad2",
    "ClampWithGradProposed",
    "ClampWithGradThatWorks",
    "ReplaceGrad",
    "__version__",
    "abs",
    "audit",
    "ceil",
    "clamp",
    "clamp_",
    "clamp_with_grad",
    "clamp_with_grad2",
    "clamp_with_grad_proposed",
    "clip_grad",
    "clip_report",
    "codebook_loss",
    "commitment_loss",
    "compare",
    "convert",
    "diagnose",
    "fake_quantize",
    "floor",
    "gelu",
    "get_gradient",
    "gradient",
    "hardsigmoid",
    "hardtanh",
    "heaviside",
    "jumprelu",
    "leaky_relu",
    "lower_bound",
    "nn",
    "optim",
    "override",
    "pin_edge",
    "plot",
    "policies",
    "policy_loss",
    "register_rule",
    "relu",
    "relu6",
    "replace_grad",
    "reverse_grad",
    "round",
    "rules",
    "scale_grad",
    "sign",
    "silu",
    "straight_through",
    "surrogate",
    "trunc",
    "tune",
    "upper_bound",
    "vector_quantize",
]
# As in `ops`, for calls that are written pseudograd.clamp. A name of `ops` that is not public here is none of this module: torch
# would look for it in every trace, and every torch.compile would fail.
for _name in ops.__all__:
    if _name.islower() and _name != "register_rule" and _name in globals():
        torch.fx.wrap(_name)
del _name

__version__: str


_ELSEWHERE = {
    "audit": ".analysis.auditing",
    "clip_report": ".analysis.clipping",
    "compare": ".trials",
    "convert": ".rewrite",
    "diagnose": ".diagnosis",
    "get_gradient": ".analysis",
    "gradient": ".analysis",
    "override": ".rewrite",
    "pin_edge": ".rewrite",
    "plot": ".analysis",
    "policies": ".ops.policy_rows",
    "tune": ".trials",
}


def _on_demand(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # it stands once, in pyproject.toml

        return version("pseudograd")
    if name in _ELSEWHERE:  # most programs plot, rewrite and audit nothing
        from importlib import import_module

        globals()[name] = found = getattr(import_module(_ELSEWHERE[name], __name__), name)
        return found
    if name in ("nn", "optim", "rules"):
        from importlib import import_module  # a script that clamps by a rule's name needs none of them

        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:  # to a type checker any name would be there
    __getattr__ = _on_demand


def __dir__() -> list[str]:
    """The public names, those not yet loaded too, and no module that one of them happened to import."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
