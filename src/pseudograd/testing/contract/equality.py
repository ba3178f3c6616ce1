"""The same bits, or the same values, asserted with the first difference."""

from torch import Tensor

from ..measure.differences import differing_bits, differing_values


def assert_same_bits(ours: Tensor, theirs: Tensor, what: str) -> None:
    wrong = differing_bits(ours, theirs)
    assert not wrong.any(), f"{what}: {_first(wrong, ours, theirs)}"


def assert_same_values(
    ours: Tensor | None, theirs: Tensor | None, what: str, *, ulps: int = 0, of: Tensor | float = 0.0, **shown: Tensor
) -> None:
    """Equal numbers; None counts as zeros, because that is what autograd means by it."""
    if ours is None or theirs is None:
        other = theirs if ours is None else ours
        assert other is None or not other.count_nonzero(), f"{what}: one of the two is None, the other is not zero"
        return
    ours, theirs = ours.detach(), theirs.detach()
    wrong = differing_values(ours, theirs, ulps, of)
    assert not wrong.any(), f"{what}: {_first(wrong, ours, theirs, **shown)}"


def _first(wrong: Tensor, ours: Tensor, theirs: Tensor, **shown: Tensor) -> str:
    where = tuple(wrong.nonzero()[0].tolist())
    context = "".join(f", {name}={values[where].item()!r}" for name, values in shown.items())
    return f"{int(wrong.sum())} differ, first at {where}: {ours[where].item()!r} instead of {theirs[where].item()!r}{context}"
