"""tune: find the best rule within a budget of runs. Short trials drop the worse rules; a last round compares the rest on new seeds.

The halving is written here, because it needs torch alone, and Optuna's pruners have no budget that also pays for a last round.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from ..errors import must
from ..notebook import to_html
from ..rule import RuleObject
from ..wording import counted, listed
from . import compare
from .compare import Directions, OnTrial, Variants
from .comparison import Comparison, plain_numbers
from .runs import Outcome, Run
from .text import comparison_text
from .verdicts import needed_seeds

FINALISTS = 2


@dataclass(frozen=True)
class Round:
    """A round of short trials."""

    seeds: int  # the number of seeds
    steps: int | None  # the steps of a trial; None for a whole run
    medians: Mapping[str, float]  # the median of each rule, the best first
    remaining: tuple[str, ...]  # the rules that are left after this round
    # For each rule with failed trials the number of these trials, and the error of the first.
    failures: Mapping[str, tuple[int, str]]

    @property
    def dropped(self) -> tuple[str, ...]:
        return tuple(name for name in self.medians if name not in self.remaining)

    def __str__(self) -> str:
        length = "" if self.steps is None else f" of {counted(self.steps, 'step')}"
        dropped = listed([f"{name} ({self._describe_median(name)})" for name in self.dropped])
        return f"{counted(len(self.medians), 'rule')}, {counted(self.seeds, 'seed')}{length}: dropped {dropped}"

    def _describe_median(self, name: str) -> str:
        median = self.medians[name]
        if math.isnan(median):
            return "failed" if name in self.failures else "not a number"
        return f"{median:.3g}"

    def failure_lines(self) -> list[str]:
        """A line for each error of the rules that were dropped."""
        names_by_error: dict[tuple[int, str], list[str]] = {}
        for name in filter(self.failures.__contains__, self.dropped):
            names_by_error.setdefault(self.failures[name], []).append(name)
        return [
            f"  Failed with {count} of {counted(self.seeds, 'seed')}: {listed(names)}: {error}"
            for (count, error), names in names_by_error.items()
        ]


@dataclass(frozen=True, eq=False)
class Tuning:
    """The rounds, and the last one as a Comparison. budget and spent are in whole runs."""

    rounds: tuple[Round, ...]
    final: Comparison
    budget: int
    spent: float

    @property
    def best(self) -> tuple[str, ...]:
        """The best variant, and all that cannot be told apart from it. Several are a tie."""
        return self.final.leaders()

    def __str__(self) -> str:
        spent = f"{self.spent:.4g} of {counted(self.budget, 'run')} spent in all"
        lines = [
            *_round_lines(self.rounds),
            f"Last round, on seeds of its own: {spent}.",
            "",
            comparison_text(self.final),
        ]
        if self.final.too_few_seeds:
            lines.append(f"A larger budget gives the last round more seeds than {len(self.final.seeds)}.")
        elif len(self.best) > 1 and self.final.baseline in self.best:
            baseline = self.final.baseline
            lines.append(f"The best rule is not told apart from {baseline}, so there is no reason to change it.")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return (to_html("\n".join(_round_lines(self.rounds))) if self.rounds else "") + self.final._repr_html_()

    def to_json(self) -> dict[str, object]:
        """Plain data, as Comparison.to_json."""
        rounds = [
            {"kept" if key == "remaining" else key: value for key, value in vars(trials).items()}
            for trials in self.rounds
        ]
        head = {"kind": "pseudograd tuning", "budget": self.budget, "spent": self.spent, "best": self.best}
        return {**plain_numbers({**head, "searches": [], "rounds": rounds}), "final": self.final.to_json()}


def _round_lines(rounds: Sequence[Round]) -> list[str]:
    """The lines about the rounds before the last."""
    return [
        line
        for count, trials in enumerate(rounds, start=1)
        for line in (f"Round {count}: {trials}.", *trials.failure_lines())
    ]


def tune(
    run: Callable[..., object],
    *,
    budget: int,
    rules: Iterable[str | RuleObject] | None = None,
    variants: Variants | None = None,
    baseline: str | None = None,
    steps: int | None = None,
    better: Directions = "lower",
    replace: str | Sequence[str] | None = None,
    jobs: int = 1,
    executor: object = None,
    keep: Path | str | None = None,
    on_trial: OnTrial | None = None,
) -> Tuning:
    """Find the rule for a training with a budget of runs: short trials first, then the two best against what you have.

    Forward:  as in `compare`.
    Backward: as in `compare`. Successive halving: up to half of the budget goes to early rounds. Each of them drops the half of the rules
        with the worse medians. The rest goes to a last round, on seeds that no earlier round used. It compares the two best rules,
        torch.clamp, its eras, no clamp, and `project` if run has this argument.

    Args:
        run, rules, variants, baseline, better, replace, jobs, executor, keep, on_trial: as in `compare`. Of several
            numbers the first decides.
        budget: the number of whole runs that the search may cost.
        steps: the number of steps of a whole run, if run has an argument `steps`. Each early round then has half the steps of the round
            after it. Otherwise every trial is a whole run, and early rounds have few seeds.
    Returns: a Tuning: str(), to_json(), `rounds`, `final` (a Comparison), and `best`: one name, or several if they are tied.
    Raises: the errors of `compare`; ValueError for a budget that does not pay for one run of each variant in each round; TypeError if run
        has an argument `steps` and `steps` is None.
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
    training = compare.make_training("tune", run, rules, replace, variants, baseline)
    if "steps" in training.named and steps is None:
        raise TypeError(
            must("tune", "steps", "be given for a run that takes them", steps, "Say how long a whole run is")
        )
    if steps is not None:
        compare.check_count("tune", "steps", steps)
        if "steps" not in training.named:
            raise TypeError(must("tune", "run", "have an argument `steps` if steps are given", training.name))
    names = list(training.choice.candidates)
    references = [name for name in training.variants if name not in names]  # only in the last round
    plan = _plan(len(names), len(references), len(training.choice.eras), budget, steps)
    rounds: list[Round] = []
    next_seed, spent = 0, Fraction(0)
    done = 0  # finished trials of the rounds before this one
    outcomes: dict[Run, Outcome] = {}  # of this round

    def describe_known() -> str:
        return "\n".join([f"tune: stopped after {counted(done + len(outcomes), 'trial')}", *_round_lines(rounds)])

    with (
        compare.report_when_stopped(describe_known),
        compare.runner_for(training, jobs, executor, keep, on_trial) as runner,
    ):
        for seeds, part in plan:
            length = None if steps is None else max(1, int(steps * part))
            compare.measure(runner, training, outcomes, names, range(next_seed, next_seed + seeds), length)
            comparison = compare.make_comparison(training, outcomes, names, better, 0.0, is_part=True)
            next_seed += seeds
            spent += seeds * part * len(names)
            ranked = comparison.ranked()
            best = ranked[: max(FINALISTS, math.ceil(len(ranked) / 2))]
            errors = {
                name: [text for (failed, _), text in comparison.failures.items() if failed == name] for name in names
            }
            failures = {name: (len(texts), texts[0]) for name, texts in errors.items() if texts}
            rounds.append(Round(seeds, length, {name: comparison.median(name) for name in ranked}, best, failures))
            names = [name for name in names if name in best]
            done, outcomes = done + len(outcomes), {}
        names = [name for name in training.variants if name in (*references, *names)]
        last_seeds = range(next_seed, next_seed + int((budget - spent) // len(names)))
        compare.measure(runner, training, outcomes, names, last_seeds, steps)
    seconds = time.perf_counter() - began
    final = compare.make_comparison(training, outcomes, names, better, seconds)
    return Tuning(tuple(rounds), final, budget, float(spent + len(outcomes)))


def _plan(candidates: int, references: int, eras: int, budget: int, steps: int | None) -> list[tuple[int, Fraction]]:
    """The number of seeds and the part of a whole run, for each round before the last.

    Raises ValueError if the budget does not pay for one seed of each variant in each round.
    """
    counts = [candidates]  # of rules in each round
    while counts[-1] > FINALISTS:
        counts.append(math.ceil(counts[-1] / 2))
    last_count = counts.pop() + references
    rounds = len(counts)
    parts = [Fraction(1, 2 ** (rounds - index)) if steps is not None else Fraction(1) for index in range(rounds)]
    costs = [count * part for count, part in zip(counts, parts, strict=True)]  # of one seed in each round
    early_cost = sum(costs, Fraction(0))
    different = last_count - 2  # variants that may differ from torch.clamp: not itself, and not its own era
    older_pairs = math.comb(max(eras - 1, 0), 2)  # pairs of eras without the installed one
    last_seeds = max(needed_seeds(different + older_pairs, math.comb(different, 2) - older_pairs))
    enough = math.ceil(early_cost + last_seeds * last_count)
    if budget < early_cost + last_count:
        remedy = f"Fewer rules need less; {enough} give the last round seeds enough to tell"
        requirement = f"pay for one run of each, at least {math.ceil(early_cost + last_count)}"
        raise ValueError(must("tune", "budget", requirement, budget, remedy))
    spare = max(Fraction(0), min(budget - early_cost - last_count, Fraction(budget - enough), Fraction(budget, 2)))
    plan = []
    for cost, part in zip(costs, parts, strict=True):
        more_seeds = min(max(int(Fraction(budget, 2 * rounds) // cost) - 1, 0), int(spare // cost))
        spare -= more_seeds * cost
        plan.append((1 + more_seeds, part))
    return plan
