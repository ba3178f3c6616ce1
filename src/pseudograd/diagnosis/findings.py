"""From what was recorded to what a person should know: findings in the order in which a backward meets them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..torch_eras import ERAS, installed_era
from ..torch_forms import shares_at_the_edge
from ..trace.frames import named
from . import advice
from .deliberate import Deliberate
from .influence import NEEDS_NOTHING
from .norms import fading
from .partial import grouped
from .records import Finding, Partly, Site, Starved, Structural
from .stalled import STALLED, Stalls
from .starving import ZEROED
from .tally import Tally
from .windows import NODE

_OUTWARD = (
    "None, if the clip is meant: what is cut would only lead further outside, as in the clipped loss of a policy. There "
    "pseudograd.policy.clip_report(log_ratio, advantage) says which tokens, by the sign of their advantage."
)
LITTLE = 0.05  # of what a clamp cuts, leads back inside: below it `inward` is not advised
CUT = 0.05  # of what arrives at a clamp: from here on it is a finding
AT_BOUND = 1e-3  # of what arrives at a clamp, exactly at its bound
CLIPPED = 0.5  # of what arrives at a quantiser; some clipping serves it, and a learned scale finds how much
QUANTISER = "fake_quantize"
DEAD = 0.999  # of what arrives at any op
# They cut on purpose: a factor of 0, a mask, a choice, a place that was not chosen or is overwritten.
_ON_PURPOSE = (
    "mul",
    "where",
    "maskedFill",
    "index",
    "gather",
    "nativeDropout",
    "maxPool",
    "max",
    "min",
    "amax",
    "amin",
    "sort",
    "topk",
    "Copy",
    "fill",
    "zero",
    "scatter",
    "masked",
    "put",
)
_REMEDIES = {"clamp": "inward", "relu": "leaky", "round": "identity", "sign": "window"}  # the rule to try, by family
_TELLING = ("guard", "kink", "starved", "cut", "dead", "edge", "wind-up", "stalled", "vanish")
_SLOPES = {
    "sigmoid": "1/4",
    "tanh": "1",
    "softplus": "1",
    "hardsigmoid": "1/6",
    "softmax": "1/2",
}  # the largest of each
# Where the cause is known and reported, by what the path of the line ends in.
_KNOWN = {
    "torchao/quantization/quant_primitives.py": "https://github.com/pytorch/ao/pull/4806",
    "kornia/enhance/adjust.py": "https://github.com/kornia/kornia/issues/4229",
}
_EDGE_ISSUE = "https://github.com/pytorch/pytorch/pull/191142"


@dataclass(frozen=True)
class Evidence:
    """All that findings are made from."""

    sites: Sequence[Site]
    starved: Sequence[Starved]
    values: Sequence[Any]
    tallies: Sequence[Tally]
    leaves: Any
    deliberate: Deliberate
    stalls: Stalls
    partly: Sequence[Partly] = ()


def found(evidence: Evidence) -> list[Finding]:
    """Every finding, in the order in which a backward meets its line; what was seen at no line of a backward comes last."""
    narrow = _with_narrow_windows(evidence.leaves, evidence.tallies)
    findings = [
        *_at_the_kink(evidence),
        *(
            replace(finding, module=site.module)
            for site in evidence.sites
            for finding in evidence.deliberate.spoken(site.is_deliberate, _of_site(site))
        ),
        *_winding_up(evidence),
        *_too_narrow(evidence),
        *_of_starved(
            [
                one
                for one in evidence.starved
                if one.parameter not in narrow and not _is_deliberate(one, evidence.deliberate)
            ]
        ),
        *_of_dead_units(
            [
                one
                for one in evidence.partly
                if one.parameter not in narrow and not _is_deliberate(one, evidence.deliberate)
            ]
        ),
        *_vanishing(evidence),
        *_stalled(evidence),
    ]
    met: dict[tuple[str, str], int] = {}
    for at, site in enumerate(evidence.sites):
        met.setdefault((site.where, site.expression), at)
    return sorted(_folded(findings), key=lambda one: met.get((one.where, one.expression), len(met)))


def _is_deliberate(starved: Starved | Partly, deliberate: Deliberate) -> bool:
    """At its cause."""
    cause = starved.cause
    if cause is None or not cause.is_deliberate:
        return False
    deliberate.muted.add(("starved", cause.where, cause.expression))
    return True


# --- sites ------------------------------------------------------------------------------------------------------------


def _of_site(site: Site) -> Iterable[Finding]:
    if site.is_guard:
        yield Finding(
            "guard",
            site.where,
            site.expression,
            f"{site.nonfinite:,} of {site.arrived:,} arriving gradients are not finite, {site.cut:,} are cut",
            "this op keeps infinite gradients from the parameters",
            "Leave it alone: no override, no pin here. Look at what makes the gradient infinite.",
            site.nonfinite / max(site.arrived, 1),
        )
        return
    if _is_on_purpose(site) or not site.arrived:
        return
    edge = _edge(site)
    if edge is not None:
        yield edge
    is_clamp = site.family == "clamp"  # an activation saturates as it should, until all of it does
    if site.family in ("round", "sign") and site.cut_share > DEAD:
        yield Finding(
            "cut",
            site.where,
            site.expression,
            f"all of {site.arrived:,} arriving gradients are cut",
            f"{site.op} is a step: its true gradient is 0",
            advice.override(site, site.family, _REMEDIES[site.family]),
            site.cut_share,
        )
    elif (
        is_clamp and site.cut_share - (site.at_bound_share if edge is not None and _cuts_at_bound(site) else 0.0) >= CUT
    ):
        back = "" if site.recoverable is None else f"; {percent(site.recoverable_share)} of that would lead back inside"
        yield Finding(
            "cut",
            site.where,
            site.expression,
            f"{percent(site.cut_share)} of {site.arrived:,} arriving gradients are cut, {percent(site.cut_magnitude_share)} of their "
            f"size{back}",
            _sides(site),
            _of_cut(site),
            site.cut_share,
        )
    elif site.family == QUANTISER and site.cut_share >= CLIPPED:
        yield Finding(
            "cut",
            site.where,
            site.expression,
            f"{percent(site.cut_share)} of {site.arrived:,} arriving gradients are cut: so much stands outside the grid of this quantiser",
            "its scale is too small for what it quantises, or its zero point lies apart",
            "scale = x.detach().abs().max() / quant_max  # x is what it quantises; for a grid around 0",
            site.cut_share,
        )
    elif site.cut_share >= DEAD and not is_clamp and not site.elsewhere:
        yield Finding(
            "dead",
            site.where,
            site.expression,
            f"all of {site.arrived:,} arriving gradients are cut in {site.calls:,} calls",
            f"every element of this {site.op} stands where its slope is 0",
            advice.revive(site),
            site.cut_share,
        )


def _of_cut(site: Site) -> str:
    """What `inward` would bring, where that was measured."""
    if site.recoverable is None:
        return advice.override(site, "clamp", "inward")
    if not site.recoverable:
        return _OUTWARD
    if site.recoverable_share < LITTLE:
        return (
            f"Widen the range, or rescale what enters or what it is compared with: the target lies outside the range. rule='inward' would "
            f"bring back {percent(site.recoverable_share)} of what is cut. Leave it if the clip is meant."
        )
    return advice.override(site, "clamp", "inward", f": it passes {percent(site.recoverable_share)} of what is cut")


def _is_on_purpose(site: Site) -> bool:
    """What starves behind it is told there."""
    return site.family is None and site.op.startswith(_ON_PURPOSE)


def _cuts_at_bound(site: Site) -> bool:
    """Does this torch?"""
    return site.eras.get(installed_era()) == 0


def _edge(site: Site) -> Finding | None:
    """Much stands exactly at a bound, where the eras of torch differ."""
    shares = set(site.eras.values())
    if len(shares) < 2 or site.at_bound_share < AT_BOUND:
        return None
    here = installed_era()
    other = next(name for name in ERAS if site.eras[name] != site.eras[here])
    does = "; ".join(f"{name} passes {percent(share)} of it" for name, share in site.eras.items())
    loses = site.eras[here] < site.eras[other]
    return Finding(
        "edge",
        site.where,
        site.expression,
        f"{percent(site.at_bound_share)} of {site.arrived:,} arriving gradients stand exactly at a bound: {does}",
        f"this torch is of the era {here}" + (", which cuts there" if loses else f"; {other} cuts there"),
        advice.pin(site, name := other if loses else here, ERAS[name].edge),
        site.at_bound_share,
        issue=next((issue for path, issue in _KNOWN.items() if path in site.where), _EDGE_ISSUE),
    )


def _sides(site: Site) -> str:
    if site.below is None or site.above is None:
        return f"{site.op} cuts outside its range"
    parts = [f"{count:,} {side}" for count, side in ((site.below, "below"), (site.above, "above")) if count]
    return "outside its range stand " + " and ".join(parts) if parts else f"{site.op} cuts at its bound"


def percent(share: float) -> str:
    """A share as a person reads it; only all is 100 %, and only nothing 0 %."""
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    return f"{min(max(100 * share, 0.1), 99.9):.1f} %"


# --- values -----------------------------------------------------------------------------------------------------------


def _at_the_kink(evidence: Evidence) -> Iterable[Finding]:
    for one in evidence.values:
        if not one.upstream or not one.starts_on_a_bound or evidence.deliberate.place(one.place):
            continue
        from_form = shares_at_the_edge(one.form, one.has_tensor_bound)
        if not from_form or all(share == 1 for share in from_form.values()):
            continue
        names = [leaf.name for leaf in evidence.leaves.named(one.leaf)] if one.leaf else []
        if any(map(evidence.deliberate.parameter, names)):
            continue
        who, it = (f"Every entry of {names[0]}", "it") if names else ("Every element that enters", "nothing behind it")
        says = [
            f"{era} passes {percent(share)} there" + (f", so {it} never trains" if share == 0 and names else "")
            for era, share in from_form.items()
        ]
        here = installed_era()
        better = next((era for era, share in from_form.items() if share > from_form.get(here, 1.0)), None)
        start = f"start {names[0] if names else 'it'} inside the range, not at the bound"
        yield Finding(
            "kink",
            named(one.place.call),
            _expression(one),
            f"{who} ({one.elements:,}) starts exactly at {one.shown_bounds} of this {one.op}: {'; '.join(says)}; inward passes what leads "
            "inside",
            "it was initialised there"
            if names
            else "what comes before it gives its bound, such as a last layer of zeros",
            f"with pseudograd.pin_edge({better!r}): ...  # or {start}" if better else f"{start[0].upper()}{start[1:]}.",
            issue=_EDGE_ISSUE if len(set(from_form.values())) > 1 else None,
        )


def _expression(one: Any) -> str:
    return "" if one.place.call is None else one.place.call.expression


def _winding_up(evidence: Evidence) -> Iterable[Finding]:
    cuts: dict[tuple[str, str], int] = {}
    for site in evidence.sites:
        if site.family == "clamp" or site.op == NODE:
            key = site.where, site.expression
            cuts[key] = cuts.get(key, 0) + site.cut
    for one in evidence.values:
        where, run = named(one.place.call), one.run
        if not one.runs_away or cuts.get((where, _expression(one)), 0) > 0.5 * int(one.outside):
            continue
        if evidence.deliberate.place(one.place):
            evidence.deliberate.muted.add(("wind-up", where, _expression(one)))
            continue
        names = [
            of for leaf in evidence.leaves.named(one.leaf or one.detached) if (of := evidence.leaves.names.of(leaf))
        ]
        yield Finding(
            "wind-up",
            where,
            _expression(one),
            f"over {int(run.longest) + 1:,} steps the values that enter moved further outside, from {float(run.first):.3g} to "
            f"{float(run.last):.3g} on average",
            "the gradient passes outside while the forward saturates, so nothing leads back",
            advice.inside(one, names),
        )


def _with_narrow_windows(leaves: Any, tallies: Iterable[Tally]) -> set[str]:
    """The thresholds of which that says it all."""
    sets = [some for tally in tallies for some, one in tally.windows.items() if one.is_narrow]
    return {leaf.name for some in sets for leaf in leaves.named(some) if not some & (some - 1)}


def _too_narrow(evidence: Evidence) -> Iterable[Finding]:
    """A jumprelu whose window holds no x for most of its thresholds."""
    for tally in evidence.tallies:
        for leaves, one in tally.windows.items():
            if not one.is_narrow:
                continue
            share = one.starving / one.thresholds
            names = [leaf.name for leaf in evidence.leaves.named(leaves)]
            if evidence.deliberate.place(tally.place) or any(map(evidence.deliberate.parameter, names)):
                continue
            whose = f" of {names[0]}" if len(names) == 1 else ""
            passes = "the one backward" if one.calls == 1 else f"any of {one.calls:,} backward calls"
            yield Finding(
                "starved",
                named(tally.place.call),
                "" if tally.place.call is None else tally.place.call.expression,
                f"{one.starving:,} of {one.thresholds:,} thresholds{whose} ({percent(share)}) got no gradient in {passes}; half of these "
                f"never had an x nearer than {one.distance:.3g}",
                f"the window of jumprelu is too narrow for how far x lies from the thresholds: bandwidth={one.bandwidth:g}",
                f"bandwidth={one.wider:.2g}  # with it, nine of ten thresholds would have had an x in their window"
                if math.isfinite(one.wider)
                else "Compare the range of x with the thresholds: one of ten or more is infinite.",
                share,
                module=tally.place.module,
            )


# --- parameters -------------------------------------------------------------------------------------------------------


def _of_starved(starved: Sequence[Starved]) -> Iterable[Finding]:
    """One for each cause, with all parameters that it starves."""
    by_cause: dict[tuple[Any, ...], list[Starved]] = {}
    for one in starved:
        where, module = (one.cause.where, _module(one.cause)) if one.cause is not None else ("?", None)
        by_cause.setdefault((where, module, one.why, one.gradient, one.is_unstepped), []).append(one)
    for (where, module, why, gradient, _), some in by_cause.items():
        names = [one.parameter for one in some]
        listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        cause = some[0].cause
        others = list(dict.fromkeys(where for one in some for where in one.others))
        elsewhere = f"; cut as well at {', '.join(others[:4])}" if others else ""
        yield Finding(
            "starved",
            where,
            "" if cause is None else cause.expression,
            f"{len(names)} parameter{'s' if len(names) > 1 else ''} got {gradient} in every backward: {listed}{elsewhere}",
            why,
            _remedy(some[0]),
            module=module,
        )


def _vanishing(evidence: Evidence) -> Iterable[Finding]:
    """The weights alone: a bias or a gain may get next to nothing for good reasons, as before a normalisation."""
    leaves = [
        leaf for _, leaf in evidence.leaves if leaf.sizes is not None and leaf.sizes.count and len(leaf.shape) > 1
    ]
    some = sorted(
        (leaf for leaf in leaves if not evidence.deliberate.parameter(leaf.name)), key=lambda leaf: leaf.sizes.order
    )
    found = fading([(leaf.name, leaf.sizes.mean) for leaf in some])
    if found is None:
        return
    first = next(leaf for leaf in some if leaf.name == found.first)
    bit = sum(1 << at for at, leaf in evidence.leaves if leaf is first)
    sites = [site for site in evidence.sites if site.upstream & bit]
    place = sites[-1] if sites else None
    if place is not None and place.is_deliberate:
        evidence.deliberate.muted.add(("vanish", place.where, place.expression))
        return
    each = (found.norm_last / found.norm_first) ** (1 / (found.layers - 1))
    yield Finding(
        "vanish",
        "?" if place is None else place.where,
        "" if place is None else place.expression,
        f"the norm of the gradient falls from {found.norm_last:.3g} ({found.last}) to {found.norm_first:.3g} ({found.first}) along "
        f"{found.layers} weights, {each:.3g} times with each of them",
        _why_it_fades(sites),
        "Put torch.nn.LayerNorm before each activation, or a residual connection around each layer; relu in place of sigmoid, with "
        "torch.nn.init.kaiming_normal_ for its weights. d.norms lists every parameter.",
        1 - found.norm_first / found.norm_last,
    )


def _why_it_fades(sites: Sequence[Site]) -> str:
    counts = {op: sum(site.calls for site in sites if site.op == op) for op in _SLOPES}
    op = max(counts, key=lambda name: counts[name])
    if counts[op] and _SLOPES[op]:
        return f"each {op} multiplies it by at most {_SLOPES[op]}, and no skip connection leads past"
    return "each layer hands on less than it gets: small weights, or activations that are nearly flat, and no skip connection leads past"


def _stalled(evidence: Evidence) -> Iterable[Finding]:
    some = []
    for one in evidence.stalls.counted():
        had, still = one.counts
        name = one.leaf.name
        if had and not evidence.deliberate.parameter(name):
            some.append((name, one, still / had))
    total = sum(one.size for _, one, _ in some)
    share = sum(one.size * part for _, one, part in some) / total if total else 0.0
    if share <= STALLED:
        return
    place, first = evidence.stalls.place, some[0][1]
    if evidence.deliberate.place(place):
        evidence.deliberate.muted.add(("stalled", named(place.call), ""))
        return
    still_ones = [name for name, _, part in some if part > STALLED]
    listed = ", ".join(still_ones[:6]) + (f" and {len(still_ones) - 6} more" if len(still_ones) > 6 else "")
    kind = str(first.dtype).removeprefix("torch.")
    yield Finding(
        "stalled",
        named(place.call),
        "" if place.call is None else place.call.expression,
        f"{percent(share)} of the entries that have a gradient never moved in {max(one.steps for _, one, _ in some):,} steps: {listed}",
        f"the weights are {kind}: a step smaller than half the distance to the next number is rounded away",
        f"model.float()  # before the optimizer is made; then the forward under torch.autocast({first.device.type!r}, torch.{kind})",
        share,
    )


def _module(cause: Site | Structural) -> str | None:
    return cause.module if isinstance(cause, Site) else None


def _remedy(starved: Starved) -> str:
    cause = starved.cause
    if starved.gradient == ZEROED:
        return (
            "Look for a hook, zero_grad() or .grad = None between the backward and the step. If it is frozen on purpose, say "
            "requires_grad_(False)."
        )
    if isinstance(cause, Site):
        family = cause.family
        if family in _REMEDIES:
            return advice.override(cause, family, _REMEDIES[family])
        return "Look at the values that enter there: print their range."
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


def _of_dead_units(partly: Sequence[Partly]) -> Iterable[Finding]:
    """One for each op, with the parameters of which it holds the same units."""
    for some in grouped(partly):
        one, site = some[0], some[0].cause
        assert site is not None, "grouped by it"
        names = ", ".join(part.parameter for part in some[:6]) + (f" and {len(some) - 6} more" if len(some) > 6 else "")
        what = "entries" if len(some) == 1 and one.units == one.entries else "units"
        rule = _REMEDIES.get(site.family or "")
        yield Finding(
            "starved",
            site.where,
            site.expression,
            f"{percent(one.share)} of {names} ({one.dead_units:,} of {one.units:,} {what}{' of the shard here' if one.is_shard else ''}) "
            f"got no gradient in any of {one.backwards:,} backwards",
            f"they stand where the slope of {site.op} is 0, for everything that was put in",
            advice.override(site, site.family, rule)
            if site.family and rule
            else "Print what enters there and where its backward is not 0: the two do not meet.",
            one.share,
            module=site.module,
        )


def _folded(findings: Iterable[Finding]) -> list[Finding]:
    """What is said of one line stands once: the most telling code, with the others' evidence behind it."""
    groups: dict[Any, list[Finding]] = {}
    for number, one in enumerate(findings):
        is_alone = one.where == "?" or one.code in ("vanish", "stalled")  # of a whole network, whatever the line
        groups.setdefault(number if is_alone else (one.where, one.expression), []).append(one)
    folded = []
    for some in groups.values():
        first = min(some, key=lambda one: (_TELLING.index(one.code), -one.share))
        rest = tuple(dict.fromkeys(one.evidence for one in some if one.evidence != first.evidence))
        modules = list(dict.fromkeys(one.module for one in some if one.module))
        module = ", ".join(modules[:4]) + (f" and {len(modules) - 4} more" if len(modules) > 4 else "")
        issue = next((one.issue for one in some if one.issue), None)
        folded.append(replace(first, also=rest, issue=issue, module=module or None))
    return folded
