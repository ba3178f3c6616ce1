"""Rules as text, as commands take them: `NAME`, `NAME(0.2)`, `NAME(width=0.5)`, `NAME(0.2)/open`.

A range may be in the place of a number, "NAME(0.01..1)": `tune` searches it, `plot` slides along it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from .errors import must, unknown_name
from .rule import Edge, Op, Rule, RuleLike, RuleObject, make_call

_FORM = re.compile(r"(?P<name>[^()/]+?)\s*(\((?P<given>[^()]*)\))?\s*(/\s*(?P<edge>[^()/]+))?")


def items(text: str) -> list[str]:
    """The parts between the commas; a comma inside parentheses separates nothing."""
    return [item.strip() for item in re.split(r",(?![^()]*\))", text)]


def parsed(op: Op, text: str, argument: str) -> tuple[RuleLike, Edge | None]:
    """The rule of `op`, checked, and the edge if the text names one. `argument` is what an error calls the text."""
    match = _FORM.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{argument} must be NAME, NAME(VALUE) or NAME(KEY=VALUE, ...), got {text!r}.")
    name, values, edge = match["name"], match["given"], match["edge"]
    rule: RuleLike = name
    if values and values.strip() and name in op.rules:
        rule = RuleObject(name, _parameters(op.rules[name], items(values)))
    call = make_call(op, rule, op.default_edge if edge is None else edge)
    return rule, edge and call.edge


def _parameters(rule: Rule, texts: list[str]) -> tuple[tuple[str, float], ...]:
    """Values by name, or in the order in which the rule lists its parameters."""
    if len(texts) > len(rule.parameters):
        allowed = f"be at most {len(rule.parameters)}" if rule.parameters else "be absent"
        raise ValueError(must(rule.name, "parameters", allowed, ", ".join(texts)))
    parameters: dict[str, float] = {}
    for position, text in enumerate(texts):
        before, equals, after = (part.strip() for part in text.partition("="))
        key, value = (before, after) if equals else (list(rule.parameters)[position], before)
        if key not in rule.parameters:
            raise unknown_name(rule.name, "parameter", rule.parameters, key)
        if key in parameters:
            raise ValueError(must(rule.name, key, "be given once", ", ".join(texts)))
        parameters[key] = _number(rule, key, value)
    return tuple(parameters.items())


def _number(rule: Rule, key: str, text: str) -> float:
    if rule.parameters[key] is None:
        raise ValueError(must(rule.name, key, "be a function, which only Python can name", text))
    try:
        return float(text)
    except ValueError:
        raise ValueError(must(rule.name, key, "be a number", text, f"The default is {rule.parameters[key]}")) from None


# --- ranges -----------------------------------------------------------------------------------------------------------

_RANGE = re.compile(r"(?P<low>[^=]+?)\s*\.\.\s*(?P<high>.+)")
_FORM_WITH_RANGE = re.compile(r"(?P<rule>[^()/]+?)\s*\((?P<given>[^()]*\.\.[^()]*)\)\s*(?P<edge>/.*)?")


@dataclass(frozen=True)
class Range:
    """A rule with ranges for some parameters. fixed: the texts of the others. ends: by parameter, low and high."""

    text: str
    rule: str
    fixed: tuple[str, ...]
    ends: tuple[tuple[str, float, float], ...]
    edge: str = ""

    def fill(self, values: Iterable[float]) -> str:
        """The rule as text, to three digits."""
        numbers = [f"{name}={value:.3g}" for (name, _, _), value in zip(self.ends, values, strict=True)]
        return f"{self.rule}({', '.join([*self.fixed, *numbers])}){self.edge}"


def range_of(where: str, text: str, op: Op, argument: str = "rules") -> Range | None:
    """The range in the text of a rule; None for a rule without one."""
    form = _FORM_WITH_RANGE.fullmatch(text.strip())
    if form is None:
        return None
    row = op.rules.get(form["rule"])
    names = list(row.parameters) if row is not None else []
    fixed, ends = [], []
    for position, item in enumerate(items(form["given"])):
        before, equals, after = (part.strip() for part in item.partition("="))
        name = before if equals else names[position] if position < len(names) else "parameter"
        match = _RANGE.fullmatch(after if equals else before)
        if match is None:
            fixed.append(f"{name}={after if equals else before}")
            continue
        ends.append((name, *_ends(where, argument, text, match["low"], match["high"])))
    rule_range = Range(text, form["rule"], tuple(fixed), tuple(ends), form["edge"] or "")
    for end in (0, 1):  # an unknown rule, parameter or edge, and an end that the rule refuses
        parsed(op, rule_range.fill([(low, high)[end] for _, low, high in ends]), f"{where}: {argument}")
    return rule_range


def _ends(where: str, argument: str, text: str, low: str, high: str) -> tuple[float, float]:
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = math.nan, math.nan
    if not (all(map(math.isfinite, ends)) and ends[0] < ends[1]):
        remedy = "Write the lower end first, as in NAME(0.01..1)"
        raise ValueError(must(where, argument, "have ranges of two numbers", text, remedy))
    return ends
