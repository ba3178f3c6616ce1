"""Functions with an op of the table inside that nobody has written out. Who reads it says so before a user relies on it.

tests/rewrite/test_unreached.py holds this list against what `scripts/find_composites.py` found on every torch.
"""

from __future__ import annotations

import torch

from ..forms import Form

# They give their scale and zero point a gradient, in the same formula as that of x. A rule is about x alone: written out with one they
# would learn x by it and the scale by torch's, which no quantiser does that was ever published. torch keeps them private.
FORMS = [
    Form(
        f"_fake_quantize_learnable_per_{what}_affine",
        switches=("fake_quantize",),
        owners=(torch, torch.ops.aten),
        hides=("fake_quantize_per_tensor_affine",),  # whose nodes begin as these do
    )
    for what in ("tensor", "channel")
]
