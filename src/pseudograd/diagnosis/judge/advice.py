"""The next step of a finding: if possible a line to paste, and never a line that would have no effect in this run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...listen.frames import NO_LINE, file_and_line, file_of, is_of_a_package, lines_of
from ...ops.bound_rules import DEFAULT_RULE, LEAKY_RULE
from ...rule import OPS
from ...torch_table.eras import installed_era
from ...wording import percent
from ..count.graph_shapes import NEAR_A_POLE
from ..count.leaf import Leaf
from ..count.recorder import HOOK
from ..count.values import Values
from ..records import Site
from ..sites import ASCENT, COMPARE, UNKNOWN, expression_at
from .statements import name_of_optimiser

if TYPE_CHECKING:
    from .findings.kind import Evidence

_UNKNOWN_LINE = (
    "Enter pseudograd.diagnose before this call, in the thread that makes it, inside the function that the thread runs: then the line is "
    "known, and override acts there. If the call is in TorchScript, in C++ or in the __torch_function__ of a class, no context sees it: "
    "write it out there."
)
REPLACE_GRAD = (
    "pseudograd.replace_grad(hard, soft)  # two tensors: the value of the hard choice, the gradient of a soft one; a spike "
    f"(a > b).float() becomes pseudograd.heaviside(a - b, at_zero=0.0){COMPARE}"
)
DRAW = (
    "Let the loss use the log-probability of what is drawn, as REINFORCE does; or draw with a gradient: rsample() of a "
    f"distribution that has it, mean + std * torch.randn_like(mean), or pseudograd.replace_grad(hard, soft){COMPARE}."
)
# By family other than clamp: the rule to try.
_RULES = {"round": OPS["round"].default_rule, "sign": OPS["sign"].default_rule, "relu": LEAKY_RULE}
# By op, where no rule is known to help.
_LOOK = {
    "toCopy": "Scale the loss, as torch.amp.GradScaler does, or cast to torch.bfloat16: what arrives is too small for the dtype of x.",
    HOOK: "Let the hook return what should pass, or remove it: its handle has remove(). Leave it if it freezes on purpose.",
    "mul": "Print the other factor: it is 0, or so small that the product is.",
    "where": "Print the condition: wherever a gradient arrives, it chooses the other value.",
    "abs": "Start what enters here elsewhere: torch's abs passes nothing exactly at 0.",
    **dict.fromkeys(
        ("softmax", "logSoftmax"),
        "Print the shape and the range of what enters here: over one entry it is a constant, and far apart it is flat.",
    ),
    **dict.fromkeys(("bernoulli", "poisson", "normal"), DRAW),
}
_LEAST_BACK = 0.05  # of the cut gradients: if fewer lead back inside, no rule is advised
_ALL = 0.999  # of the gradients are cut
_UNLESS_MEANT = f"{COMPARE}: a guard, or a clip that is meant, needs no rule"
_MAY_BE_STEEP = f"{COMPARE}, as what follows may be steep at the bound"
# What an unchanged clamp may be meant for.
_GUARDS = "it is a floor or guards the op that follows, such as sqrt, log, exp or a division: there a rule may throw the parameters far off"
_LEAVES_OUT = "it is a ceiling that leaves out the largest terms of the loss, such as outliers"
_ZERO_IS_MEANT = "the slope outside is meant to be 0, as in an activation, a soft threshold, an overlap of boxes or a window around a point"
_UNSEEN = "the clip is meant: nobody saw here whether what is cut would lead back inside"
_AROUND_THE_STEP = "  # around the training step"
_AS_IT_WILL_BE = ", with the line as it is after this edit"
_LONGEST = 80  # characters of an expression in a line to paste


def override(site: Site, rule: str, effect: str = "") -> str:
    """The line that gives this call the rule. effect: a clause about the effect.

    It names the call by its source if that occurs only once in the file, because the edit moves the call to another line.
    """
    if site.where == NO_LINE:
        return _UNKNOWN_LINE
    if site.within is not None:
        return write_out("override", site.op, site.within)
    if rule == DEFAULT_RULE and site.direction == ASCENT:
        why = "in place of this call, as its optimizer ascends"
        return f"pseudograd.{site.family}(..., maximize=True)  # {why}{effect}"
    condition, hint = f"site.is_at({site.where!r})", _AROUND_THE_STEP
    file = "" if site.source is None else site.source[0]
    if file and not is_of_a_package(file):
        source = " ".join(line.strip() for line in lines_of(file))
        if not site.expression or len(site.expression) > _LONGEST or source.count(site.expression) != 1:
            hint += _AS_IT_WILL_BE
        elif os.path.exists(file_of(file)):
            condition = f"site.is_at({site.where.rpartition(':')[0]!r}, {site.expression!r})"
        else:  # a cell of a notebook, whose name changes when it runs again
            condition = f"site.expression == {site.expression!r}"
    chosen = f"{site.family}=lambda site: {rule!r} if {condition} else None"
    line = f"with pseudograd.override({chosen}): ...{hint}{effect}"
    if rule == DEFAULT_RULE and site.direction == UNKNOWN:
        instead = f"pseudograd.{site.family}(..., maximize=True) in place of this call"
        return f"If the program adds this gradient to x, {instead}. If it subtracts it: {line}"
    return line


def advise(site: Site, evidence: Evidence) -> str:
    """The next step at an op that cuts, by what was measured there."""
    if site.family == "clamp":
        return _advise_clamp(site, evidence)
    rule = _RULES.get(site.family or "")
    default = site.own_remedy or "Look at the values that enter here: print their range."
    return _LOOK.get(site.op, default) if rule is None else override(site, rule, COMPARE)


def _advise_clamp(site: Site, evidence: Evidence) -> str:
    """A clamp may be a guard or a clip that is meant. Then a rule may make the training worse, and nothing that is measured tells this."""
    share = None if site.recoverable is None else site.recoverable_share
    if share is not None and share < _LEAST_BACK:
        outside = f"{percent(1 - share)} of what is cut would only lead further outside"
        return f"None, if the clip is meant: {outside}, as with free bits, or in the clipped loss of a policy."
    clip = clip_parameter(site, evidence)
    if clip is not None:
        return clip
    passes = "" if share is None else f"passes {percent(share)} of what is cut"
    meant = _find_intent(site)
    if meant:
        rule = f"rule={DEFAULT_RULE!r}{', maximize=True' if site.direction == ASCENT else ''}{passes and f', which {passes}'}"
        return f"None, if {meant}. Else compare a training with {rule}."
    if site.steep_op:
        return (
            f"None, if the clip is meant: outside, the slope of {site.steep_op} grows without end, and so would the gradients that a rule "
            "passes here. Where that op has one input, a pseudograd.clamp in front of it has no such slope."
        )
    return override(site, DEFAULT_RULE, f"{passes and f': it {passes}'}{_UNLESS_MEANT}")


def _find_intent(site: Site) -> str:
    """What this clamp may be meant for as it is, so that a rule may make the training worse; "" if nothing tells."""
    if site.may_guard:
        return _GUARDS
    if site.where == NO_LINE:
        return ""
    if site.is_ceiling and site.is_addend and site.above and not site.below:
        return _LEAVES_OUT
    # Where nothing passes, a rule makes nothing worse.
    if (site.has_only_lower_bound or site.is_window or site.is_activation) and site.cut_share < _ALL:
        return _ZERO_IS_MEANT
    return _UNSEEN if site.recoverable is None else ""


def pin(site: Site, era: str, evidence: Evidence, compare: str = COMPARE) -> str:
    """The line that pins an era. If that era would pass gradients that a guard stops now: the default rule at this call alone."""
    if site.within is not None and site.where != NO_LINE:
        return write_out("pin_edge", site.op, site.within)
    guard = guard_against(era, evidence)
    if guard is not None:
        return override(site, DEFAULT_RULE, f": a pin would pass what is not finite at {guard.where}{compare}")
    return f"with pseudograd.pin_edge({era!r}): ...{_AROUND_THE_STEP}{compare}"


def guard_against(era: str, evidence: Evidence) -> Site | None:
    """An op that stops gradients that are not finite, of which this era would pass some exactly at the bound."""
    for site in evidence.sites:
        if site.is_guard and site.at_bound and site.eras and site.eras[era] > site.eras[installed_era()]:
            return site
    return None


def write_out(context: str, op: str, within: str) -> str:
    """The advice for an op that the context cannot reach."""
    return f"Write this call out in torch's own functions: {context} does not reach the {op} inside {within}, which torch runs as one call."


def clip_parameter(site: Site, evidence: Evidence) -> str | None:
    """The advice for a clamp that keeps a parameter itself in a range; None for any other op, and for a penalty."""
    if site.family != "clamp" or site.is_floor_of_loss:
        return None
    values = [value for value in evidence.values if value.upstream and line_of(value) == (site.where, site.expression)]
    leaves, bounds = {value.leaf for value in values}, {value.pair for value in values}
    if not values or len(leaves) < len(values) or len(bounds) > 1:
        return None
    lines = [clip(value, evidence, are_several=len(values) > 1) for value in values]
    line = lines[0] if all(lines) else None
    return line and f"{line}{_MAY_BE_STEEP if site.may_guard else COMPARE}"


def line_of(value: Values) -> tuple[str, str]:
    """The file:line and the source of this clamp, as a site has them."""
    return file_and_line(value.location.call), expression_at(value.location)


def clip(value: Values, evidence: Evidence, are_several: bool = False) -> str | None:
    """The advice for a clamp that alone reads one parameter, which an optimiser steps; None for others, and in an installed package.

    are_several: does this line clamp other parameters, too, as those of other modules?
    """
    leaves = evidence.leaves.unpack(value.leaves)
    is_of_the_program = value.location.call == value.location.program and value.form.switches[0] == "clamp"
    if not is_of_the_program or not value.reads_leaf or not all(leaf.is_stepped for leaf in leaves):
        return None
    optimisers = evidence.recorder.optimisers.all
    if any(optimiser.searches and not set(leaves).isdisjoint(optimiser.leaves) for optimiser in optimisers):
        return None  # the backward passes inside a step, as of LBFGS, would read the parameter outside its range
    alike = {other.location for other in evidence.values if (other.leaves, other.pair) == (value.leaves, value.pair)}
    if any(leaf.read_at - alike for leaf in leaves):  # a projection would change what these calls read
        return None
    line = _project(value, leaves[0], evidence, are_several or len(leaves) > 1)
    return f"{line}; then read the parameter itself here, without the clamp"


def _project(value: Values, leaf: Leaf, evidence: Evidence, are_several: bool = False) -> str:
    """The line that clips a parameter after each step, and where to write it."""
    name = leaf.variable if leaf.variable and not leaf.namesakes else "parameter"
    owner, of_owner = evidence.leaves.names.owner_of(leaf), ""
    if are_several:
        name = "parameter"
    elif owner is not None:
        name = f"{owner.variable or 'model'}.get_parameter({evidence.leaves.names.path_of(leaf)!r})"
        of_owner = "" if owner.variable else f" of the {owner.kind} `model`"
    optimiser = next((optimiser for optimiser in evidence.recorder.optimisers.all if leaf in optimiser.leaves), None)
    of = "optimizer" if optimiser is None else optimiser.name or name_of_optimiser(expression_at(optimiser.location))
    line = f"pseudograd.optim.project({of}, {{{name}: ({value.pair})}})"
    bounds = "low and high are the bounds of this clamp; " if value.has_tensor_bound else ""
    each = " for each parameter that this line clamps" if are_several else ""
    return f"{line}  # {bounds}once{each}, after the optimizer{of_owner} was made, if no other line should see it outside this range"


def lead_inside(value: Values, evidence: Evidence) -> str:
    """The advice for a value that winds up outside its bounds."""
    leaves = evidence.leaves.unpack(value.leaf or value.detached)
    ascends = ", maximize=True" if any(leaf.ascends for leaf in leaves) else ""
    rule = f"pseudograd.clamp(..., rule={DEFAULT_RULE!r}{ascends})"
    instead_of = "in place of what passes the gradient outside"
    if leaves:
        low = value.bounds[0]
        compare = _MAY_BE_STEEP if low is not None and 0 < low <= NEAR_A_POLE else COMPARE
        return f"{_project(value, leaves[0], evidence)}; or {rule} {instead_of}{compare}"
    return f"{rule}  # {instead_of}{_UNLESS_MEANT}"
