"""Functions with an op of the table inside that nobody has written out. Who reads it says so before a user relies on it.

tests/rewrite/test_unreached.py holds this list against what `scripts/find_composites.py` found on every torch.
"""

from __future__ import annotations

import torch

from ..torch_forms import Form

# The recurrent ones are kernels of their own on CUDA, and cells in a loop on the CPU. The fused quantiser moves its observer as it
# quantises; the learnable ones give their scale a gradient, which no rule of these does.
_QUANTIZE = "fake_quantize_per_tensor_affine"  # whose nodes begin as all of these do
FORMS = [
    Form(name, switches=(switch,), owners=(torch, torch.ops.aten), overloads=overloads, hides=(hidden,))
    for name, switch, hidden, overloads in (
        ("rnn_relu", "relu", "relu", ("input", "data")),
        ("fused_moving_avg_obs_fake_quant", "fake_quantize", _QUANTIZE, ("default",)),
        ("_fake_quantize_learnable_per_tensor_affine", "fake_quantize", _QUANTIZE, ("default",)),
        ("_fake_quantize_learnable_per_channel_affine", "fake_quantize", _QUANTIZE, ("default",)),
    )
]
