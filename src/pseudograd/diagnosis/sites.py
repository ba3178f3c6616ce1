"""Make the records that reports show: a `Site` from the sums of a `Tally`, and a `Structural` from a `Cut`, such as a call of detach."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..listen.frames import Location, file_and_line, span_at
from ..ops.bound_rules import DEFAULT_RULE, TRUE_RULE
from ..rule import Call
from .count.grads import SIDES, SIGNS
from .count.influence import Cut
from .count.leaves import Leaves
from .count.tally import Tally
from .records import Site, Structural

_PINNED = ", pinned"  # in the name of each primitive that a pin runs
ASCENT, DESCENT, UNKNOWN = "ascent", "descent", "unknown"
COMPARE = "; compare a training with it"  # the end of an advice that changes the numbers of a training
_COUNTS = ("elements", "arrived", "cut", "nonfinite", "elsewhere")


def site_of(tally: Tally, is_deliberate: bool = False, direction: str = "descent") -> Site:
    """The record of a tally. Waits for the device. direction: ascent or descent, see `direction_of`."""
    sums = tally.totals()
    library_calls = list(tally.library_calls.values())
    counts: dict[str, Any] = {name: int(sums[name]) for name in _COUNTS}
    regions: dict[str, Any] = {}  # the fields that need x and its bounds
    if tally.has_regions:
        names = [side + sign for side in SIDES for sign in SIGNS]  # "below-": x is below, and the gradient is negative
        sides = {name: int(sums[name]) for name in names}
        below, above = (sides[f"{side}-"] + sides[f"{side}+"] for side in ("below", "above"))
        recoverable, at_bound = int(sums["recoverable"]), int(sums["at_bound"])
        if direction == ASCENT:
            # A step up the gradient leads back inside at "below+" and "above-". With two bounds, "at" does not say at which.
            at = sides["at+"] if tally.facts.has_only_lower_bound else 0
            recoverable = min(sides["below+"] + sides["above-"] + at, int(sums["cut"]))
        regions = {"recoverable": recoverable, "at_bound": at_bound, "below": below, "above": above, "sides": sides}
    op, family = _op_of_node(tally.op), None
    if tally.form is not None:
        op = tally.form.names[0]
        family = next(iter(tally.form.switches), None)  # the first switch is the function's own family
    if library_calls:
        op = _name_of_calls(library_calls)
    if any(call.primitive.name == "fake_quantize" for call in library_calls):
        family = "fake_quantize"  # as torch's own quantiser has
    return Site(
        op=op,
        **_lines(tally.location),
        module=tally.location.module,
        calls=tally.calls,
        **counts,
        magnitude=sums["magnitude"],
        cut_magnitude=sums["cut_magnitude"],
        eras=tally.eras(),
        family=family,
        within=tally.within,
        is_deliberate=is_deliberate,
        direction=direction,
        is_second_order=tally.is_second_order,
        order=tally.order,
        upstream=tally.leaves,
        is_own=bool(library_calls),
        own_remedy=_remedy_of_calls(library_calls),
        **vars(tally.facts),
        **regions,
    )


def direction_of(tally: Tally, leaves: Leaves) -> str:
    """Do the optimisers of the leaves upstream add the gradient or subtract it? A program that moves a tensor itself may do either."""
    upstream = leaves.unpack(tally.leaves)
    stepped = [leaf for leaf in upstream if leaf.is_stepped]
    if stepped:
        return ASCENT if all(leaf.ascends for leaf in stepped) else DESCENT
    return UNKNOWN if any(leaf.is_requested or not leaf.is_parameter for leaf in upstream) else DESCENT


def structural_of(cut: Cut, leaves: Leaves, is_deliberate: bool = False) -> Structural:
    return Structural(
        kind=cut.kind,
        **_lines(cut.location),
        calls=cut.calls,
        reaches_loss=cut.reaches_loss,
        parameters=tuple(leaf.name for leaf in leaves.unpack(cut.upstream)),
        is_deliberate=is_deliberate,
        upstream=cut.upstream,
        is_final_cut=cut.is_final_cut,
        is_recomputed=cut.is_recomputed,
        compared_at=frozenset(cut.compared_at),
    )


def expression_at(location: Location) -> str:
    """The source of the call; "" if it was not recorded."""
    return "" if location.call is None else location.call.expression


def _lines(location: Location) -> dict[str, Any]:
    """The fields `where`, `user_where`, `expression` and `source` of a record."""
    call, source = location.call, None
    if call is not None:
        span = span_at(call.code, call.instruction)
        columns = span[2:] if span is not None and span[0] == span[1] else None
        source = (call.code.co_filename, call.line, columns)
    return {
        "where": file_and_line(call),
        "user_where": file_and_line(location.program),
        "expression": expression_at(location),
        "source": source,
    }


def _op_of_node(name: str) -> str:
    """The op of a node: "clamp" of ClampBackward1. A name without a number is the class of a custom Function."""
    name = name.removeprefix("torch::autograd::")
    base = name.rstrip("0123456789").removesuffix("Backward")
    return base[:1].lower() + base[1:] if name[-1:].isdigit() else name


# --- ops of this library in the program -------------------------------------------------------------------------------


def _name_of_calls(calls: Collection[Call]) -> str:
    """The op and its rule, such as "clamp/zero", if all calls of a line have the same; else the ops alone."""
    labels = {_label(call) for call in calls}
    return labels.pop() if len(labels) == 1 else " or ".join(sorted({_op_of(call) for call in calls}))


def _remedy_of_calls(calls: Collection[Call]) -> str:
    """Advice for ops that pass nothing: who chose the rule, and how to choose another; "" if there is no better rule."""
    remedies = {_remedy(call) for call in calls}
    return remedies.pop() if len(remedies) == 1 else ""


def _op_of(call: Call) -> str:
    return call.primitive.name.partition(_PINNED)[0]


def _label(call: Call) -> str:
    if _PINNED in call.primitive.name:
        pin = call.rule.name.removeprefix("zero/")  # rewrite/edges.py names the rule of a pin "zero/torch<=2.13"
        return f"{_op_of(call)} as pinned to {pin}"
    return call.label if call.edge is None or call.rule.ignores_edge else f"{call.label}/{call.edge}"


def _remedy(call: Call) -> str:
    if _PINNED in call.primitive.name:
        inside = "Inside it, pseudograd.override can give this line alone another rule"
        return f"pseudograd.pin_edge decides what passes here. {inside}{COMPARE}."
    if call.primitive.name.startswith("torch."):
        return f"pseudograd.override chose the rule {call.rule.name!r} here: choose another for this line{COMPARE}."
    if call.rule.name == TRUE_RULE and DEFAULT_RULE in call.primitive.rules:
        return (
            f"rule={DEFAULT_RULE!r}  # in this call, in place of {TRUE_RULE!r}: passes what leads back inside{COMPARE}"
        )
    return ""
