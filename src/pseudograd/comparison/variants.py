"""The variants of a comparison: the chosen rules, and always torch's own clamps; or functions of the user's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ..errors import must, unknown_name
from ..ops.bound_rules import COMPARED_RULES, DEFAULT_RULE, EXAMPLE
from ..ops.bounds import CLAMP, clamp
from ..parse_rule import parsed
from ..rewrite.context import Rewriting
from ..rewrite.override import override
from ..rewrite.pin_edge import pin_edge
from ..rule import OPS, Edge, EdgeAtBound, Op, Rule, RuleLike, RuleObject, make_call
from ..torch_table import eras as torch_eras
from ..torch_table.eras import Era
from ..torch_table.forms import SWITCHES
from .reached import Call, Reach, watch_own_functions

Bound = float | None  # a tensor works, too
Clamp = Callable[[Tensor, Bound, Bound], Tensor]
RuleAndEdge = tuple[RuleLike, Edge | None]
INSTALLED = "torch.clamp"
NO_CLAMP = "no clamp"
PROJECT = "project"


def eras() -> dict[str, Era]:
    """The eras of torch, oldest first. The key is the rule with the same gradients if bounds are numbers. If an older era has this rule,
    the key is the name of the era.
    """
    by_name: dict[str, Era] = {}
    for era in torch_eras.ERAS.values():
        by_name[era.name if era.rule in by_name else era.rule] = era
    return by_name


class Variant(NamedTuple):
    """A clamp with the name that reports and figures show."""

    name: str
    clamp: Clamp
    projects: bool = False  # the clamp returns its input, and the training clips its parameters after each step
    maximizing: Clamp | None = None  # the clamp for gradient ascent, if it is another function

    @property
    def ascending(self) -> Clamp:
        return self.maximizing or self.clamp


def variants(rules: Iterable[str | Variant] = COMPARED_RULES, *, has_leaves: bool) -> list[Variant]:
    """Every era, every given rule, the clamp of the installed torch, no clamp, and `project` if the training has leaves to clip.

    rules: variants, or texts such as "rule", "rule(parameters)", "rule/edge". An unknown name raises the error of the op.
    """
    names = [name for name, era in eras().items() if name == era.rule]
    chosen = {rule if isinstance(rule, str) else rule.name: rule for rule in (*names, *rules)}
    result = [
        rule_variant(rule, *parsed(CLAMP, rule, "compare: --rules")) if isinstance(rule, str) else rule
        for rule in chosen.values()
    ]
    result.append(Variant(INSTALLED, lambda x, low, high: torch.clamp(x, low, high)))
    result.append(Variant(NO_CLAMP, lambda x, low, high: x * 1))
    return [*result, Variant(PROJECT, lambda x, low, high: x * 1, projects=True)] if has_leaves else result


def rule_variant(name: str, rule: RuleLike, edge: Edge | None) -> Variant:
    call = partial(clamp, rule=rule, edge=cast("EdgeAtBound", edge or CLAMP.default_edge))
    return Variant(name, call, maximizing=partial(call, maximize=True))


def users_rows(rules: Iterable[RuleLike]) -> list[Rule]:
    """The rows of the rules that the user registered. rules: objects or texts."""
    names = [rule.name if isinstance(rule, RuleObject) else rule.split("(")[0].split("/")[0].strip() for rule in rules]
    rows = [op.rules[name] for op in OPS.values() for name in names if name in op.rules]
    return [row for row in rows if row.is_from_user]


class HandedClamp:
    """The argument `clamp` of a run. Call it like torch.clamp, with `maximize=True` for gradient ascent. `name` names the variant."""

    def __init__(self, variant: Variant) -> None:
        self.name = variant.name
        self.was_called = False
        self._clamp, self._ascending = variant.clamp, variant.ascending

    def __call__(self, input: Tensor, min: Bound = None, max: Bound = None, *, maximize: bool = False) -> Tensor:
        if min is None and max is None:  # torch.clamp's own error, in every variant
            return torch.clamp(input)
        if not self.was_called:  # a compiler sees this change once, and compiles once more
            self.was_called = True
        return (self._ascending if maximize else self._clamp)(input, min, max)


@dataclass
class Entry:
    """A variant during a run."""

    handed: object = None  # the argument that the run gets; None if it gets none
    projects: bool = False  # the run clips its parameters after each step
    # The context of `override` or `pin_edge` that the run is in; None without a context.
    rewriting: Rewriting | None = field(default=None, repr=False)
    # The calls of the program's autograd Functions and of ops of this library, which have a rule of their own.
    own: Mapping[Call, None] = field(default_factory=dict, repr=False)

    @property
    def reach(self) -> Reach:
        return Reach.from_report(None if self.rewriting is None else self.rewriting.report(), self.own)

    @property
    def has_acted(self) -> bool:
        """Was the clamp called, or a function rewritten? True for a function of the user, whose calls are not counted."""
        if isinstance(self.handed, HandedClamp):
            return self.handed.was_called
        return self.handed is not None or (self.rewriting is not None and bool(self.rewriting.report().rewritten))


@dataclass(frozen=True)
class Choice:
    """The variants of one comparison, in their order, as plain data: each process builds the variants from it."""

    by_name: Mapping[str, object]  # for each variant a rule of clamp with its edge, or a function of the user
    families: tuple[str, ...] = ()  # the families of `override`. If there is none, the run gets a clamp as an argument.
    has_project: bool = False  # the run has an argument `project`
    own_baseline: str | None = None  # the variant that all others are compared with, if the user gave all variants

    @property
    def is_given(self) -> bool:
        """Did the user give all variants?"""
        return self.own_baseline is not None

    @property
    def rules(self) -> dict[str, RuleAndEdge]:
        return {name: variant for name, variant in self.by_name.items() if isinstance(variant, tuple)}

    @property
    def names(self) -> tuple[str, ...]:
        if self.is_given:
            return tuple(self.by_name)
        if self.families:
            return tuple(dict.fromkeys([*self.eras, *self.by_name, self.baseline]))
        return tuple(variant.name for variant in self._variants_of_argument())

    @property
    def candidates(self) -> tuple[str, ...]:
        """The variants that `tune` chooses from."""
        return tuple(name for name in self.by_name if name != self.own_baseline)

    @property
    def eras(self) -> tuple[str, ...]:
        """The variants that are eras of torch. A clamp as an argument gets numbers as bounds, so eras with one rule are one variant."""
        if self.is_given or (self.families and "clamp" not in self.families):
            return ()
        return tuple(name for name, era in eras().items() if self.families or name == era.rule)

    @property
    def baseline(self) -> str:
        """The variant that all are compared with: the program as it is, unless the user names one."""
        if self.own_baseline is not None:
            return self.own_baseline
        if len(self.families) > 1:
            return "torch's own"  # of several functions
        family = self.families[0] if self.families else "clamp"
        return f"torch.{family}" if hasattr(torch, family) else f"torch's {family}"

    def _variants_of_argument(self) -> list[Variant]:
        return variants(
            [rule_variant(name, *rule_and_edge) for name, rule_and_edge in self.rules.items()],
            has_leaves=self.has_project,
        )

    @contextlib.contextmanager
    def enter(self, name: str) -> Iterator[Entry]:
        """Prepare the variant of this name for one run."""
        if self.is_given:
            is_rule = name in self.rules
            yield Entry(HandedClamp(rule_variant(name, *self.rules[name])) if is_rule else self.by_name[name])
        elif not self.families:
            variant = next(variant for variant in self._variants_of_argument() if variant.name == name)
            yield Entry(HandedClamp(variant), variant.projects)
        else:
            rewriting = self._rewriting(name)
            if rewriting is None:
                with watch_own_functions() as own:
                    yield Entry(own=own)
            else:
                with rewriting:
                    yield Entry(rewriting=rewriting)

    def _rewriting(self, name: str) -> Rewriting | None:
        """The context of a variant: an era rewrites all clamps of torch, a rule the chosen families. None for the baseline."""
        if name == self.baseline:
            return None
        if name in self.eras:
            return pin_edge(eras()[name].name)
        return override(**dict.fromkeys(self.families, self.rules[name][0]))


def choose_rules(
    where: str, rules: Iterable[str | RuleObject] | None, replace: str | Sequence[str] | None, has_project: bool
) -> Choice:
    """The variants for these rules of clamp, checked."""
    families = (replace,) if isinstance(replace, str) else tuple(replace or ())
    for family in families:
        if family not in SWITCHES:
            raise unknown_name(where, "replace", SWITCHES, family)
    if replace is not None and not families:
        raise ValueError(must(where, "replace", "name at least one family of override", replace))
    if rules is None:
        rules = _default_rules(families)
    if isinstance(rules, (str, RuleObject)) or not isinstance(rules, Iterable):
        raise TypeError(must(where, "rules", "be a list of rules", rules, "Write [...] around it"))
    variants: dict[str, RuleAndEdge] = {}
    for rule in rules:
        name = rule.strip() if isinstance(rule, str) else repr(rule)
        variants.setdefault(name, _check_rule(where, rule, families))
    return Choice(variants, families, has_project and not families)


def _default_rules(families: tuple[str, ...]) -> list[str]:
    """The usual rules of clamp. For families that lack them: all rules that the families share and that need no function of the user."""
    shared = [OPS[SWITCHES[family]].rules for family in families] or [CLAMP.rules]
    complete = [name for name, row in shared[0].items() if None not in row.parameters.values() and not row.is_from_user]
    common = [name for name in complete if all(name in rules for rules in shared)]
    return [name for name in COMPARED_RULES if name in common] if CLAMP.default_rule in common else common


def _check_rule(where: str, rule_or_text: object, families: tuple[str, ...]) -> RuleAndEdge:
    """The rule, and the edge that it names. Raises an error if a family does not have the rule."""
    op, *others = [OPS[SWITCHES[family]] for family in families] or [CLAMP]
    rule, edge = _parse_rule(where, "rules", rule_or_text, op)
    if families and edge is not None:
        raise ValueError(must(where, "rules", "name no edge with replace", rule_or_text, "Each family has its own"))
    for other in others:  # for the error of a family that does not have the rule
        make_call(other, rule, other.default_edge)
    return rule, edge


def _parse_rule(where: str, argument: str, rule: object, op: Op) -> RuleAndEdge:
    if isinstance(rule, str):
        return parsed(op, rule, f"{where}: {argument}")
    if isinstance(rule, RuleObject):
        make_call(op, rule, op.default_edge)
        return rule, None
    example = f"Such as {DEFAULT_RULE!r} or rules.{EXAMPLE}"
    raise TypeError(must(where, argument, "be names or rule objects", rule, example))


def choose_own(where: str, variants: object, baseline: str | None, others: Mapping[str, object]) -> Choice:
    """The user's own variants, checked. others: arguments that choose variants in another way, by name."""
    if not isinstance(variants, Mapping):
        remedy = 'Such as {"mine": partial(pg.sign, rule=...), "as it is": torch.sign}'
        raise TypeError(must(where, "variants", "be functions or rules by name", variants, remedy))
    for name, value in others.items():
        if value is not None:
            raise ValueError(must(where, name, "be left out with variants", value, "They name all that is compared"))
    if len(variants) < 2:
        raise ValueError(must(where, "variants", "be at least two, one of them the baseline", list(variants)))
    by_name: dict[str, object] = {}
    for name, variant in variants.items():
        if not isinstance(name, str) or not name.strip():
            raise TypeError(must(where, "variants", "have names that are texts", name))
        is_rule = isinstance(variant, (str, RuleObject))
        if not is_rule and not callable(variant):
            raise TypeError(must(where, "variants", "be functions, or rules of clamp", f"{name}={variant!r}"))
        by_name[name] = _parse_rule(where, "variants", variant, CLAMP) if is_rule else variant
    if baseline is not None and baseline not in by_name:
        raise unknown_name(where, "baseline", by_name, baseline)
    return Choice(by_name, own_baseline=baseline or next(iter(by_name)))
