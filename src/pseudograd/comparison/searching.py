"""Rules with a range in place of a number, "leaky(0.01..1)": Optuna looks for the number that a training does best with."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import not_installed
from ..rule import Op, RuleObject
from ..rule_ranges import Range, range_of
from ..wording import counted
from .paired import Better

SEEDS = 2  # of each point: the same for all, so that they are compared on equal terms
SHARE = 0.25  # of the budget, for all ranges together
LEAST = 4  # points of each range

Evaluate = Callable[[Sequence[str], Sequence[int]], dict[str, float]]  # (rules, seeds) -> the median of each


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
        raise not_installed("tune", "optuna, for a range of a rule,", "tune") from error
    optuna.logging.set_verbosity(logging.WARNING)
    return optuna
