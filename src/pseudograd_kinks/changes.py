"""Why a gradient at a kink is not what it was: a sentence for each change between two measured versions of torch."""

from __future__ import annotations

from fnmatch import fnmatchcase

from pseudograd.record import Record


class Change(Record):
    """since: the first measured version that has it. ids: the points, as patterns with *. sentence: what changed, and by what.

    Of several that fit a point the first one counts.
    """

    since: str
    ids: tuple[str, ...]
    sentence: str

    def is_of(self, id: str) -> bool:
        return any(fnmatchcase(id, pattern) for pattern in self.ids)


def sentence_for(id: str, since: str) -> str | None:
    return next((change.sentence for change in CHANGES if change.since == since and change.is_of(id)), None)


_BOUNDS = "pytorch#191142"
CHANGES: tuple[Change, ...] = (
    Change(
        "2.14",
        ("fmax@*nan*", "fmin@*nan*"),
        f"With a NaN among them both arguments get the whole gradient, though the forward ignores the NaN ({_BOUNDS}).",
    ),
    Change(
        "2.14",
        ("*nan*",),
        f"NaN in x or in a bound counts as torch's forward has it, and no longer blocks the gradient of every input ({_BOUNDS}).",
    ),
    Change(
        "2.14",
        ("clamp(tensors*", "clamp_(tensors*", "clamp*(*tensor)@*"),
        f"Between tensors a tie is shared between x and the bound, where it went to x; equal bounds pass it to min ({_BOUNDS}).",
    ),
    Change("2.14", ("fmax@*", "fmin@*"), f"A tie is shared, where it went to the first argument ({_BOUNDS})."),
    Change(
        "2.14",
        ("clamp*", "clip*", "lax.clamp*", "_foreach_clamp*", "*(clamp(*"),
        f"At a bound that is a number the gradient is 0, where it was 1 ({_BOUNDS}).",
    ),
    Change(
        "2.14",
        ("*_loss*", "normalize*"),
        f"It computes a clamp_min inside, whose gradient at its bound is 0, where it was 1 ({_BOUNDS}).",
    ),
    Change(
        "2.14",
        ("quantile*",),
        "The CPU gives the gradient to other entries of a tie; this fits pytorch#188394, a partial selection in place of a sort.",
    ),
    Change("2.10", ("atan2@0,0",), "The gradient at (0, 0) is 0, where it was NaN (pytorch#166787)."),
    Change("2.13", ("aminmax*",), "aminmax has a gradient, shared among equal entries (pytorch#175215)."),
    Change(
        "2.15",
        ("fmax@*nan*", "fmin@*nan*"),
        "fmax and fmin give the gradient to the argument that is not NaN again, as their forward does (pytorch#193035).",
    ),
)
