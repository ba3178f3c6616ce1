"""Numbers and names inside sentences, as every text of the library writes them."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, singular: str, many: str | None = None) -> str:
    return f"{number:,} {singular if number == 1 else many or singular + 's'}"


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def shortened(names: Sequence[str], most: int = 6) -> str:
    """The first names, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def percent(share: float) -> str:
    """A share as a person reads it. Only a share of 1 becomes 100 %, and only a share of 0 becomes 0 %."""
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    return f"{min(max(100 * share, 0.1), 99.9):.1f} %"
