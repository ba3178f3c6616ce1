"""Rules with a range in place of a number, "leaky(0.01..1)": Optuna looks for the number that a training does best with."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import must
from ..parse_rule import items, parsed
from ..rule import Op, RuleObject
from .comparison_text import counted
from .paired import Better

SEEDS = 2  # of each point: the same for all, so that they are compared on equal terms
SHARE = 0.25  # of the budget, for all ranges together
LEAST = 4  # points of each range
_RANGE = re.compile(r"(?P<low>[^=]+?)\s*\.\.\s*(?P<high>.+)")
_FORM = re.compile(r"(?P<rule>[^()/]+?)\s*\((?P<given>[^()]*\.\.[^()]*)\)\s*(?P<edge>/.*)?")

Evaluate = Callable[[Sequence[str], Sequence[int]], dict[str, float]]  # (rules, seeds) -> the median of each


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
        found = [f"{name}={value:.3g}" for (name, _, _), value in zip(self.ends, values, strict=True)]
        return f"{self.rule}({', '.join([*self.fixed, *found])}){self.edge}"


@dataclass(frozen=True)
class Search:
    """What was tried of a range, by rule the median, and the best of it; None where every point failed."""

    text: str
    tried: dict[str, float]
    best: str | None

    def __str__(self) -> str:
        points = f"{self.text}: {counted(len(self.tried), 'point')} with {counted(SEEDS, 'seed')} each"
        return (
            f"{points}: best {self.best} ({self.tried[self.best]:.3g})"
            if self.best
            else f"{points}: all of them failed"
        )


def split(where: str, rules: Iterable[str | RuleObject] | None, op: Op) -> tuple[list[Any] | None, list[Range]]:
    """The rules without a range, and the ranges, checked."""
    if rules is None or isinstance(rules, (str, RuleObject)):
        return rules, []  # type: ignore[return-value]  # the error of the second comes where rules are checked
    given = list(rules)
    found = {one: range_of(where, one, op) for one in given if isinstance(one, str)}
    return [one for one in given if not isinstance(one, str) or found[one] is None], [
        one for one in found.values() if one is not None
    ]


def range_of(where: str, text: str, op: Op) -> Range | None:
    """None for a rule without one."""
    form = _FORM.fullmatch(text.strip())
    if form is None:
        return None
    row = op.rules.get(form["rule"])
    names = list(row.parameters) if row is not None else []
    fixed, ends = [], []
    for place, one in enumerate(items(form["given"])):
        before, equals, after = (part.strip() for part in one.partition("="))
        name = before if equals else names[place] if place < len(names) else "parameter"
        between = _RANGE.fullmatch(after if equals else before)
        if between is None:
            fixed.append(f"{name}={after if equals else before}")
            continue
        ends.append((name, *_ends(where, text, between["low"], between["high"])))
    made = Range(text, form["rule"], tuple(fixed), tuple(ends), form["edge"] or "")
    for place in (0, 1):  # an unknown rule, parameter or edge, and an end that the rule refuses
        parsed(op, made.at([(low, high)[place] for _, low, high in ends]), f"{where}: rules")
    return made


def _ends(where: str, text: str, low: str, high: str) -> tuple[float, float]:
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = math.nan, math.nan
    if not (all(map(math.isfinite, ends)) and ends[0] < ends[1]):
        remedy = "Write the lower end first, as in leaky(0.01..1)"
        raise ValueError(must(where, "rules", "have ranges of two numbers", text, remedy))
    return ends


def runs_for(ranges: Sequence[Range], budget: int) -> int:
    """How many runs the search may take: a share of the budget, and no less than a few points of each."""
    each = max(LEAST, int(budget * SHARE) // (SEEDS * len(ranges))) if ranges else 0
    return each * SEEDS * len(ranges)


def search(one: Range, points: int, better: Better, evaluate: Evaluate, batch: int) -> Search:
    """With Optuna's default sampler, from a seed of its own. `batch`: so many points are tried at a time."""
    optuna = _optuna()
    direction = "minimize" if better == "lower" else "maximize"
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=max(2, points // 3), constant_liar=batch > 1)
    study = optuna.create_study(direction=direction, sampler=sampler)
    tried: dict[str, float] = {}
    left = points
    while left > 0:
        asked = [study.ask() for _ in range(min(batch, left))]
        texts = [one.at(_suggested(trial, *ends) for ends in one.ends) for trial in asked]
        new = [text for text in dict.fromkeys(texts) if text not in tried]
        tried |= evaluate(new, range(SEEDS)) if new else {}
        for trial, text in zip(asked, texts, strict=True):
            failed = not math.isfinite(tried[text])
            study.tell(trial, None if failed else tried[text], state=optuna.trial.TrialState.FAIL if failed else None)
        left -= len(asked)
    finite = {text: value for text, value in tried.items() if math.isfinite(value)}
    choose = min if better == "lower" else max
    return Search(one.text, tried, choose(finite, key=finite.__getitem__) if finite else None)


def _suggested(trial: Any, name: str, low: float, high: float) -> float:
    return float(trial.suggest_float(name, low, high, log=low > 0))


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ImportError(
            "tune: optuna must be installed for a range of a rule, got none. Run pip install optuna."
        ) from error
    optuna.logging.set_verbosity(logging.WARNING)
    return optuna
