"""tune: the same as compare with a budget. Short trials first, the hopeless dropped, and a last round on seeds that chose nobody."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import must
from ..rule import OPS, Op, RuleObject
from ..rule_ranges import Range
from ..torch_table.forms import SWITCHES
from ..wording import counted, listed
from .compare import (
    OnTrial,
    Run,
    Variants,
    check_all_better,
    checked_count,
    checked_jobs,
    comparison,
    every,
    make_case,
    runner_of,
)
from .comparison import Comparison, written
from .comparison_text import text
from .family import needs
from .paired import Better
from .searching import LEAST, SEEDS, Search, runs_for, search, split
from .training import Training

FINALISTS = 2


@dataclass(frozen=True)
class Round:
    """Short trials: how many seeds and steps (None: whole runs), the median of each rule, best first, and who is left."""

    seeds: int
    steps: int | None
    medians: Mapping[str, float]
    kept: tuple[str, ...]

    @property
    def dropped(self) -> tuple[str, ...]:
        return tuple(name for name in self.medians if name not in self.kept)

    def __str__(self) -> str:
        length = "" if self.steps is None else f" of {counted(self.steps, 'step')}"
        told = [f"{name} ({self.medians[name]:.3g})" for name in self.dropped]
        return f"{counted(len(self.medians), 'rule')}, {counted(self.seeds, 'seed')}{length}: dropped {listed(told)}"


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

    def __str__(self) -> str:
        lines = [*self._earlier()]
        lines.append(
            f"Last round, on seeds of its own: {self.spent:.4g} of {counted(self.budget, 'run')} spent in all."
        )
        lines += ["", text(self.final)]
        baseline = self.final.baseline
        if self.final.too_few_seeds:
            lines.append(f"A larger budget gives the last round more seeds than {len(self.final.seeds)}.")
        elif len(self.best) > 1 and baseline in self.best:
            lines.append(f"{baseline} is not told apart from the best: there is no reason here to change it.")
        return "\n".join(lines)

    def _earlier(self) -> Iterator[str]:
        """What came before the last round."""
        yield from (f"Search of {one}." for one in self.searches)
        yield from (f"Round {place}: {one}." for place, one in enumerate(self.rounds, start=1))

    def _repr_html_(self) -> str:
        from ..notebook import shown

        earlier = "\n".join(self._earlier())
        return (shown(earlier) if earlier else "") + self.final._repr_html_()

    def to_json(self) -> dict[str, Any]:
        """Plain data, as Comparison.to_json."""
        rounds = [
            {
                "seeds": one.seeds,
                "steps": one.steps,
                "medians": written(one.medians),
                "kept": list(one.kept),
            }
            for one in self.rounds
        ]
        head = {"kind": "pseudograd tuning", "budget": self.budget, "spent": self.spent, "best": list(self.best)}
        searches = [{"rule": one.text, "tried": written(one.tried), "best": one.best} for one in self.searches]
        return {**head, "searches": searches, "rounds": rounds, "final": self.final.to_json()}


def tune(
    run: Run,
    *,
    budget: int,
    rules: Iterable[str | RuleObject] | None = None,
    variants: Variants | None = None,
    baseline: str | None = None,
    edges: Sequence[str] | None = None,
    steps: int | None = None,
    better: Better | Mapping[str, Better] = "lower",
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
            numbers the first decides. A rule may have a range in place of a number, "leaky(0.01..1)": a quarter of the budget then goes
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
        >>> tuned = tune(run, budget=100, steps=40, rules=["inward", "leaky", "inverting"])
        >>> "torch.clamp" in tuned.best
        False
    Source: successive halving, Karnin, Koren & Somekh (2013).
    """
    check_all_better("tune", better)
    budget, jobs = checked_count("tune", "budget", budget), checked_jobs("tune", jobs, executor)
    began = time.perf_counter()
    plain, ranges = split("tune", rules, _op_of(replace))
    first = 0
    searches: tuple[Search, ...] = ()
    if ranges:
        how: dict[str, object] = {"jobs": jobs, "executor": executor, "keep": keep, "on_trial": on_trial}
        ask = partial(make_case, "tune", run, edges=None, replace=replace, time_limit=time_limit)
        searches = _searched(ranges, budget, ask, steps, better, how)
        plain = [*(plain or ()), *(one.best for one in searches if one.best is not None)]
        first = SEEDS
    case = make_case("tune", run, plain, edges, replace, variants, baseline, time_limit)
    _check_steps(case, steps)
    searched = sum(len(one.tried) for one in searches) * SEEDS
    candidates = list(case.ways.candidates)
    always = [name for name in case.variants if name not in candidates]
    plan = _plan(len(candidates), len(always), len(case.ways.eras), budget - searched, steps)
    rounds: list[Round] = []
    spent = Fraction(searched)
    with runner_of(case, jobs, keep, on_trial, executor) as runner:
        for seeds, part in plan:
            length = None if steps is None else max(1, int(steps * part))
            found = every(runner, case, candidates, range(first, first + seeds), length)
            rounds.append(_round(comparison(case, found, candidates, better, 0.0, is_part=True), length))
            first, spent = first + seeds, spent + seeds * part * len(candidates)
            candidates = [name for name in candidates if name in rounds[-1].kept]
        names = [name for name in case.variants if name in always or name in candidates]
        found = every(runner, case, names, range(first, first + int((budget - spent) // len(names))), steps)
    final = comparison(case, found, names, better, time.perf_counter() - began, notes=runner.notes)
    return Tuning(tuple(rounds), final, budget, float(spent + Fraction(len(found))), searches)


def _op_of(replace: str | Sequence[str] | None) -> Op:
    """Whose rules are meant; the error of an unknown family comes where families are checked."""
    family = next(iter([replace] if isinstance(replace, str) else replace or ()), "clamp")
    return OPS[SWITCHES.get(family, "clamp")]


def _searched(
    ranges: Sequence[Range],
    budget: int,
    ask: Callable[..., Training],
    steps: int | None,
    better: Better | Mapping[str, Better],
    how: dict[str, Any],
) -> tuple[Search, ...]:
    """Every range with its share of the budget, on whole runs."""
    runs = runs_for(ranges, budget)
    if runs >= budget:
        remedy = f"Each range takes {LEAST * SEEDS} runs or more, before the rules are compared"
        raise ValueError(must("tune", "budget", f"exceed {runs}", budget, remedy))

    def evaluate(rules: Sequence[str], seeds: Sequence[int]) -> dict[str, float]:
        case = ask(rules=rules)
        _check_steps(case, steps)
        with runner_of(case, how["jobs"], how["keep"], how["on_trial"], how["executor"]) as runner:
            found = every(runner, case, list(case.ways.candidates), seeds, steps)
        if all(outcome.failure is not None for outcome in found.values()):
            return dict.fromkeys(case.ways.candidates, math.nan)
        told = comparison(case, found, list(case.ways.candidates), better, 0.0, is_part=True)
        return {name: told.median(name) for name in case.ways.candidates}

    way = better if isinstance(better, str) else next(iter(better.values()))
    points = runs // (SEEDS * len(ranges))
    return tuple(search(one, points, way, evaluate, max(how["jobs"], 2)) for one in ranges)


def _check_steps(case: Training, steps: int | None) -> None:
    if "steps" in case.named and steps is None:
        raise TypeError(
            must("tune", "steps", "be given for a run that takes them", steps, "Say how long a whole run is")
        )
    if steps is not None:
        checked_count("tune", "steps", steps)
        if "steps" not in case.named:
            raise TypeError(must("tune", "run", "have an argument `steps` if steps are given", case.name))


def _plan(candidates: int, always: int, eras: int, budget: int, steps: int | None) -> list[tuple[int, Fraction]]:
    """For each round before the last how many seeds, and which part of a whole run. The whole budget must pay for one seed of each."""
    alive = [candidates]
    while alive[-1] > FINALISTS:
        alive.append(-(-alive[-1] // 2))
    left, rounds = alive.pop(), len(alive)
    parts = [Fraction(1, 2 ** (rounds - place)) if steps is not None else Fraction(1) for place in range(rounds)]
    costs = [count * part for count, part in zip(alive, parts, strict=True)]
    least = sum(costs, Fraction(0)) + left + always
    differ = left + always - 2  # from torch.clamp, as its own era does not
    older = math.comb(max(eras - 1, 0), 2)  # pairs of eras of which neither is the installed one
    needed = max(needs(differ + older, math.comb(differ, 2) - older))
    enough = -(-(sum(costs, Fraction(0)) + needed * (left + always)) // 1)
    if budget < least:
        remedy = f"Fewer rules need less; {enough} give the last round seeds enough to tell"
        raise ValueError(must("tune", "budget", f"pay for one run of each, at least {-(-least // 1)}", budget, remedy))
    share = Fraction(budget, 2 * rounds) if rounds else Fraction(0)
    spare = max(Fraction(0), min(budget - least, Fraction(budget - enough), Fraction(budget, 2)))
    seeds = []
    for cost in costs:
        more = min(max(int(share // cost) - 1, 0), int(spare // cost))
        spare -= more * cost
        seeds.append(1 + more)
    return list(zip(seeds, parts, strict=True))


def _round(found: Comparison, steps: int | None) -> Round:
    ranked = found.ranked()
    kept = ranked[: max(FINALISTS, -(-len(ranked) // 2))]
    return Round(len(found.seeds), steps, {name: found.median(name) for name in ranked}, kept)
