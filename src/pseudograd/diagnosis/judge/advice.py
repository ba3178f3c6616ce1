"""The next step of a finding: if possible a line to paste, and never a line that would have no effect in this run."""

from __future__ import annotations

import ast
import os
import re
from typing import TYPE_CHECKING

from ...listen.frames import file_and_line, file_of, is_of_a_package, lines_of
from ...ops.bound_rules import DEFAULT_RULE, LEAKY_RULE
from ...rule import OPS
from ...torch_table.eras import installed_era
from ...torch_table.forms import SWITCHES
from ..count.leaf import Leaf
from ..count.recorder import HOOK
from ..count.values import Values
from ..records import Site, Structural
from ..sites import ASCENT, UNKNOWN, expression_at
from .statements import name_of_optimiser

if TYPE_CHECKING:
    from .findings.kind import Evidence

_UNKNOWN_LINE = (
    "Enter pseudograd.diagnose before this call, in the thread that makes it, inside the function that the thread runs: then the line is "
    "known, and override acts there. If the call is in TorchScript, in C++ or in the __torch_function__ of a class, no context sees it: "
    "write it out there."
)
# For an op whose result is a choice.
REPLACE_GRAD = (
    "pseudograd.replace_grad(hard, soft)  # two tensors: the value of the hard choice, the gradient of a soft one"
)
# By family: the rule to try.
_RULES = {**{family: OPS[family].default_rule for family in ("clamp", "round", "sign")}, "relu": LEAKY_RULE}
_CAST = r"\.(float\(|type_as\(|(to|type)\((dtype=)?[\w.]*(dtype|float\d*)\))"  # a choice becomes a number, and no index or mask
_AROUND_THE_STEP = "  # around the training step"
_AS_IT_WILL_BE = ", with the line as it is after this edit"
_LONGEST = 80  # characters of an expression in a line to paste


def override(site: Site, rule: str, effect: str = "") -> str:
    """The line that gives this call the rule. effect: a clause about the effect.

    It names the call by its source if that occurs only once in the file, because the edit moves the call to another line.
    """
    if site.where == "?":
        return _UNKNOWN_LINE
    if site.within is not None:
        return write_out("override", site.op, site.within)
    if rule == DEFAULT_RULE and site.direction == ASCENT:
        why = "in place of this call, as its optimizer ascends"
        return f"pseudograd.{site.family}(..., maximize=True)  # {why}{effect}"
    condition, hint = f"site.is_at({site.where!r})", _AROUND_THE_STEP
    if rule == DEFAULT_RULE and site.direction == UNKNOWN:
        effect += "; if the program adds this gradient, pseudograd.clamp(..., maximize=True) in place of this call"
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
    return f"with pseudograd.override({chosen}): ...{hint}{effect}"


def try_rule(site: Site, effect: str = "") -> str | None:
    """The rule that usually helps the family of this op; None if there is none."""
    rule = _RULES.get(site.family or "")
    return None if rule is None else override(site, rule, effect)


def pin(site: Site, era: str, evidence: Evidence) -> str:
    """The line that pins an era. If that era would pass gradients that a guard stops now: the default rule at this call alone."""
    if site.within is not None and site.where != "?":
        return write_out("pin_edge", site.op, site.within)
    guard = guard_against(era, evidence)
    if guard is not None:
        return override(site, DEFAULT_RULE, f": a pin would pass what is not finite at {guard.where}")
    return f"with pseudograd.pin_edge({era!r}): ...{_AROUND_THE_STEP}"


def guard_against(era: str, evidence: Evidence) -> Site | None:
    """An op that stops gradients that are not finite, of which this era would pass some exactly at the bound."""
    for site in evidence.sites:
        if site.is_guard and site.at_bound and site.eras.get(era, 0.0) > site.eras.get(installed_era(), 0.0):
            return site
    return None


def write_out(context: str, op: str, within: str) -> str:
    """The advice for an op that the context cannot reach."""
    return f"Write this call out in torch's own functions: {context} does not reach the {op} inside {within}, which torch runs as one call."


def replace_choice(choice: Structural) -> str:
    """The advice for a choice that cuts: for a comparison that becomes a number at once, such as a spike, a step with a gradient."""
    expression, source = choice.expression, choice.source
    lines = lines_of(source[0])[source[1] - 1 : source[1]] if source is not None else []
    if not any(re.search(re.escape(f"({expression})") + _CAST, line) for line in lines):
        return REPLACE_GRAD
    tree = ast.parse(expression, mode="eval").body
    if not isinstance(tree, ast.Compare) or len(tree.ops) > 1 or isinstance(tree.ops[0], (ast.Eq, ast.NotEq)):
        return REPLACE_GRAD
    above, below = tree.left, tree.comparators[0]
    if isinstance(tree.ops[0], (ast.Lt, ast.LtE)):
        above, below = below, above
    at_zero = ", at_zero=0.0" if isinstance(tree.ops[0], (ast.Gt, ast.Lt)) else ""
    difference = ast.unparse(above if getattr(below, "value", None) == 0 else ast.BinOp(above, ast.Sub(), below))
    return f"pseudograd.heaviside({difference}{at_zero})  # in place of the comparison and its cast: it has a gradient near 0"


def revive(site: Site) -> str:
    """The advice for a dead op: a rule whose slope is nowhere 0, if its family has one."""
    if site.family in SWITCHES and LEAKY_RULE in OPS[SWITCHES[site.family]].rules:
        return override(site, LEAKY_RULE)
    return look_at(site)


def look_at(site: Site) -> str:
    """The advice where no rule is known to help."""
    if site.op == HOOK:
        return "Let the hook return what should pass, or remove it: its handle has remove()."
    if site.op == "mul":
        return "Print the other factor: it is 0, or so small that the product is."
    if site.op == "where":
        return "Print the condition: wherever a gradient arrives, it chooses the other value."
    if site.op == "abs":
        return "Start what enters here elsewhere: torch's abs passes nothing exactly at 0."
    if site.op in ("softmax", "logSoftmax"):
        return "Print the shape and the range of what enters here: over one entry it is a constant, and far apart it is flat."
    if site.op in ("bernoulli", "poisson"):
        return REPLACE_GRAD
    if site.op == "normal":
        return "mean + std * torch.randn_like(mean)  # in place of torch.normal(mean, std): a draw with a gradient"
    return site.own_remedy or "Look at the values that enter here: print their range."


def clip_parameter(site: Site, evidence: Evidence) -> str | None:
    """The advice for a clamp that reads a parameter itself; None for any other op."""
    line = site.where, site.expression
    values = [
        value
        for value in evidence.values
        if (file_and_line(value.location.call), expression_at(value.location)) == line
    ]
    advised = [clip(value, evidence) for value in values if value.upstream]
    return advised[0] if len(advised) == 1 and site.family == "clamp" else None


def clip(value: Values, evidence: Evidence) -> str | None:
    """The advice for a clamp that reads one parameter, which an optimiser steps; None for others, and in an installed package."""
    leaf = evidence.leaves.single(value.leaf)
    is_of_the_program = value.location.call == value.location.program and value.form.switches[0] == "clamp"
    if not is_of_the_program or not value.reads_leaf or leaf is None or not leaf.is_stepped:
        return None
    return f"{_project(value, leaf, evidence)}; then read the parameter itself here, without the clamp"


def _project(value: Values, leaf: Leaf, evidence: Evidence) -> str:
    """The line that clips a parameter after each step, and where to write it."""
    name = leaf.variable if leaf.variable and not leaf.namesakes else "parameter"
    owner, of_owner = evidence.leaves.names.owner_of(leaf), ""
    if owner is not None:
        name = f"{owner.variable or 'model'}.get_parameter({evidence.leaves.names.path_of(leaf)!r})"
        of_owner = "" if owner.variable else f" of the {owner.kind} `model`"
    optimiser = next((optimiser for optimiser in evidence.recorder.optimisers.all if leaf in optimiser.leaves), None)
    of = "optimizer" if optimiser is None else optimiser.name or name_of_optimiser(expression_at(optimiser.location))
    return f"pseudograd.optim.project({of}, {{{name}: ({value.pair})}})  # once, after the optimizer{of_owner} was made"


def lead_inside(value: Values, evidence: Evidence) -> str:
    """The advice for a value that winds up outside its bounds."""
    leaves = evidence.leaves.unpack(value.leaf or value.detached)
    if leaves:
        rule = f"rule={DEFAULT_RULE!r}{', maximize=True' if leaves[0].ascends else ''}"
        return f"{_project(value, leaves[0], evidence)}; or {rule} here"
    low, high = value.bounds
    ends = ", ".join(f"{name}={bound!r}" for name, bound in (("min", low), ("max", high)) if bound is not None)
    return f"pseudograd.clamp(x, {ends or 'low, high'}, rule={DEFAULT_RULE!r})  # in place of what passes the gradient outside"
