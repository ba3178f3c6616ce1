"""The variants in which everything is run: a clamp for every rule asked for, and always what a reader has without us."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import must, unknown_name
from ..ops.bounds import CLAMP, clamp
from ..parse_rule import parsed
from ..rewrite.override import override
from ..rewrite.pin_edge import pin_edge
from ..rule import OPS, Edge, Rule, RuleLike, RuleObject, make_call
from ..torch_table import eras as torch_eras
from ..torch_table.eras import Era
from ..torch_table.forms import SWITCHES
from .reached import OwnFunctions, Reached

Clamp = Callable[[Tensor, float, float], Tensor]
INSTALLED = "torch.clamp"
UNCHANGED = "torch's own"  # of several functions
NO_CLAMP = "no clamp"
PROJECT = "project"
_RULES = "compare: --rules"  # what an error calls them
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
    """Every era, every rule asked for, the installed torch's own op, no clamp, and on leaves the honest baseline `project`.

    Rules are variants or texts, "rule", "rule(parameters)" or either with "/edge"; an unknown name raises the op's own error.
    """
    of_eras = [name for name, era in eras().items() if name == era.rule]
    asked = {one if isinstance(one, str) else one.name: one for one in (*of_eras, *rules)}
    made = [with_rule(one, *parsed(CLAMP, one, _RULES)) if isinstance(one, str) else one for one in asked.values()]
    made.append(Variant(INSTALLED, lambda x, low, high: torch.clamp(x, low, high)))
    made.append(Variant(NO_CLAMP, lambda x, low, high: x * 1))
    if has_leaves:
        made.append(Variant(PROJECT, lambda x, low, high: x * 1, projects=True))
    return made


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


# --- those of a training ----------------------------------------------------------------------------------------------


class HandedClamp:
    """What `run` gets: called as torch.clamp is, and with `maximize=True` under gradient ascent. `name` is the variant's."""

    def __init__(self, variant: Variant) -> None:
        self.name = variant.name
        self.was_called = False
        self._clamp, self._ascending = variant.clamp, variant.ascending

    def __call__(self, input: Tensor, min: Any = None, max: Any = None, *, maximize: bool = False) -> Tensor:
        if min is None and max is None:  # torch.clamp's own error, in every variant
            return torch.clamp(input)
        if not self.was_called:  # a compiler sees this change once, and compiles once more
            self.was_called = True
        return (self._ascending if maximize else self._clamp)(input, min, max)

    def __repr__(self) -> str:
        return f"<clamp of compare: {self.name}>"


@dataclass
class Inside:
    """One entry of a variant: what is handed out, if anything is; and afterwards, whether it reached anything."""

    handed: Any = None
    projects: bool = False
    rewriting: Any = field(default=None, repr=False)
    own: OwnFunctions = field(default_factory=OwnFunctions, repr=False)

    @property
    def came_upon(self) -> Reached:
        return Reached.of(None if self.rewriting is None else self.rewriting.report(), self.own.places)

    @property
    def reached(self) -> bool:
        if isinstance(self.handed, HandedClamp):
            return self.handed.was_called
        if self.handed is not None:  # somebody else's function, which tells nobody
            return True
        return self.rewriting is not None and bool(self.rewriting.report().rewritten)


@dataclass(frozen=True)
class Ways:
    """All variants of one comparison, in their order: made anew in each process from what is plain data."""

    rules: tuple[tuple[str, RuleLike, Edge | None], ...]  # name, rule, edge
    families: tuple[str, ...] = ()  # of `override`; none: run is handed a clamp
    with_leaves: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        if self.families:
            return tuple(dict.fromkeys([*self.eras, *(name for name, _, _ in self.rules), self.baseline]))
        return tuple(variant.name for variant in self._handed())

    @property
    def candidates(self) -> tuple[str, ...]:
        """What `tune` chooses from."""
        return tuple(name for name, _, _ in self.rules)

    @property
    def eras(self) -> tuple[str, ...]:
        """Those of torch that its variants differ in. Handed clamps get numbers as bounds."""
        if self.families:
            return tuple(eras()) if "clamp" in self.families else ()
        return tuple(name for name, era in eras().items() if name == era.rule)

    @property
    def baseline(self) -> str:
        """What all are compared with: the program as it is."""
        if len(self.families) > 1:
            return UNCHANGED
        family = self.families[0] if self.families else "clamp"
        return f"torch.{family}" if hasattr(torch, family) else f"torch's {family}"

    def _handed(self) -> list[Variant]:
        asked = [with_rule(name, rule, edge) for name, rule, edge in self.rules]
        return variants(asked, has_leaves=self.with_leaves)

    def check_travels(self, where: str) -> None:
        """Plain data does."""

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[Inside]:
        if not self.families:
            variant = next(one for one in self._handed() if one.name == name)
            yield Inside(HandedClamp(variant), variant.projects)
            return
        inside = Inside(rewriting=self._rewriting(name))
        with inside.rewriting or inside.own.watched():
            yield inside

    def _rewriting(self, name: str) -> object:
        """For an era all that torch's clamps do there, tensor bounds too; for a rule, the families that were asked for."""
        if name == self.baseline:
            return None
        if name in self.eras:
            return pin_edge(eras()[name].name)
        rule = next(rule for own, rule, _ in self.rules if own == name)
        return override(**dict.fromkeys(self.families, rule))  # type: ignore[arg-type]


def ways(
    where: str,
    rules: Iterable[str | RuleObject] | None,
    edges: Sequence[str] | None,
    replace: str | Sequence[str] | None,
    with_leaves: bool,
    prefix: str = "",
) -> Ways:
    """The variants asked for, checked. `prefix` stands before the names of arguments in errors: "--" for a command."""
    families = _families(where, replace, prefix)
    if rules is None:
        rules = _default_rules(families)
    argument = f"{where}: {prefix}rules"
    if isinstance(rules, (str, RuleObject)) or not isinstance(rules, Iterable):
        raise TypeError(must(where, f"{prefix}rules", "be a list of rules", rules, "Write [...] around it"))
    if families and edges is not None:
        remedy = "Under replace each family has its own edge, and every era always runs"
        raise ValueError(must(where, f"{prefix}edges", "be left out with replace", tuple(edges), remedy))
    if isinstance(edges, str) or edges == ():
        raise TypeError(must(where, f"{prefix}edges", "be a list of edges", edges, "Write [...] around it"))
    found: dict[str, tuple[str, RuleLike, Edge | None]] = {}
    for given in rules:
        for one in _with_edges(given, edges, families, where, argument):
            found.setdefault(one[0], one)
    return Ways(tuple(found.values()), families, with_leaves and not families)


def _default_rules(families: tuple[str, ...]) -> list[str]:
    """Those of `compare`; for families that have none of them, all of theirs that need no function."""
    shared = [OPS[SWITCHES[family]].rules for family in families] or [CLAMP.rules]
    known = [name for name, row in shared[0].items() if None not in row.parameters.values() and not row.is_users]
    common = [name for name in known if all(name in rules for rules in shared)]
    return [name for name in DEFAULT_RULES if name in common] if "inward" in common else common


def _families(where: str, replace: str | Sequence[str] | None, prefix: str) -> tuple[str, ...]:
    families = () if replace is None else (replace,) if isinstance(replace, str) else tuple(replace)
    for family in families:
        if family not in SWITCHES:
            raise unknown_name(where, f"{prefix}replace", SWITCHES, family)
    if replace is not None and not families:
        raise ValueError(must(where, f"{prefix}replace", "name at least one family of override", replace))
    return families


def _with_edges(
    given: object, edges: Sequence[str] | None, families: tuple[str, ...], where: str, argument: str
) -> Iterator[tuple[str, RuleLike, Edge | None]]:
    """One rule: as it is, or with each edge where it names none and has one."""
    op = OPS[SWITCHES[families[0]]] if families else CLAMP
    if isinstance(given, str):
        rule, edge = parsed(op, given, argument)
    elif isinstance(given, RuleObject):
        make_call(op, given, op.default_edge)
        rule, edge = given, None
    else:
        raise TypeError(must(where, "rules", "be names or rule objects", given, 'Such as "inward" or rules.leaky(0.2)'))
    name = given.strip() if isinstance(given, str) else repr(given)
    if families:
        if edge is not None:
            raise ValueError(must(where, "rules", "name no edge with replace", given, "Each family has its own"))
        for family in families[1:]:
            other = OPS[SWITCHES[family]]
            make_call(other, rule, other.default_edge)
        yield name, rule, None
        return
    row = op.rules[rule.name if isinstance(rule, RuleObject) else rule]
    if edge is not None or edges is None or row.ignores_edge:
        yield name, rule, edge
        return
    for asked in edges:
        make_call(op, rule, asked)  # the error of an unknown edge
        yield f"{name}/{asked}", rule, asked
