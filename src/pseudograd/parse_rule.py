"""Rules as text, as commands take them: `NAME`, `NAME(0.2)`, `NAME(width=0.5)`, `NAME(0.2)/open`."""

from __future__ import annotations

import re

from .errors import must, unknown_name
from .rule import Edge, Op, Rule, RuleLike, RuleObject, make_call

_FORM = re.compile(r"(?P<name>[^()/]+?)\s*(\((?P<given>[^()]*)\))?\s*(/\s*(?P<edge>[^()/]+))?")


def items(text: str) -> list[str]:
    """The parts between commas that stand outside parentheses."""
    return [item.strip() for item in re.split(r",(?![^()]*\))", text)]


def parsed(op: Op, text: str, argument: str) -> tuple[RuleLike, Edge | None]:
    """The rule of `op`, checked, and the edge if the text names one. `argument` is what an error calls the text."""
    match = _FORM.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{argument} must be NAME, NAME(VALUE) or NAME(KEY=VALUE, ...), got {text!r}.")
    name, values, edge = match["name"], match["given"], match["edge"]
    rule: RuleLike = name
    if values and values.strip() and name in op.rules:
        rule = RuleObject(name, _parse_parameters(op.rules[name], items(values)))
    call = make_call(op, rule, op.default_edge if edge is None else edge)
    return rule, edge and call.edge


def _parse_parameters(rule: Rule, texts: list[str]) -> tuple[tuple[str, float], ...]:
    """Parse KEY=VALUE, or VALUE for the parameter at the same position in the rule's list."""
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
        parameters[key] = _parse_number(rule, key, value)
    return tuple(parameters.items())


def _parse_number(rule: Rule, key: str, text: str) -> float:
    if rule.parameters[key] is None:
        raise ValueError(must(rule.name, key, "be a function, which only Python can name", text))
    try:
        return float(text)
    except ValueError:
        raise ValueError(must(rule.name, key, "be a number", text, f"The default is {rule.parameters[key]}")) from None
