"""What to do about a finding: a line that can be pasted where there is one, and never one that this run knows to reach nothing."""

from __future__ import annotations

from typing import Any

from ...rule import OPS
from ...torch_table.forms import SWITCHES
from ..records import Site

_UNSEEN = (
    "Enter pseudograd.diagnose in the thread that makes this call, inside the function that the thread runs: then the line is known, and "
    "override acts there."
)
RULE_TO_TRY = {"clamp": "inward", "relu": "leaky", "round": "identity", "sign": "window"}  # by family
_STEP = "  # around the training step"


def override(site: Site, family: str, rule: str, brings: str = "") -> str:
    """The rule at this line."""
    if site.where == "?":
        return _UNSEEN
    if site.within is not None:
        return _written_out(site, "override")
    chosen = f"{family}=lambda site: {rule!r} if site.is_at({site.where!r}) else None"
    return f"with pseudograd.override({chosen}): ...{_STEP}{brings}"


def pin(site: Site, era: str) -> str:
    """The edge of an era."""
    if site.within is not None and site.where != "?":
        return _written_out(site, "pin_edge")
    return f"with pseudograd.pin_edge({era!r}): ...{_STEP}"


def _written_out(site: Site, what: str) -> str:
    return (
        f"Write this call out in torch's own functions: {what} does not reach the {site.op} inside {site.within}, which torch runs as "
        "one call."
    )


def revive(site: Site) -> str:
    """Where an op is dead: a slope, if its family has one that is nowhere 0."""
    if site.family in SWITCHES and "leaky" in OPS[SWITCHES[site.family]].rules:
        return override(site, site.family, "leaky")
    return site.own_remedy or "Look at the values that enter here: print their range."


def inside(one: Any, names: list[str]) -> str:
    """Where a value winds up outside its bounds."""
    low, high = one.bounds
    bounds = f"({low!r}, {high!r})" if one.has_numbers else "(low, high)"
    if one.leaf or one.detached:
        parameter = f"model.get_parameter({names[0]!r})" if names else "parameter"
        project = f"pseudograd.optim.project(optimizer, {{{parameter}: {bounds}}})"
        return f"{project}  # once, after the optimizer was made; or rule='inward' here"
    ends = ", ".join(f"{name}={bound!r}" for name, bound in (("min", low), ("max", high)) if bound is not None)
    return f"pseudograd.clamp(x, {ends or 'low, high'}, rule='inward')  # in place of what passes the gradient outside"
