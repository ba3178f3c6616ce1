"""Parameters, thresholds and units that got no gradient in any backward, and the cut to blame."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....wording import shortened
from ...count.dead_units import grouped
from ...count.influence import NEEDS_NOTHING
from ...records import Finding, Partly, Site, Starved, Structural
from .. import advice
from ..starving import ZEROED
from .edge import is_cut_by_its_era, passing_era
from .kind import Evidence, Kind, percent


def _find(evidence: Evidence) -> Iterator[Finding]:
    yield from _too_narrow(evidence)
    yield from _of_dead_units([one for one in evidence.partly if one.parameter not in evidence.with_narrow_windows])


# --- thresholds -------------------------------------------------------------------------------------------------------


def _too_narrow(evidence: Evidence) -> Iterator[Finding]:
    """A jumprelu whose window holds no x for most of its thresholds."""
    for tally in evidence.tallies:
        for leaves, one in tally.windows.items():
            if not one.is_narrow:
                continue
            share = one.starving / one.thresholds
            names = [leaf.name for leaf in evidence.leaves.named(leaves)]
            if any(map(evidence.deliberate.parameter, names)):
                continue
            whose = f" of {names[0]}" if len(names) == 1 else ""
            passes = "the one backward" if one.calls == 1 else f"any of {one.calls:,} backward calls"
            yield KIND.at(
                tally.place,
                f"{one.starving:,} of {one.thresholds:,} thresholds{whose} ({percent(share)}) got no gradient in {passes}; half of these "
                f"never had an x nearer than {one.distance:.3g}",
                f"the window of jumprelu is too narrow for how far x lies from the thresholds: bandwidth={one.bandwidth:g}",
                f"bandwidth={one.wider:.2g}  # with it, nine of ten thresholds would have had an x in their window"
                if math.isfinite(one.wider)
                else "Compare the range of x with the thresholds: one of ten or more is infinite.",
                share=share,
                module=tally.place.module,
                is_muted=evidence.deliberate.place(tally.place),
            )


# --- whole parameters -------------------------------------------------------------------------------------------------


def _blame(starved: Sequence[Starved]) -> Iterator[Finding]:
    """One for each cause, with all parameters that it starves."""
    by_cause: dict[tuple[object, ...], list[Starved]] = {}
    for one in starved:
        key = _where(one.cause), _module(one.cause), _is_deliberate(one), one.why, one.gradient, one.is_unstepped
        by_cause.setdefault(key, []).append(one)
    for some in by_cause.values():
        first, names = some[0], [one.parameter for one in some]
        others = list(dict.fromkeys(where for one in some for where in one.others))
        elsewhere = f"; cut as well at {', '.join(others[:4])}" if others else ""
        yield KIND.finding(
            _where(first.cause),
            "" if first.cause is None else first.cause.expression,
            f"{len(names)} parameter{'s' if len(names) > 1 else ''} got {first.gradient} in every backward: {shortened(names)}{elsewhere}",
            first.why,
            _remedy(first),
            module=_module(first.cause),
            parameters=tuple(names),
            is_muted=_is_deliberate(first),
        )


def _where(cause: Site | Structural | None) -> str:
    return "?" if cause is None else cause.where


def _module(cause: Site | Structural | None) -> str | None:
    return cause.module if isinstance(cause, Site) else None


def _is_deliberate(one: Starved | Partly) -> bool:
    """At its cause."""
    return one.cause is not None and one.cause.is_deliberate


def _remedy(starved: Starved) -> str:
    cause = starved.cause
    if starved.gradient == ZEROED:
        return (
            "Look for a hook, zero_grad() or .grad = None between the backward and the step. If it is frozen on purpose, say "
            "requires_grad_(False)."
        )
    if isinstance(cause, Site):
        if is_cut_by_its_era(cause):
            return advice.pin(cause, passing_era(cause))
        if cause.family in advice.RULE_TO_TRY:
            return advice.override(cause, cause.family, advice.RULE_TO_TRY[cause.family])
        return cause.own_remedy or "Look at the values that enter there: print their range."
    if starved.is_unstepped:
        return "No optimiser that stepped here holds it: if it should learn, add it to one."
    if isinstance(cause, Structural):
        if cause.kind.startswith(("argmax", "indices", "comparison", "cast")):
            return "pseudograd.straight_through(hard, soft)  # a value from the hard choice, a gradient from a soft one"
        if cause.kind == NEEDS_NOTHING:
            return "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)  # or give it an input that requires a gradient"
        return "Use the tensor itself where the loss is computed, if this parameter should learn from it."
    if starved.gradient == "zeros":
        return "Print what it is multiplied with: something there is 0."
    if starved.why.endswith("no path to the loss"):
        return "Remove it from the optimiser, or use it in the loss."
    return "Print its .grad after a backward, and look at what computes the gradient on the way."


# --- units ------------------------------------------------------------------------------------------------------------


def _of_dead_units(partly: Sequence[Partly]) -> Iterator[Finding]:
    """One for each op, with the parameters of which it holds the same units."""
    for some in grouped(partly):
        one, site = some[0], some[0].cause
        assert site is not None, "grouped by it"
        what = "entries" if len(some) == 1 and one.units == one.entries else "units"
        rule = advice.RULE_TO_TRY.get(site.family or "")
        yield KIND.at_site(
            site,
            f"{percent(one.share)} of {shortened([part.parameter for part in some])} ({one.dead_units:,} of {one.units:,} {what}"
            f"{' of the shard here' if one.is_shard else ''}) got no gradient in any of {one.backwards:,} backwards",
            f"they stand where the slope of {site.op} is 0, for everything that was put in",
            advice.override(site, site.family, rule)
            if site.family and rule
            else "Print what enters there and where its backward is not 0: the two do not meet.",
            one.share,
        )


KIND = Kind(
    code="starved",
    number="PG203",
    order=30,
    find=_find,
    blame=_blame,
    meaning="parameters of the model given, or of an optimiser that stepped, got no gradient, zeros alone, or one that a hook or the "
    "program took away before the step",
    details="It names the cut to blame: an op that cuts everything, or a value that left the graph (`.detach()`, `.data`, `.item()`, "
    "`argmax`, indices of `max` and `topk`, a comparison, a cast to integers, `no_grad`, `torch.tensor(x)`, what is written into `.data`, "
    "a reentrant checkpoint of plain data) and still decides the loss. Also told are most thresholds of a `jumprelu` whose window holds "
    "no x, and three of four units of a layer that stay where the slope of an op is 0",
    next_step="`override` at that line, the cut to remove, or a bandwidth",
    bad="""\
import torch
from pseudograd import diagnose

layer, head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
with diagnose(torch.nn.Sequential(layer, head)) as d:
    h = layer(torch.ones(3, 2)).detach()  # PG203
    head(h).sum().backward()
""",
    good="""\
import torch
from pseudograd import diagnose

layer, head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
with diagnose(torch.nn.Sequential(layer, head)) as d:
    h = layer(torch.ones(3, 2))
    head(h).sum().backward()
""",
)
