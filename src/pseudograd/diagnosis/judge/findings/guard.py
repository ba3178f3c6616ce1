"""An op that stops gradients that are not finite, so that none or only some of the parameters behind it get them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ....torch_table.eras import OPEN_ERA, installed_era
from ....wording import shortened
from ...count.further_backward import REENTRANT
from ...count.leaf import Leaf
from ...records import Finding, Site
from ...sites import site_of
from .. import advice
from .kind import Evidence, Kind


def _find(evidence: Evidence) -> Iterator[Finding]:
    nonfinite = evidence.nonfinite
    reached = () if nonfinite is None else nonfinite.reached
    # Did the program skip or replace all gradients that are not finite before a step?
    is_calm = nonfinite is not None and bool(reached) and nonfinite.is_calm
    # No pin helps where the forward made nan or inf.
    is_of_forward = nonfinite is not None and any(birth.is_forward for birth in nonfinite.births.values())
    for site in evidence.sites:
        # REENTRANT: a checkpoint. The op that cuts inside it has its own site.
        if not site.nonfinite or site.op == REENTRANT:
            continue
        # None: nobody knows whether the gradients of the leaf were finite.
        states = {leaf.name: leaf not in reached and _is_finite(leaf) for leaf in evidence.leaves.unpack(site.upstream)}
        finite = [name for name, is_finite in states.items() if is_finite is True]
        bad = [name for name, is_finite in states.items() if is_finite is False]
        passes = _passes_at_bound(site)
        # The finding `nonfinite`, or a line of `calm`, tells of gradients that leaves got.
        is_told_elsewhere = bool(bad and reached)
        if (site.is_guard and not is_told_elsewhere) or (passes and bad and not (is_calm or is_of_forward)):
            cause, next_step = _explain(site, finite, bad, passes, evidence)
            yield KIND.site_finding(
                site,
                f"{site.nonfinite:,} of {site.arrived:,} arriving gradients are not finite, {site.cut:,} are cut",
                cause,
                next_step,
                site.nonfinite / site.arrived,
            )


def _is_finite(leaf: Leaf) -> bool | None:
    """Was every gradient of the leaf finite? If its norms are not measured: is its present gradient finite? None without a gradient."""
    if leaf.sizes is not None and leaf.sizes.count:
        return math.isfinite(leaf.sizes.mean)
    tensor = leaf.tensor()
    grad = None if tensor is None else tensor.grad
    return None if grad is None else bool(grad.detach().isfinite().all())


def _passes_at_bound(site: Site) -> bool:
    """Did a gradient arrive at a bound where the installed torch passes something and another torch nothing?"""
    return bool(site.at_bound) and site.eras.get(installed_era(), 0.0) > 0.0 and 0.0 in site.eras.values()


def _remedy(site: Site, evidence: Evidence) -> str:
    """A sentence about the op that made the gradient infinite, with its line if it is known."""
    births = [] if evidence.nonfinite is None else evidence.nonfinite.births.values()
    makers = [site_of(birth.tally) for birth in births if birth.tally is not None and birth.upstream & site.upstream]
    lines = dict.fromkeys(f"{maker.op} at {maker.where}" for maker in makers)
    return f"Look at what makes the gradient infinite{': ' + ', '.join(lines) if lines else ''}."


def _explain(site: Site, finite: list[str], bad: list[str], passes: bool, evidence: Evidence) -> tuple[str, str]:
    """The cause and the next step. finite, bad: the leaves behind the op whose gradients were finite, and those whose were not."""
    cuts, remedy = "this op cuts gradients that are not finite", _remedy(site, evidence)
    if not bad:
        next_step = f"Leave it alone: no override, no pin here. {remedy}"
        if site.at_bound and not passes and len(set(site.eras.values())) > 1 and site.within is None:
            other = "torch up to 2.13 would pass those at the bound"
            next_step += f" {other}; pseudograd.pin_edge({OPEN_ERA!r}) cuts them there, too."
        return f"{cuts}, and {shortened(finite)} got none of them" if finite else cuts, next_step
    yet = f"and yet {shortened(bad)} got gradients that are not finite"
    if not passes:
        return f"{cuts}, {yet}", f"No override here, which passes more. {remedy}"
    count = f"{site.at_bound:,} of the arriving gradients stand exactly at a bound"
    cause = f"{count}, where this torch passes them and torch since 2.14 does not, {yet}"
    return cause, f"{advice.pin(site, OPEN_ERA, evidence, compare='')}  {remedy}"


KIND = Kind("PG201", order=10, find=_find, protects=True)
