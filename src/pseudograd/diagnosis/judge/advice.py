"""The next step of a finding: a line to paste where possible, and never a line that this run knows to have no effect."""

from __future__ import annotations

import os

from ...listen.frames import file_of, is_of_a_package, lines_of
from ...ops.bound_rules import DEFAULT_RULE, LEAKY_RULE
from ...rule import OPS
from ...torch_table.forms import SWITCHES
from ..count.recorder import HOOK
from ..count.values import Values
from ..records import Site

_UNKNOWN_LINE = (
    "Enter pseudograd.diagnose before this call, in the thread that makes it, inside the function that the thread runs: then the line is "
    "known, and override acts there."
)
# to try, by family
_RULES = {**{family: OPS[family].default_rule for family in ("clamp", "round", "sign")}, "relu": LEAKY_RULE}
_AROUND_THE_STEP = "  # around the training step"
_AS_IT_WILL_BE = ", with the line as it is after this edit"
_LONGEST = 80  # characters of an expression in a line to paste


def override(site: Site, rule: str, brings: str = "") -> str:
    """The rule at this call, by its source where that is nowhere else in its file: the edit moves its line."""
    if site.where == "?":
        return _UNKNOWN_LINE
    if site.within is not None:
        return write_out("override", site.op, site.within)
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
    return f"with pseudograd.override({chosen}): ...{hint}{brings}"


def try_rule(site: Site, brings: str = "") -> str | None:
    """The rule that usually helps the family of this op; None if there is none."""
    rule = _RULES.get(site.family or "")
    return None if rule is None else override(site, rule, brings)


def pin(site: Site, era: str) -> str:
    """The edge of an era."""
    if site.within is not None and site.where != "?":
        return write_out("pin_edge", site.op, site.within)
    return f"with pseudograd.pin_edge({era!r}): ...{_AROUND_THE_STEP}"


def write_out(context: str, op: str, within: str) -> str:
    """The advice where the context cannot reach the op."""
    return f"Write this call out in torch's own functions: {context} does not reach the {op} inside {within}, which torch runs as one call."


def revive(site: Site) -> str:
    """The advice for a dead op: a rule whose slope is nowhere 0, if its family has one."""
    if site.family in SWITCHES and LEAKY_RULE in OPS[SWITCHES[site.family]].rules:
        return override(site, LEAKY_RULE)
    return look_at(site)


def look_at(site: Site) -> str:
    """The advice where no rule is known to help."""
    if site.op == HOOK:
        return "Let the hook return what should pass, or remove it: its handle has remove()."
    return site.own_remedy or "Look at the values that enter here: print their range."


def lead_inside(value: Values, names: list[str]) -> str:
    """The advice for a value that winds up outside its bounds."""
    low, high = value.bounds
    bounds = "(low, high)" if value.has_tensor_bound else f"({low!r}, {high!r})"
    if value.leaf or value.detached:
        parameter = f"model.get_parameter({names[0]!r})" if names else "parameter"
        project = f"pseudograd.optim.project(optimizer, {{{parameter}: {bounds}}})"
        return f"{project}  # once, after the optimizer was made; or rule={DEFAULT_RULE!r} here"
    ends = ", ".join(f"{name}={bound!r}" for name, bound in (("min", low), ("max", high)) if bound is not None)
    return f"pseudograd.clamp(x, {ends or 'low, high'}, rule={DEFAULT_RULE!r})  # in place of what passes the gradient outside"
