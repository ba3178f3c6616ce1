"""Nearest codes with a gradient: `vector_quantize`, and the two losses that train its codebook."""

import torch.fx

from .ops.codebook import codebook_loss, commitment_loss, vector_quantize
from .public_names import dir_of

__all__ = ["codebook_loss", "commitment_loss", "vector_quantize"]

for _name in __all__:  # as in `ops`
    torch.fx.wrap(_name)
del _name


__dir__ = dir_of(globals())
