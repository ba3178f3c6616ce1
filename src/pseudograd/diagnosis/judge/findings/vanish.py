"""A gradient that falls from layer to layer, or whose terms cancel so that only rounding errors are left."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....listen.frames import NO_LINE
from ....wording import shortened
from ...records import Finding, Site
from ..norms import find_fall
from .kind import Evidence, Kind

# the largest slope of each op
_SLOPES = {"sigmoid": "1/4", "tanh": "1", "softplus": "1", "hardsigmoid": "1/6", "softmax": "1/2"}
# Ops in whose backward terms may cancel: a quotient of values that move together, a normalisation.
_CANCELLING = frozenset(["div", "nativeLayerNorm", "nativeGroupNorm", "nativeBatchNorm", "linalgVectorNorm", "norm"])
_OF_DIVISORS = frozenset(["max", "amax", "min", "amin", "abs", "linalgVectorNorm", "norm", "clamp", "sqrt", "pow"])
_ROUNDING = 1e-6  # share of what arrives: real slopes are hardly ever so small, and float32 rounds at a tenth of it
_FEWEST_PASSES = 3


def _find(evidence: Evidence) -> Iterator[Finding]:
    yield from _cancel(evidence)
    yield from _fall(evidence)


def _cancel(evidence: Evidence) -> Iterator[Finding]:
    """A finding for each op where the terms of the gradient cancel, with the weights that get only rounding errors."""
    by_op: dict[tuple[str, str, str], list[tuple[Site, str, float]]] = {}  # the site, a weight, and its norm
    for bit, leaf in evidence.leaves:
        sizes = leaf.sizes
        if sizes is None or sizes.count < _FEWEST_PASSES or len(leaf.shape) < 2 or not 0 < sizes.mean < math.inf:
            continue
        if evidence.deliberate.parameter(leaf.name):
            continue
        path = [site for site in evidence.sites if site.upstream >> bit & 1 and site.arrived and not site.nonfinite]
        for number, site in enumerate(path):
            divisor = site.where if site.op == "div" else ""  # the line that may compute it, as in x / x.abs().max()
            rest = [other for other in path[number + 1 :] if other.where != divisor or other.op not in _OF_DIVISORS]
            arrives, behind = _size(site), max([sizes.mean, *map(_size, rest)])
            may_cancel = site.op in _CANCELLING and (site.has_several_inputs or site.op != "div")
            if (may_cancel and behind < _ROUNDING * arrives) or site.normalises_one_number:
                by_op.setdefault((site.op, site.where, site.expression), []).append((site, leaf.name, sizes.mean))
                break
    is_adaptive = any("betas" in optimiser.settings for optimiser in evidence.recorder.optimisers.all)
    for rows in by_op.values():
        site, names, most = rows[0][0], [name for _, name, _ in rows], max(norm for *_, norm in rows)
        value, slash, _ = site.expression.partition(" / ")
        leave = "Leave this op out, if these should learn: "
        step = f"{leave}a value that is divided by itself, or by its own norm, is a constant."
        why = "its terms cancel, for example because a value is divided by itself"
        if site.normalises_one_number:
            step = f"{leave}a single number that is normalised is a constant. Or let it normalise several numbers together."
            why = "it normalises a single number"
        elif slash and value.isidentifier():
            step = f"{value}  # in place of {site.expression}, if these should learn"
        noise = ", and Adam divides it by its own size: full steps of noise" if is_adaptive else ""
        yield KIND.site_finding(
            site,
            f"gradients of {_size(site):.2g} in all arrive at this {site.op} in each backward, and a norm of {most:.2g} is left for "
            f"{shortened(names)}",
            f"{why}, so the loss does not depend on its size: only rounding is left{noise}",
            step,
            1 - most / (_size(site) or math.inf),
        )


def _size(site: Site) -> float:
    """The sum of |grad| that arrives at one call, on average."""
    return site.magnitude / site.calls if math.isfinite(site.magnitude) else 0.0


def _fall(evidence: Evidence) -> Iterator[Finding]:
    """The finding about a fall along the weights. A bias or a gain may get next to nothing for good reasons, as before a normalisation."""
    weights = [
        (sizes, bit, leaf.name)
        for bit, leaf in evidence.leaves
        if (sizes := leaf.sizes) is not None and sizes.count and len(leaf.shape) > 1
    ]
    weights = [row for row in weights if not evidence.deliberate.parameter(row[2])]
    weights.sort(key=lambda row: row[0].order)
    fall = find_fall([(name, sizes.mean) for sizes, _, name in weights])
    if fall is None:
        return
    bit = next(bit for _, bit, name in weights if name == fall.first)
    sites = [site for site in evidence.sites if site.upstream >> bit & 1]
    last = sites[-1] if sites else None
    # The second derivative of a relu is 0.
    relu = "; or take relu, with torch.nn.LayerNorm before it or torch.nn.init.kaiming_normal_ for its weights"
    if any(site.is_second_order for site in evidence.sites):
        relu = ""
    each = (fall.norm_last / fall.norm_first) ** (1 / (fall.layers - 1))
    yield KIND.finding(
        NO_LINE if last is None else last.where,
        "" if last is None else last.expression,
        f"the norm of the gradient falls from {fall.norm_last:.3g} ({fall.last}) to {fall.norm_first:.3g} ({fall.first}) along "
        f"{fall.layers} weights, {each:.3g} times with each of them",
        _explain(sites),
        f"Put a residual connection around each layer{relu}. d.norms lists every parameter.",
        share=1 - fall.norm_first / fall.norm_last,
        is_muted=last is not None and last.is_deliberate,
    )


def _explain(sites: Sequence[Site]) -> str:
    counts = {op: sum(site.calls for site in sites if site.op == op) for op in _SLOPES}
    op = max(counts, key=lambda name: counts[name])
    if counts[op]:
        return f"each {op} multiplies it by at most {_SLOPES[op]}, and no skip connection leads past"
    return "each layer hands on less than it gets: small weights, or activations that are nearly flat, and no skip connection leads past"


KIND = Kind("PG209", order=90, find=_find, is_alone=True)
