"""Choose the gradient of a clamp, the same on every torch, and see what the choice does.

import pseudograd as pg

y = pg.clamp(x, 0, 1)                            # torch.clamp, but a gradient that leads back inside passes
y = pg.clamp(x, 0, 1, rule="zero", edge="open")  # the true gradient, the same on every torch
"""

import sys
from typing import TYPE_CHECKING

if sys.argv[:1] == ["-m"]:
    from pseudograd_notices.command_line import handle_ctrl_c_in_import

    handle_ctrl_c_in_import()
try:
    import torch.fx
except ModuleNotFoundError as error:
    from pseudograd_notices.command_line import run_without_torch

    run_without_torch(error)
    raise

from . import ops
from .ops import (
    abs,
    ceil,
    clamp,
    clamp_,
    clip_grad,
    fake_quantize,
    floor,
    gelu,
    hardtanh,
    heaviside,
    jumprelu,
    lower_bound,
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
)
from .public_names import dir_of

if TYPE_CHECKING:
    from . import codebook, familiar, nn, optim, policy, rules
    from .comparison.compare import compare
    from .comparison.comparison import Comparison as Comparison
    from .comparison.tune import Tuning as Tuning
    from .comparison.tune import tune
    from .diagnosis import diagnose
    from .diagnosis.context import Diagnosis as Diagnosis
    from .look.audit import Audit as Audit
    from .look.audit import audit
    from .look.gradient import gradient
    from .look.plot import plot
    from .rewrite.convert import convert
    from .rewrite.override import override
    from .rewrite.pin_edge import pin_edge

__all__ = ["__version__", "audit", "codebook", "compare", "convert", "diagnose", "familiar", "gradient", "nn", "optim"]
__all__ += ["override", "pin_edge", "plot", "policy", "register_rule", "rules", "straight_through", "surrogate", "tune"]
__all__ += ["abs", "ceil", "clamp", "clamp_", "clip_grad", "fake_quantize", "floor", "gelu", "hardtanh", "heaviside"]
__all__ += ["jumprelu", "lower_bound", "relu", "relu6", "replace_grad", "reverse_grad", "round", "scale_grad", "sign"]
__all__ += ["silu", "trunc", "upper_bound"]
# As in `ops`, for calls that are written pseudograd.clamp. Only names that are public here: torch looks for each of them in every trace,
# and without it every torch.compile would fail.
for _name in ops.__all__:
    if _name != "register_rule" and _name in globals():
        torch.fx.wrap(_name)
del _name

__version__: str


# The module of each name that is loaded at its first use: most programs plot, rewrite and audit nothing.
_NAMES = {
    "Audit": ".look.audit",
    "Comparison": ".comparison.comparison",
    "Diagnosis": ".diagnosis.context",
    "Tuning": ".comparison.tune",
    "audit": ".look.audit",
    "compare": ".comparison.compare",
    "convert": ".rewrite.convert",
    "diagnose": ".diagnosis",
    "gradient": ".look.gradient",
    "override": ".rewrite.override",
    "pin_edge": ".rewrite.pin_edge",
    "plot": ".look.plot",
    "tune": ".comparison.tune",
}
_MODULES = ("codebook", "familiar", "nn", "optim", "policy", "rules")


def _load(name: str) -> object:
    from importlib import import_module

    if name == "__version__":
        from pseudograd_notices import own_version

        return own_version()
    if name in _NAMES:
        from .listen.harmless import quietly

        # Our modules make tensors, which torch.device("meta") and other modes of the program must not see.
        with quietly():
            globals()[name] = value = getattr(import_module(_NAMES[name], __name__), name)
        return value
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:  # with it a type checker would accept every name
    __getattr__ = _load


__dir__ = dir_of(globals())
