"""Rules with a range in place of a number, "NAME(0.01..1)": `tune` looks for the best of it, `plot` slides along it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from .errors import must
from .parse_rule import items, parsed
from .rule import Op

_RANGE = re.compile(r"(?P<low>[^=]+?)\s*\.\.\s*(?P<high>.+)")
_FORM = re.compile(r"(?P<rule>[^()/]+?)\s*\((?P<given>[^()]*\.\.[^()]*)\)\s*(?P<edge>/.*)?")


@dataclass(frozen=True)
class Range:
    """A rule some of whose parameters are to be found. fixed: the texts of the others. ends: by parameter, low and high."""

    text: str
    rule: str
    fixed: tuple[str, ...]
    ends: tuple[tuple[str, float, float], ...]
    edge: str = ""

    def at(self, values: Iterable[float]) -> str:
        """The rule as text, to three digits."""
        numbers = [f"{name}={value:.3g}" for (name, _, _), value in zip(self.ends, values, strict=True)]
        return f"{self.rule}({', '.join([*self.fixed, *numbers])}){self.edge}"


def range_of(where: str, text: str, op: Op, argument: str = "rules") -> Range | None:
    """None for a rule without one."""
    form = _FORM.fullmatch(text.strip())
    if form is None:
        return None
    row = op.rules.get(form["rule"])
    names = list(row.parameters) if row is not None else []
    fixed, ends = [], []
    for position, item in enumerate(items(form["given"])):
        before, equals, after = (part.strip() for part in item.partition("="))
        name = before if equals else names[position] if position < len(names) else "parameter"
        between = _RANGE.fullmatch(after if equals else before)
        if between is None:
            fixed.append(f"{name}={after if equals else before}")
            continue
        ends.append((name, *_ends(where, argument, text, between["low"], between["high"])))
    rule_range = Range(text, form["rule"], tuple(fixed), tuple(ends), form["edge"] or "")
    for end in (0, 1):  # an unknown rule, parameter or edge, and an end that the rule refuses
        parsed(op, rule_range.at([(low, high)[end] for _, low, high in ends]), f"{where}: {argument}")
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
