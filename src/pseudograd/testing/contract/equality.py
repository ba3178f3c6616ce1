"""Assert that tensors have the same bits, or the same values. An error says the first difference.

Only rules that use exp or tanh have a tolerance, of a few units in the last place: a loop in vectors rounds these otherwise than the
loop over the last few entries.
"""

import torch
from torch import Tensor

_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def differing_bits(ours: Tensor, theirs: Tensor) -> Tensor:
    """Positions where the bit patterns differ. All NaNs are equal, because their payload depends on the vector unit."""
    _assert_alike(ours, theirs)
    a, b = ours.detach().contiguous(), theirs.detach().contiguous()
    if not a.is_floating_point():
        return a != b
    return (a.view(_BITS[a.itemsize]) != b.view(_BITS[b.itemsize])) & ~(a.isnan() & b.isnan())


def differing_values(ours: Tensor, theirs: Tensor, ulps: int = 0, term_size: Tensor | float = 0.0) -> Tensor:
    """Positions where the numbers differ by more than `ulps` units in the last place. 0 equals -0, and NaN equals NaN.

    term_size: the size of terms of a sum that cancelled. Where it is larger than the number, it gives the unit in the last place.
    """
    _assert_alike(ours, theirs)
    differ = (ours != theirs) & ~(ours.isnan() & theirs.isnan())
    if ulps:
        info = torch.finfo(ours.dtype)
        size = theirs.double().abs().maximum(torch.as_tensor(term_size, dtype=torch.float64).abs())
        unit = (info.eps * size).clamp(min=info.tiny)  # an intermediate result that is subnormal may become 0
        differ &= ~((ours.double() - theirs.double()).abs() <= ulps * unit)
    return differ


def _assert_alike(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape, f"shape {tuple(ours.shape)} instead of {tuple(theirs.shape)}"
    assert ours.dtype == theirs.dtype, f"{ours.dtype} instead of {theirs.dtype}"
    assert ours.device == theirs.device, f"{ours.device} instead of {theirs.device}"


def assert_same_bits(ours: Tensor, theirs: Tensor, what: str) -> None:
    wrong = differing_bits(ours, theirs)
    assert not wrong.any(), f"{what}: {_describe_first(wrong, ours, theirs)}"


def assert_same_values(
    ours: Tensor | None,
    theirs: Tensor | None,
    what: str,
    *,
    ulps: int = 0,
    term_size: Tensor | float = 0.0,
    **shown: Tensor,
) -> None:
    """The numbers are equal. None counts as zeros, as in autograd."""
    if ours is None or theirs is None:
        other = theirs if ours is None else ours
        assert other is None or not other.count_nonzero(), f"{what}: one of the two is None, the other is not zero"
        return
    ours, theirs = ours.detach(), theirs.detach()
    wrong = differing_values(ours, theirs, ulps, term_size)
    assert not wrong.any(), f"{what}: {_describe_first(wrong, ours, theirs, **shown)}"


def _describe_first(wrong: Tensor, ours: Tensor, theirs: Tensor, **shown: Tensor) -> str:
    where = tuple(wrong.nonzero()[0].tolist())
    context = "".join(f", {name}={values[where].item()!r}" for name, values in shown.items())
    return f"{int(wrong.sum())} differ, first at {where}: {ours[where].item()!r} instead of {theirs[where].item()!r}{context}"
