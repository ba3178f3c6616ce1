"""Two meanings of equal: the same bits, or the same values. The only tolerance is that of rules
which use exp: a few units in the last place, because vector loops and their remainders round it differently.
"""

import torch
from torch import Tensor

_BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


def differing_bits(ours: Tensor, theirs: Tensor) -> Tensor:
    """Positions where the bit patterns differ. One NaN is like another: their payload depends on the vector unit."""
    assert ours.shape == theirs.shape, f"shape {tuple(ours.shape)} instead of {tuple(theirs.shape)}"
    assert ours.dtype == theirs.dtype, f"{ours.dtype} instead of {theirs.dtype}"
    assert ours.device == theirs.device
    a, b = ours.detach().contiguous(), theirs.detach().contiguous()
    if a.dtype not in _BITS:
        return a != b
    return (a.view(_BITS[a.dtype]) != b.view(_BITS[b.dtype])) & ~(a.isnan() & b.isnan())


def differing_values(ours: Tensor, theirs: Tensor, ulps: int = 0, of: Tensor | float = 0.0) -> Tensor:
    """Positions where the numbers differ, by more than `ulps` units in the last place; 0 equals -0, NaN equals NaN.

    The units are those of `of`, where that is larger than the number: of what cancelled.
    """
    assert ours.shape == theirs.shape, f"shape {tuple(ours.shape)} instead of {tuple(theirs.shape)}"
    assert ours.dtype == theirs.dtype, f"{ours.dtype} instead of {theirs.dtype}"
    differ = (ours != theirs) & ~(ours.isnan() & theirs.isnan())
    if ulps:
        info = torch.finfo(ours.dtype)
        size = theirs.double().abs().maximum(torch.as_tensor(of, dtype=torch.float64).abs())
        unit = (info.eps * size).clamp(min=info.tiny)  # subnormals may be flushed between the steps
        differ &= ~((ours.double() - theirs.double()).abs() <= ulps * unit)
    return differ
