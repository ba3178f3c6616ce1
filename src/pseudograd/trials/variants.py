"""The variants in which everything is run: a clamp for every rule asked for, and always what a reader has without us."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import torch_eras
from ..ops.bounds import CLAMP, clamp
from ..rule import OPS, Edge, Rule, RuleLike, RuleObject
from ..rule_text import parsed
from ..torch_eras import Era

Clamp = Callable[[Tensor, float, float], Tensor]
INSTALLED = "torch.clamp"
NO_CLAMP = "no clamp"
PROJECT = "project"
DEFAULT_RULES = ("inward", "identity", "sign", "leaky", "elastic", "inverting")


def eras() -> dict[str, Era]:
    """From the oldest on, by variant: the rule that does the same with number bounds, or where an older era has that, its own name."""
    found: dict[str, Era] = {}
    for era in torch_eras.ERAS.values():
        found[era.name if era.rule in found else era.rule] = era
    return found


class Variant(NamedTuple):
    """A clamp under the name that reports and figures show. `projects` asks a world to clip its leaves after each step instead.

    `maximizing` is the same clamp as gradient ascent needs it, where that is another one.
    """

    name: str
    clamp: Clamp
    projects: bool = False
    maximizing: Clamp | None = None

    @property
    def ascending(self) -> Clamp:
        return self.maximizing or self.clamp


def variants(rules: Iterable[str | Variant] = DEFAULT_RULES, *, has_leaves: bool) -> list[Variant]:
    """Every rule asked for, every era, the installed torch's own op, no clamp, and on leaves the honest baseline `project`."""
    of_eras = [name for name, era in eras().items() if name == era.rule]
    asked = {one if isinstance(one, str) else one.name: one for one in (*of_eras, *rules)}
    made = [of_rule(one) if isinstance(one, str) else one for one in asked.values()]
    made.append(Variant(INSTALLED, lambda x, low, high: torch.clamp(x, low, high)))
    made.append(Variant(NO_CLAMP, lambda x, low, high: x * 1))
    if has_leaves:
        made.append(Variant(PROJECT, lambda x, low, high: x * 1, projects=True))
    return made


def of_rule(name: str, argument: str = "compare: --rules") -> Variant:
    """A variant from "rule", "rule(parameters)" or either with "/edge"; an unknown name raises the op's own error."""
    rule, edge = parsed(CLAMP, name, argument)
    return with_rule(name, rule, edge)


def with_rule(name: str, rule: RuleLike, edge: Edge | None) -> Variant:
    how: dict[str, Any] = {"rule": rule, "edge": edge or CLAMP.default_edge}
    return Variant(
        name,
        lambda x, low, high: clamp(x, low, high, **how),
        maximizing=lambda x, low, high: clamp(x, low, high, maximize=True, **how),
    )


def users_rows(rules: Iterable[RuleLike]) -> list[Rule]:
    """The rows of those among `rules`, given as objects or texts, that the user registered."""
    names = [one.name if isinstance(one, RuleObject) else one.split("(")[0].split("/")[0].strip() for one in rules]
    rows = [op.rules[name] for op in OPS.values() for name in names if name in op.rules]
    return [row for row in rows if row.is_users]
