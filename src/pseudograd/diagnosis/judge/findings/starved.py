"""Parameters, thresholds and units that got no gradient in any backward, and the cut that is the cause."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....listen.frames import NO_LINE, file_and_line
from ....torch_table.eras import installed_era
from ....torch_table.forms import shares_at_the_edge
from ....torch_table.private import hooks_after_accumulation, hooks_of
from ....wording import counted, percent, shortened
from ...count.influence import NEEDS_NOTHING, SELECTIONS, WITHOUT_GRAD
from ...count.leaf import Leaf
from ...records import Finding, Partly, Site, Starved, Structural
from ...sites import COMPARE, expression_at
from .. import advice
from ..dead_units import are_chosen_out, group_dead
from ..starving import ZEROED
from ..statements import Place, find_attribute
from .edge import is_cut_by_its_era, passing_era, step_behind
from .kind import Evidence, Kind
from .unused import find_replaced

_NO_MARGIN = "nothing, if it is a margin or a penalty that nothing violates"
# The first letters of each kind of cut that is a hard choice, such as argmax. A soft choice in its place can give the gradient.
_STEP_FUNCTIONS = "bucketize searchsorted bincount count_ nonzero hist signbit quantize_"
_DRAWS = ("multinomial", "bernoulli")
_CHOICES = ("arg", "indices", "comparison", "cast", "logical_", "is", "any", "all", *_STEP_FUNCTIONS.split())
_FROZEN = "If it is frozen on purpose, say requires_grad_(False)."


def _find(evidence: Evidence) -> Iterator[Finding]:
    """The findings. A parameter that is the threshold of a jumprelu with a narrow window is in the finding about the window only."""
    windows = [leaves for tally in evidence.tallies for leaves, window in tally.windows.items() if window.is_narrow]
    single = [evidence.leaves.unpack(leaves) for leaves in windows if leaves.bit_count() <= 1]
    narrow = {leaf.name for leaves in single for leaf in leaves}
    yield from _narrow_windows(evidence)
    partly = [record for record in evidence.partly if record.parameter not in narrow]
    yield from _dead_units(partly, evidence)
    yield from _chosen_out(partly, evidence)
    reported = narrow | find_replaced(evidence)
    yield from _parameters(evidence, [record for record in evidence.starved if record.parameter not in reported])


def _narrow_windows(evidence: Evidence) -> Iterator[Finding]:
    """A jumprelu whose window holds no x for most of its thresholds."""
    for tally in evidence.tallies:
        for leaves, window in tally.windows.items():
            names = [leaf.name for leaf in evidence.leaves.unpack(leaves)]
            if not window.is_narrow or evidence.deliberate.parameter(*names):
                continue
            share = window.starving / window.thresholds
            whose = f" of {names[0]}" if len(names) == 1 else ""
            passes = "the one backward" if window.calls == 1 else f"any of {window.calls:,} backward calls"
            yield KIND.call_finding(
                tally.location,
                f"{window.starving:,} of {window.thresholds:,} thresholds{whose} ({percent(share)}) got no gradient in {passes}; half of "
                f"these never had an x nearer than {window.distance:.3g}",
                f"the window of jumprelu is too narrow for how far x lies from the thresholds: bandwidth={window.bandwidth:g}",
                f"bandwidth={window.wider:.2g}  # with it, nine of ten thresholds would have had an x in their window{COMPARE}"
                if math.isfinite(window.wider)
                else "Compare the range of x with the thresholds: one of ten or more is infinite.",
                share=share,
                module=tally.location.module,
                is_muted=evidence.deliberate.location(tally.location),
            )


def _parameters(evidence: Evidence, starved: Sequence[Starved]) -> Iterator[Finding]:
    """A finding for each cause, with all parameters that starve by it."""
    by_cause: dict[object, list[Starved]] = {}
    leaves = {leaf.name: leaf for _, leaf in evidence.leaves}
    places = {record.parameter: _place_of(record, leaves.get(record.parameter), evidence) for record in starved}
    for record in starved:
        cause = record.cause and (record.cause.where, _module(record.cause), record.cause.is_deliberate)
        key = cause, places[record.parameter], record.why, record.gradient, record.is_unstepped, record.is_in_all
        by_cause.setdefault(key, []).append(record)
    for records in by_cause.values():
        first, names = records[0], [record.parameter for record in records]
        others = list(dict.fromkeys(where for record in records for where in record.others))
        reached = "" if first.is_in_all else f" that reached {'them' if len(names) > 1 else 'it'}"
        elsewhere = f"; cut as well at {', '.join(others[:4])}" if others else ""
        place, why, next_step = places[names[0]], first.why, _advise(first, names, evidence)
        if place is not None and first.gradient == ZEROED:
            is_call = leaves[names[0]].taken_at is not None
            why = f"this {'call' if is_call else 'hook'} sets it to 0 or None between the backward and the step"
            next_step = f"Leave it out{', or move it in front of the backward' if is_call else ''}. {_FROZEN}"
        yield KIND.finding(
            *((place or (NO_LINE, "")) if first.cause is None else (first.cause.where, first.cause.expression)),
            f"{counted(len(names), 'parameter')} got {first.gradient} in every backward{reached}: {shortened(names)}{elsewhere}",
            why,
            next_step,
            module=_module(first.cause),
            parameters=tuple(names),
            is_muted=first.cause is not None and first.cause.is_deliberate,
        )


def _place_of(record: Starved, leaf: Leaf | None, evidence: Evidence) -> Place | None:
    """If no op is the cause: the call that took the gradient away, or the statement that makes a parameter that nothing uses."""
    if leaf is None or record.cause is not None:
        return None
    is_zeroed = record.gradient == ZEROED
    if is_zeroed and leaf.taken_at is not None:
        return Place(file_and_line(leaf.taken_at.call), expression_at(leaf.taken_at))
    if is_zeroed or record.reason == "own hook":
        hooks = hooks_after_accumulation(leaf.tensor()) if is_zeroed else hooks_of(leaf.tensor())
        places = [evidence.recorder.locations.of_function(hook).call for hook in (hooks or {}).values()]
        return Place(file_and_line(places[0]), "") if len(places) == 1 and places[0] is not None else None
    owner = evidence.leaves.names.owner_of(leaf)
    module = None if owner is None or record.reason != "no path" else owner.module()
    making = None
    # The statement in the innermost class of the program.
    for attribute in evidence.leaves.names.path_of(leaf).split(".") if module is not None else ():
        making = find_attribute(type(module), attribute, "__init__") or making
        module = getattr(module, attribute, None)
    return making


def _module(cause: Site | Structural | None) -> str | None:
    return cause.module if isinstance(cause, Site) else None


def _advise(starved: Starved, parameters: Sequence[str], evidence: Evidence) -> str:
    cause = starved.cause
    if starved.gradient == ZEROED:
        return f"Look for a hook, zero_grad() or .grad = None between the backward and the step. {_FROZEN}"
    if starved.reason == "returns None":
        return "Return the gradient of that input in its backward, or detach the input if it should get none."
    if isinstance(cause, Site):
        step = step_behind(cause, evidence)
        if step is not None:
            return f"{advice.advise(step, evidence)}; then ask again, as {cause.op} cuts all before it"
        clip = advice.clip_parameter(cause, evidence)
        if clip is not None:
            return clip
        if is_cut_by_its_era(cause):
            era = passing_era(cause)
            if cause.next_cuts_at_bound and not _starts_at_a_bound_before(cause, era, evidence):
                return "Print what enters here. An op before this one cuts the gradient, too: no rule or pin for this op alone helps."
            return advice.pin(cause, era, evidence)
        if starved.reason in ("zeros alone", "adds up to 0"):
            return (
                "If it should learn, let the loss depend on its value here: print what chooses or multiplies at this line. If both factors "
                "start at 0, as in a LoRA, start one of them elsewhere."
            )
        if cause.is_second_order:
            return "A second derivative is 0 here: where it should not be, take activations with a curvature, such as tanh or silu."
        next_step = advice.advise(cause, evidence)
        return f"{next_step.removesuffix('.')}; {_NO_MARGIN}" if cause.is_loss_term else next_step
    if starved.is_unstepped:
        return "No optimiser that stepped here holds it: if it should learn, add it to one."
    if cause is not None:
        if cause.kind.startswith(_DRAWS) or ".sample(" in cause.expression:
            return advice.DRAW
        if cause.kind.startswith(_CHOICES):
            return advice.REPLACE_GRAD
        if cause.kind == NEEDS_NOTHING:
            return "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)  # or give it an input that requires a gradient"
        if cause.reaches_loss and not cause.is_final_cut:
            return "Should it learn, two edits are needed: use the tensor itself here, and mend the cut or the choice behind it."
        if cause.kind.endswith(f"_{WITHOUT_GRAD}"):  # an op in place, such as copy_
            return "Let the loss use the parameter itself, if it should learn: here its value is written into another tensor."
        if cause.kind.endswith(WITHOUT_GRAD):
            return "Compute it outside of torch.no_grad, if this parameter should learn from it."
        return (
            "Use the tensor itself in the loss that this parameter should learn from, and .detach() in each other loss."
        )
    if starved.reason == "own hook":
        return f"Let the hook return what should pass, or remove it. {_FROZEN}"
    if starved.gradient == "zeros":
        return "Print the gradients between it and the loss: h.register_hook(print) on each value h in between."
    if starved.reason == "no path":
        return (
            "Use it in the loss. If another parameter has replaced it, make the optimiser after that. If chance skips it, as a drop path "
            "does, take more steps."
        )
    if starved.reason == "error":
        return "Mend that error first: a backward that ends well brings it a gradient, or says more here."
    return "Print its .grad after a backward. If it is a constant added to an energy, the forces do not depend on it: leave it."


def _starts_at_a_bound_before(cause: Site, era: str, evidence: Evidence) -> bool:
    """Is there another clamp before this one, with all its values at a bound, and does this era pass more there, too?"""
    for value in evidence.values:
        is_before = value.upstream & cause.upstream and advice.line_of(value) != (cause.where, cause.expression)
        shares = shares_at_the_edge(value.form, value.has_tensor_bound)
        if is_before and value.starts_on_a_bound and shares[era] > shares[installed_era()]:
            return True
    return False


def _dead_units(partly: Sequence[Partly], evidence: Evidence) -> Iterator[Finding]:
    """A finding for each op, with the parameters whose dead units it causes."""
    for records in group_dead(partly):
        first, site = records[0], records[0].cause
        assert site is not None, "grouped by it"
        what = "entries" if len(records) == 1 and first.units == first.entries else "units"
        yield KIND.site_finding(
            site,
            f"{percent(first.share)} of {shortened([record.parameter for record in records])} ({first.dead_units:,} of {first.units:,} "
            f"{what}{' of the shard here' if first.is_shard else ''}) got no gradient in any of {first.backwards:,} backwards",
            f"they stand where the slope of {site.op} is 0, for everything that was put in",
            advice.advise(site, evidence),
            first.share,
        )


def _chosen_out(partly: Sequence[Partly], evidence: Evidence) -> Iterator[Finding]:
    """A finding for each parameter that loses most of its entries by its own values."""
    for record in filter(are_chosen_out, partly):
        choice, (site, how) = record.own_choice, record.drops[0]
        assert choice is not None, "are chosen out"
        advised, why = advice.REPLACE_GRAD, how
        if isinstance(choice, Site):
            why += f": nothing but {record.parameter} decides what is 0 there"
            advised = advice.advise(site, evidence) if site.family == "relu" else advised
        else:
            chooser = next((name for name in SELECTIONS if name in choice.kind), "a comparison")
            why += f", as {chooser} of what comes from {record.parameter} decides ({choice.where})"
        yield KIND.site_finding(
            site,
            f"{percent(record.without / record.entries)} of {record.parameter} ({record.without:,} of {record.entries:,} entries) got no "
            f"gradient in any of {record.backwards:,} backwards",
            f"{site.op} {why}",
            f"{advised.removesuffix('.')}; {_NO_MARGIN if site.is_loss_term else 'leave it if the choice is meant'}",
            record.without / record.entries,
        )


KIND = Kind("PG203", order=30, find=_find)
