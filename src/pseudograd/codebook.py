"""Nearest codes with a gradient: `vector_quantize`, and the two losses that train its codebook."""

import torch.fx

from .ops.codebook import codebook_loss, commitment_loss, vector_quantize

__all__ = ["codebook_loss", "commitment_loss", "vector_quantize"]

for _name in __all__:  # as in `ops`
    torch.fx.wrap(_name)
del _name


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
