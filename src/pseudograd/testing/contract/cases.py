"""A case is an op and one of its rules, with one choice of parameters, edge and maximize. It knows the sample inputs that fit."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from ...rule import Call, Op, Rule, RuleObject, Sample, call_for


class Case(NamedTuple):
    op: Op
    rule: Rule
    parameters: tuple[tuple[str, float], ...] = ()
    edge: str | int | None = None
    maximize: bool = False

    def __str__(self) -> str:
        parameters = ",".join(f"{key}={value:g}" for key, value in self.parameters)
        edge = "" if self.edge is None else str(self.edge)
        parts = [self.op.name, f"{self.rule.name}({parameters})" if parameters else self.rule.name, edge]
        return "-".join(part for part in [*parts, "ascent" if self.maximize else ""] if part)

    def __call__(self, *inputs: object) -> Tensor:
        """The public function, called as a user would."""
        return self.function()(*inputs)

    def function(self) -> Callable[..., Tensor]:
        """The public function with the options of this case. It does not refer to the case: Dynamo on torch 2.8 cannot trace a Case."""
        options: dict[str, object] = {}
        if len(self.op.rules) > 1:
            options["rule"] = RuleObject(self.rule.name, self.parameters) if self.parameters else self.rule.name
        if self.op.edges:
            options["edge"] = self.edge
        if self.op.takes_maximize:
            options["maximize"] = self.maximize
        public = self.op.public
        return lambda *inputs: public(*inputs, **options)

    def call(self) -> Call:
        """The record of op, rule, edge and maximize that the public function hands to the engine."""
        rule = RuleObject(self.rule.name, self.parameters) if self.parameters else self.rule.name
        return call_for(self.op, rule, self.edge, self.maximize)

    @property
    def all_parameters(self) -> dict[str, object]:
        return self.rule.keywords(self.edge if self.op.edges else None, dict(self.parameters))

    @property
    def is_linear(self) -> bool:
        return self.rule.is_linear_at(self.edge)

    def reference_in(self, dtype: torch.dtype) -> Callable[..., tuple[float, ...]]:
        """The rule's reference, a function of single numbers (x, grad, *other inputs). It rounds to dtype after every step."""
        options = {**self.all_parameters, "maximize": self.maximize} if self.op.takes_maximize else self.all_parameters
        return partial(self.rule.reference, fl=get_rounder(dtype), **options)

    @property
    def ulps(self) -> int:
        """The units in the last place by which two computations of this rule may differ.

        For example, torch rounds exp differently in the vectorised part of a loop and in the rest of the loop.
        """
        return self.rule.ulps

    def unit_of(self, grad: Tensor) -> Tensor | float:
        """The size of the numbers of which `ulps` are units, if grad_x is smaller: grad if terms of the rule cancel each other, else 0."""
        return torch.where(grad.isfinite(), grad, 0.0) if self.rule.cancels else 0.0

    def samples(self) -> list[Sample]:
        """The op's samples that have all inputs that the rule requires."""
        return [sample for sample in self.op.samples if not self._lacks(sample)]

    def _lacks(self, sample: Sample) -> bool:
        if not self.rule.requires:
            return False
        values = dict(zip(self.op.inputs, sample.build(torch.float64), strict=True))
        return any(values[name] is None for name in self.rule.requires)


@cache
def get_rounder(dtype: torch.dtype) -> Callable[[float], float]:
    """The function that rounds a Python float to dtype as torch does."""
    if dtype is torch.float64:
        return lambda value: value

    @cache
    def fl(value: float) -> float:
        return torch.tensor(value, dtype=torch.float64).to(dtype).item()

    return fl


def cases_of(op: Op) -> Iterator[Case]:
    for rule in op.rules.values():
        if None in rule.parameters.values():  # a rule that needs a user's function; it has tests of its own
            continue
        other_parameters = tuple((key, _non_default(rule, key, value)) for key, value in rule.parameters.items())
        for parameters in dict.fromkeys([(), other_parameters]):  # (): the defaults
            for edge in op.edges or (None,):
                for maximize in (False, True) if op.takes_maximize else (False,):
                    case = Case(op, rule, parameters, edge, maximize)
                    if case.samples():
                        yield case


def _non_default(rule: Rule, key: str, default: float) -> float:
    """A value of the parameter that is not its default."""
    return rule.choices[key][-1] if key in rule.choices else default * 0.375
