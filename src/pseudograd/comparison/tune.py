"""tune: the same as compare with a budget. Short trials first, the hopeless dropped, and a last round on seeds that chose no rule.

The halving stays by hand: it works with torch alone, and Optuna's pruners know no budget, which here also pays for the last round. The
search for a number in a range is Optuna's.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from ..errors import must, not_installed
from ..notebook import to_html
from ..parse_rule import Range, range_of
from ..rule import OPS, RuleObject
from ..torch_table.forms import SWITCHES
from ..wording import counted, listed
from . import compare
from .compare import Directions, OnTrial, Variants
from .comparison import Comparison, plain_numbers
from .statistics import Better
from .text import comparison_text
from .training import Training
from .verdicts import needs

FINALISTS = 2
SEARCH_SEEDS = 2  # for each point: the same for all points, so that they are compared on equal terms
SEARCH_SHARE = 0.25  # of the budget, for all ranges together
LEAST_POINTS = 4  # of each range
Rules = Iterable[str | RuleObject] | None


@dataclass(frozen=True)
class Round:
    """Short trials: the number of seeds and steps (None: whole runs), the median of each rule, best first, and the rules that go on."""

    seeds: int
    steps: int | None
    medians: Mapping[str, float]
    remaining: tuple[str, ...]

    @property
    def dropped(self) -> tuple[str, ...]:
        return tuple(name for name in self.medians if name not in self.remaining)

    def __str__(self) -> str:
        length = "" if self.steps is None else f" of {counted(self.steps, 'step')}"
        dropped = listed([f"{name} ({self.medians[name]:.3g})" for name in self.dropped])
        return f"{counted(len(self.medians), 'rule')}, {counted(self.seeds, 'seed')}{length}: dropped {dropped}"


@dataclass(frozen=True)
class Search:
    """The points of a range that were tried, by rule with the median, and the best of them; None where every point failed."""

    rule: str
    tried: dict[str, float]
    best: str | None

    def __str__(self) -> str:
        points = f"{self.rule}: {counted(len(self.tried), 'point')} with {counted(SEARCH_SEEDS, 'seed')} each"
        return (
            f"{points}: best {self.best} ({self.tried[self.best]:.3g})"
            if self.best
            else f"{points}: all of them failed"
        )


@dataclass(frozen=True, eq=False)
class Tuning:
    """The rounds, and the last one as a Comparison. budget and spent are in whole runs. searches: of rules with a range."""

    rounds: tuple[Round, ...]
    final: Comparison
    budget: int
    spent: float
    searches: tuple[Search, ...] = ()

    @property
    def best(self) -> tuple[str, ...]:
        """The best, and all that cannot be told apart from it: more than one is a tie."""
        return self.final.leaders()

    @property
    def _earlier(self) -> list[str]:
        """The lines about everything before the last round."""
        rounds = (f"Round {count}: {row}." for count, row in enumerate(self.rounds, start=1))
        return [*(f"Search of {search}." for search in self.searches), *rounds]

    def __str__(self) -> str:
        spent = f"{self.spent:.4g} of {counted(self.budget, 'run')} spent in all"
        lines = [*self._earlier, f"Last round, on seeds of its own: {spent}.", "", comparison_text(self.final)]
        if self.final.too_few_seeds:
            lines.append(f"A larger budget gives the last round more seeds than {len(self.final.seeds)}.")
        elif len(self.best) > 1 and self.final.baseline in self.best:
            baseline = self.final.baseline
            lines.append(f"The best rule is not told apart from {baseline}, so there is no reason to change it.")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return (to_html("\n".join(self._earlier)) if self._earlier else "") + self.final._repr_html_()

    def to_json(self) -> dict[str, object]:
        """Plain data, as Comparison.to_json."""
        rounds = [
            {"kept" if key == "remaining" else key: value for key, value in vars(row).items()} for row in self.rounds
        ]
        head = {"kind": "pseudograd tuning", "budget": self.budget, "spent": self.spent, "best": self.best}
        plain: dict[str, object] = plain_numbers({**head, "searches": [*map(vars, self.searches)], "rounds": rounds})
        return {**plain, "final": self.final.to_json()}


def tune(
    run: Callable[..., object],
    *,
    budget: int,
    rules: Rules = None,
    variants: Variants | None = None,
    baseline: str | None = None,
    edges: Sequence[str] | None = None,
    steps: int | None = None,
    better: Directions = "lower",
    replace: str | Sequence[str] | None = None,
    jobs: int = 1,
    executor: object = None,
    time_limit: float | None = None,
    keep: Path | str | None = None,
    on_trial: OnTrial | None = None,
) -> Tuning:
    """Find the rule for a training with a budget of runs: short trials first, then the two best against what you have.

    Forward:  as in `compare`.
    Backward: as in `compare`. Successive halving: up to half of the budget goes to rounds in each of which the worse half of the rules
        is dropped, by the median. The rest goes to a last round, on seeds that none was chosen by: the two best rules, and always
        torch.clamp, every era, no clamp, and `project` where run takes it.

    Args:
        run, rules, variants, baseline, edges, better, replace, jobs, executor, time_limit, keep, on_trial: as in `compare`. Of several
            numbers the first decides. A rule may have a range in place of a number, "NAME(0.01..1)": a quarter of the budget then goes
            to finding the number, by Optuna, with two seeds for each point; the best of it goes on with the other rules.
        budget: how many whole runs it may cost.
        steps: how long a whole run is, if run has an argument `steps`: early rounds are then shorter, by halves. Otherwise every trial is
            a whole run, and early rounds have few seeds.
    Returns: a Tuning: str(), to_json(), `rounds`, `final` (a Comparison), and `best`: one name, or several where it is a tie.
    Raises: the errors of `compare`; ValueError for a budget below what one run of each needs, TypeError for a run that takes `steps`
        without them.
    Example:
        >>> def run(clamp, steps):
        ...     x = torch.full((3,), 2.0) + torch.rand(3)
        ...     for _ in range(steps):
        ...         x = x.detach().requires_grad_()
        ...         clamp(x, -1, 1).pow(2).sum().backward()
        ...         x = x - 0.1 * x.grad
        ...     return clamp(x, -1, 1).pow(2).sum().item()
        >>> tuned = tune(run, budget=100, steps=40, rules=["identity", "sign"])
        >>> "torch.clamp" in tuned.best
        False
    Source: successive halving, Karnin, Koren & Somekh (2013).
    """
    compare.check_count("tune", "budget", budget)
    compare.check_arguments("tune", better, jobs, executor)
    began = time.perf_counter()
    plain, ranges = _split_ranges(rules, replace)

    def training_of(rules: Rules, is_search: bool = False) -> Training:
        own = (None, replace, None, None) if is_search else (edges, replace, variants, baseline)
        training = compare.make_training("tune", run, rules, *own, time_limit)
        if "steps" in training.named and steps is None:
            remedy = "Say how long a whole run is"
            raise TypeError(must("tune", "steps", "be given for a run that takes them", steps, remedy))
        if steps is not None:
            compare.check_count("tune", "steps", steps)
            if "steps" not in training.named:
                raise TypeError(must("tune", "run", "have an argument `steps` if steps are given", training.name))
        return training

    def measure_points(rules: Sequence[str]) -> dict[str, float]:
        """The median of each rule."""
        training = training_of(rules, is_search=True)
        names = training.choice.candidates
        with compare.runner_for(training, jobs, executor, keep, on_trial) as runner:
            outcomes = compare.measure(runner, training, names, range(SEARCH_SEEDS), steps)
        if all(outcome.failure is not None for outcome in outcomes.values()):
            return dict.fromkeys(names, math.nan)
        medians = compare.make_comparison(training, outcomes, names, better, 0.0, is_part=True).median
        return {name: medians(name) for name in names}

    direction = better if isinstance(better, str) else next(iter(better.values()))
    points = _points_of_each(ranges, budget)
    searches = tuple(_search(part, points, direction, measure_points, max(jobs, 2)) for part in ranges)
    if searches:
        plain = [*(plain or ()), *(search.best for search in searches if search.best is not None)]
    training = training_of(plain)
    searched = sum(len(search.tried) for search in searches) * SEARCH_SEEDS
    first = SEARCH_SEEDS if searches else 0
    names = list(training.choice.candidates)
    always = [name for name in training.variants if name not in names]
    plan = _plan(len(names), len(always), len(training.choice.eras), budget - searched, steps)
    rounds: list[Round] = []
    spent = Fraction(searched)
    with compare.runner_for(training, jobs, executor, keep, on_trial) as runner:
        for seeds, part in plan:
            length = None if steps is None else max(1, int(steps * part))
            outcomes = compare.measure(runner, training, names, range(first, first + seeds), length)
            medians = compare.make_comparison(training, outcomes, names, better, 0.0, is_part=True)
            first, spent = first + seeds, spent + seeds * part * len(names)
            ranked = medians.ranked()
            best = ranked[: max(FINALISTS, -(-len(ranked) // 2))]
            rounds.append(Round(seeds, length, {name: medians.median(name) for name in ranked}, best))
            names = [name for name in names if name in best]
        names = [name for name in training.variants if name in (*always, *names)]
        last = range(first, first + int((budget - spent) // len(names)))
        outcomes = compare.measure(runner, training, names, last, steps)
    seconds = time.perf_counter() - began
    final = compare.make_comparison(training, outcomes, names, better, seconds, notes=runner.notes)
    return Tuning(tuple(rounds), final, budget, float(spent + len(outcomes)), searches)


def _plan(candidates: int, always: int, eras: int, budget: int, steps: int | None) -> list[tuple[int, Fraction]]:
    """The number of seeds and the part of a whole run, for each round before the last. The budget must pay for one seed of each."""
    alive = [candidates]
    while alive[-1] > FINALISTS:
        alive.append(-(-alive[-1] // 2))
    last, rounds = alive.pop() + always, len(alive)
    parts = [Fraction(1, 2 ** (rounds - index)) if steps is not None else Fraction(1) for index in range(rounds)]
    costs = [count * part for count, part in zip(alive, parts, strict=True)]
    early = sum(costs, Fraction(0))
    differ = last - 2  # from torch.clamp, as its own era does not
    older = math.comb(max(eras - 1, 0), 2)  # pairs of eras of which neither is the installed one
    enough = -(-(early + max(needs(differ + older, math.comb(differ, 2) - older)) * last) // 1)
    if budget < early + last:
        remedy = f"Fewer rules need less; {enough} give the last round seeds enough to tell"
        requirement = f"pay for one run of each, at least {-(-(early + last) // 1)}"
        raise ValueError(must("tune", "budget", requirement, budget, remedy))
    spare = max(Fraction(0), min(budget - early - last, Fraction(budget - enough), Fraction(budget, 2)))
    plan = []
    for cost, part in zip(costs, parts, strict=True):
        more = min(max(int(Fraction(budget, 2 * rounds) // cost) - 1, 0), int(spare // cost))
        spare -= more * cost
        plan.append((1 + more, part))
    return plan


def _split_ranges(rules: Rules, replace: str | Sequence[str] | None) -> tuple[Rules, list[Range]]:
    """The rules without a range, and the ranges, checked. Other errors come where rules and families are checked."""
    if rules is None or isinstance(rules, (str, RuleObject)):
        return rules, []
    family = next(iter([replace] if isinstance(replace, str) else replace or ()), "clamp")
    op = OPS[SWITCHES.get(family, "clamp")]
    rules = list(rules)
    ranges = {rule: range_of("tune", rule, op) for rule in rules if isinstance(rule, str)}
    plain = [rule for rule in rules if not isinstance(rule, str) or ranges[rule] is None]
    return plain, [part for part in ranges.values() if part is not None]


def _points_of_each(ranges: Sequence[Range], budget: int) -> int:
    """The number of points to try in each range: a share of the budget, and no fewer than LEAST_POINTS."""
    if not ranges:
        return 0
    cost = SEARCH_SEEDS * len(ranges)
    points = max(LEAST_POINTS, int(budget * SEARCH_SHARE) // cost)
    if points * cost >= budget:
        remedy = f"Each range takes {LEAST_POINTS * SEARCH_SEEDS} runs or more, before the rules are compared"
        raise ValueError(must("tune", "budget", f"exceed {points * cost}", budget, remedy))
    return points


def _search(
    part: Range, points: int, better: Better, measure_points: Callable[[Sequence[str]], dict[str, float]], batch: int
) -> Search:
    """Search a range with Optuna's default sampler, from a fixed seed. batch: the number of points tried at a time."""
    try:
        import optuna
    except ImportError as error:
        raise not_installed("tune", "optuna, for a range of a rule,", "tune") from error
    optuna.logging.set_verbosity(logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=max(2, points // 3), constant_liar=batch > 1)
    study = optuna.create_study(direction="minimize" if better == "lower" else "maximize", sampler=sampler)
    tried: dict[str, float] = {}
    while len(study.trials) < points:
        trials = [study.ask() for _ in range(min(batch, points - len(study.trials)))]
        rules = [
            part.fill(trial.suggest_float(name, low, high, log=low > 0) for name, low, high in part.ends)
            for trial in trials
        ]
        new = [rule for rule in dict.fromkeys(rules) if rule not in tried]
        tried |= measure_points(new) if new else {}
        for trial, rule in zip(trials, rules, strict=True):
            failed = not math.isfinite(tried[rule])
            study.tell(trial, None if failed else tried[rule], state=optuna.trial.TrialState.FAIL if failed else None)
    finite = {rule: value for rule, value in tried.items() if math.isfinite(value)}
    choose = min if better == "lower" else max
    return Search(part.text, tried, choose(finite, key=finite.__getitem__) if finite else None)
