"""pin_edge: what torch's own clamps do exactly at a bound, and nothing else."""

from __future__ import annotations

from ..errors import unknown_name
from ..geometry import SHARES
from ..torch_eras import ERAS, era_named, installed_era
from ..torch_forms import EDGE
from . import edges
from .context import Rewriting
from .mode import Replacement


def pin_edge(edge: str) -> Rewriting:
    """Fix what torch's clamps do exactly at a bound, so that a program trains on one torch as it did on another.

    Forward:  torch's values, bit for bit.
    Backward: torch's, but at the edge of clamp, clip, clamp_min, clamp_max (in place too), fmin and fmax. relu, hardtanh, minimum and
        maximum are left alone: every torch agrees on them. Saves what torch saves, or, of 4096 elements or more
        on CPU, one to three bits of each in their place. Linear in grad; forward mode and second
        derivatives have the same slope.

    Args:
        edge: "closed" (x gets grad), "open" (0) or "half" (0.5 * grad), the rest going to a tensor bound; or torch's versions, as
            "torch<=2.13", "torch>=2.14" or "torch==2.12": exactly what they compute, number and tensor bounds apart, NaN and crossed
            bounds included. They must do the same, so be 2.13 and older or 2.14 and newer.
    Returns: a context and decorator for the current thread, as `override`; the innermost context decides, so that inside an override the
        pin decides for the clamps, also one to the era of the installed torch.
    Raises: ValueError for anything else.
    Example:
        >>> x = torch.tensor([0.0, 0.5], requires_grad=True)
        >>> with pin_edge("torch<=2.13"):
        ...     torch.clamp(x, 0, 1).sum().backward()
        >>> x.grad
        tensor([1., 1.])
    Source: torch's derivatives.yaml, versions 2.13 and 2.15.
    """
    asked = edge if isinstance(edge, str) and edge in SHARES else era_named(edge)
    if asked is None:
        raise unknown_name("pin_edge", "edge", (*SHARES, *ERAS), edge)
    era = installed_era()
    replacement = Replacement(edges.rule_named(asked, era))
    return Rewriting(f"pin_edge({edge!r})", {EDGE: replacement}, is_torchs_own=asked == era)
