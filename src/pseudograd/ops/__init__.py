"""The public ops, one file per family. scripts/list_ops.py writes this list: each file names its ops in `__all__`."""

import torch.fx

from .absolute import abs
from .activations import gelu, hardsigmoid, leaky_relu, silu
from .bounds import clamp, clamp_, hardtanh, lower_bound, relu, relu6, upper_bound
from .codebook import codebook_loss, commitment_loss, vector_quantize
from .grad_transforms import clip_grad, reverse_grad, scale_grad
from .jump import jumprelu
from .policy import policy_loss
from .quantize import fake_quantize
from .registration import register_rule
from .replace import replace_grad, straight_through, surrogate
from .rounding import ceil, floor, round, trunc
from .steps import heaviside, sign

__all__ = ["abs", "ceil", "clamp", "clamp_", "clip_grad", "codebook_loss", "commitment_loss", "fake_quantize", "floor"]
__all__ += ["gelu", "hardsigmoid", "hardtanh", "heaviside", "jumprelu", "leaky_relu", "lower_bound", "policy_loss"]
__all__ += ["register_rule", "relu", "relu6", "replace_grad", "reverse_grad", "round", "scale_grad", "sign", "silu"]
__all__ += ["straight_through", "surrogate", "trunc", "upper_bound", "vector_quantize"]

# torch.fx keeps a call that is written pseudograd.ops.clamp as one node, with its rule. Otherwise it would trace torch's own functions
# inside the op, which have another gradient.
for _name in __all__:
    if _name != "register_rule":
        torch.fx.wrap(_name)
del _name
