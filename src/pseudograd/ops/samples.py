"""Values on which every family is tested: both sides of each edge, the edges themselves, and what is special in a dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def values(dtype: torch.dtype, *edges: float) -> Tensor:
    """Both sides of each edge, the edges and their neighbours, both zeros, subnormals, the largest values, infinities, NaN."""
    info = torch.finfo(dtype)
    tiny = info.tiny * info.eps
    near = [
        edge * factor + shift
        for edge in edges
        for factor in (1 - info.eps, 1, 1 + info.eps)
        for shift in (-0.25, 0, 0.25)
    ]
    far = [edge + sign * distance for edge in edges for distance in (0.5, 3.0, 40.0) for sign in (-1, 1)]
    special = [0.0, -0.0, tiny, -tiny, info.tiny, -info.tiny, info.max, info.min, torch.inf, -torch.inf, torch.nan]
    return torch.tensor([*near, *far, *special], dtype=torch.float64).to(dtype)
