"""compare: run a training of the user with the clamp of each rule, over several seeds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import chain
from pathlib import Path

import torch

from ..errors import must
from ..listen.program.signals import Stopped
from ..rule import RuleObject
from .comparison import Comparison
from .reached import Reach
from .runs import Outcome, Run, Runner, open_runner
from .statistics import Better, check_better
from .store import Store
from .training import ONLY, Training, read_signature
from .variants import choose_own, choose_rules

OnTrial = Callable[[Run, int, int], object]
Outcomes = Mapping[Run, Outcome]
Variants = Mapping[str, object]  # by name: a function that run gets as its argument, or a rule of clamp
Directions = Better | Mapping[str, Better]
# The usual rules need 9 seeds for one number and 12 for five numbers; 12 can also tell which rule is the best.
SEEDS = 12
_SEED_LIMIT = 2**63  # a seed is a whole number of 64 bits with a sign


def compare(
    run: Callable[..., object],
    *,
    rules: Iterable[str | RuleObject] | None = None,
    variants: Variants | None = None,
    baseline: str | None = None,
    seeds: int | Sequence[int] = SEEDS,
    better: Directions = "lower",
    replace: str | Sequence[str] | None = None,
    jobs: int = 1,
    executor: object = None,
    keep: Path | str | None = None,
    on_trial: OnTrial | None = None,
) -> Comparison:
    """Train with the clamp of each rule, over the same seeds, and say which differ by more than chance, and by how much.

    Forward:  every variant has torch.clamp's values, except "no clamp", which returns its input.
    Backward: each variant has one rule. Further variants are always compared with the rules: torch.clamp as installed, its eras
        (zero/closed, zero/open), no clamp, and `project` if run has this argument.

    Args:
        run: a training. `compare` calls it as run(clamp) or run(clamp, seed), by its signature. It returns a number, or a dict of numbers
            by name. run calls clamp as torch.clamp; under gradient ascent it adds maximize=True. If run has an argument `project`, True
            means: clip the parameters after each step, without the clamp. An error in run counts as a failed run.
        rules: names of rules, with parameters and edge if you like ("zero/open"), or rule objects; None for the usual rules.
        variants: instead of `rules`, a dict from a name to the argument of run: a function (a surrogate, a rounding, a loss, a whole
            optimiser) or a rule of clamp. Only these variants are compared.
        baseline: the name of the variant that all others are compared with; None for the first of `variants`.
        seeds: the number of seeds, or a list of them. Each run seeds torch, random and numpy, and restores their states afterwards.
        better: "lower" or "higher"; for several numbers, one for all or one by each name.
        replace: for a run() or run(seed) that gets no clamp: it runs unedited under `override` of this family ("clamp"), or of several.
            Eras are compared only for "clamp", by `pin_edge`; there is no variant "no clamp".
        jobs: the number of processes; it changes no result, not even the last bit. With more than one, run must be at the top of a module.
        executor: instead of `jobs`, an object with `submit` that has processes of its own: of concurrent.futures, loky, dask, submitit.
        keep: a folder for finished runs. A later call makes only the missing runs. A run is recognised by its arguments, the source of
            the program's modules with their numbers and texts, and the versions of installed packages; data files and environment
            variables do not count. run must be at the top of a file: otherwise no run is kept, and a warning says so.
        on_trial: called before each run with (variant, seed, steps), the number of finished runs, and the number of all runs.
    Returns: a Comparison: str(), plot(), to_json(), and the verdicts by variant. Two variants differ where Wilcoxon's signed-rank test of
        their paired differences has p <= 0.05 after Holm's correction for all that this report may claim: every number, every variant, the
        edge, and every pair that could be the best and the second best. If run takes no seed, draws no number from torch, random or
        numpy, and gives the same with two seeds, no further seed is run. A run with a generator of its own needs an argument seed.
    Raises: ValueError for an unknown rule, edge or family, if every run fails, if run never calls its clamp, or if the names of its numbers
        change from run to run; TypeError if it returns no number, or a number with a gradient.
    Example:
        >>> def run(clamp):
        ...     x = torch.full((3,), 2.0) + torch.rand(3)
        ...     for _ in range(100):
        ...         x = x.detach().requires_grad_()
        ...         clamp(x, -1, 1).pow(2).sum().backward()
        ...         x = x - 0.1 * x.grad
        ...     return clamp(x, -1, 1).pow(2).sum().item()
        >>> compare(run, rules=["identity"]).verdict("identity").verdict
        'better'
    Source: Wilcoxon (1945), Hodges & Lehmann (1963), Holm (1979).
    """
    training = make_training("compare", run, rules, replace, variants, baseline)
    chosen = checked_seeds("compare", seeds)
    check_arguments("compare", better, jobs, executor)
    began = time.perf_counter()
    outcomes: dict[Run, Outcome] = {}
    names, total = training.variants, len(chosen) * len(training.variants)
    with (
        report_when_stopped(lambda: _describe_known(training, outcomes, better, total)),
        runner_for(training, jobs, executor, keep, on_trial) as runner,
    ):
        measure(runner, training, outcomes, names, chosen[:1], total=total)
        # These errors come before the many runs of the other seeds.
        if not any(outcome.failure for outcome in outcomes.values()):
            _check_has_acted(training, outcomes.values())
        measure(runner, training, outcomes, names, chosen[1:2], total=total)
        columns = chain.from_iterable(outcome.numbers for outcome in outcomes.values())
        choose_directions(training, dict.fromkeys(columns), better)
        if len(chosen) > 2 and not ignores_seed(training, outcomes):
            measure(runner, training, outcomes, names, chosen[2:], total=total)
    seconds = time.perf_counter() - began
    return make_comparison(training, outcomes, names, better, seconds)


@contextmanager
def report_when_stopped(describe_known: Callable[[], str]) -> Iterator[None]:
    """If a signal stops the command, its error says what is known so far."""
    try:
        yield
    except Stopped as stop:
        stop.known = describe_known()
        raise


def _describe_known(training: Training, outcomes: Mapping[Run, Outcome], better: Directions, total: int) -> str:
    """The comparison over the seeds that every variant has finished."""
    text = f"compare: stopped after {len(outcomes)} of {total} runs"
    seeds = {run.seed for run in outcomes}
    seeds = {seed for seed in seeds if all(Run(name, seed) in outcomes for name in training.variants)}
    finished = {run: outcome for run, outcome in outcomes.items() if run.seed in seeds}
    with suppress(ValueError):  # every run failed, or `better` does not fit
        if finished:
            comparison = make_comparison(training, finished, training.variants, better, 0.0, is_part=True)
            text = f"{text}; the seeds that every variant has finished:\n{comparison}"
    return text


def make_training(
    where: str,
    run: Callable[..., object],
    rules: Iterable[str | RuleObject] | None,
    replace: str | Sequence[str] | None,
    variants: Variants | None,
    baseline: str | None,
) -> Training:
    """The training with its variants, checked. `where`: the public function that errors name."""
    positional, named = read_signature(where, run, takes_clamp=replace is None)
    if variants is not None:
        choice = choose_own(where, variants, baseline, {"rules": rules, "replace": replace})
    elif baseline is not None:
        raise ValueError(must(where, "baseline", "come with variants", baseline, "Rules are compared with torch's own"))
    else:
        choice = choose_rules(where, rules, replace, has_project="project" in named)
    return Training(where, run, choice, positional, named)


def runner_for(
    training: Training, jobs: int, executor: object, keep: Path | str | None, on_trial: OnTrial | None
) -> AbstractContextManager[Runner[Training]]:
    def on_run(training: Training, run: Run, done: int, total: int) -> None:
        if on_trial is not None:
            on_trial(run, done, total)

    store = None if keep is None else Store(Path(keep), training.where)
    return open_runner(training.where, [training], on_run, jobs=jobs, executor=executor, store=store)


def measure(
    runner: Runner[Training],
    training: Training,
    outcomes: dict[Run, Outcome],
    names: Sequence[str],
    seeds: Sequence[int],
    steps: int | None = None,
    total: int = 0,
) -> None:
    """Run every variant with every seed, and add the outcomes."""
    plan = [(training, Run(name, seed, steps)) for seed in seeds for name in names]
    for _, run, outcome in runner.outcomes(plan, len(outcomes) if total else 0, total):
        outcomes[run] = outcome


def ignores_seed(training: Training, outcomes: Outcomes) -> bool:
    """Does the seed change nothing? No run gets the seed or moved a generator that the seed sets, and every variant has two runs or
    more, all with the same result.
    """
    if "seed" in (*training.positional, *training.named) or any(outcome.has_drawn for outcome in outcomes.values()):
        return False
    by_variant: dict[str, list[object]] = {}
    for run, outcome in outcomes.items():
        by_variant.setdefault(run.variant, []).append((str(outcome.numbers), outcome.failure))
    return all(len(results) > 1 and len(set(results)) == 1 for results in by_variant.values())


def make_comparison(
    training: Training,
    outcomes: Outcomes,
    names: Sequence[str],
    better: Directions,
    seconds: float,
    is_part: bool = False,
) -> Comparison:
    """The record of these outcomes. Raises an error if every run failed.

    is_part: more runs follow, so it is no error yet that no run called its clamp.
    """
    columns = _check_outcomes(training, outcomes, is_part)
    known = choose_directions(training, columns, better)
    by_run = {(run.variant, run.seed): outcome for run, outcome in outcomes.items()}
    seeds = tuple(dict.fromkeys(seed for _, seed in by_run))
    values = {
        column: {name: tuple(by_run[name, seed].numbers.get(column, math.nan) for seed in seeds) for name in names}
        for column in columns
    }
    choice = training.choice
    return Comparison(
        run=training.name,
        better=known,
        seeds=seeds,
        values=values,
        failures={key: outcome.failure for key, outcome in by_run.items() if outcome.failure is not None},
        replaced=choice.families,
        repeats=len(seeds) > 1 and ignores_seed(training, outcomes),
        torch=torch.__version__,
        seconds=round(seconds, 3),
        baseline=choice.baseline,
        reached=Reach.union(outcome.reached for (name, _), outcome in by_run.items() if name not in choice.eras),
        is_given=choice.is_given,
    )


def choose_directions(training: Training, columns: Iterable[str], better: Directions) -> dict[str, Better]:
    """For each number: is a lower or a higher one better?"""
    directions = {column: better if isinstance(better, str) else better.get(column) for column in columns}
    known = {column: direction for column, direction in directions.items() if direction is not None}
    if unknown := [column for column in directions if column not in known]:
        raise ValueError(must(training.where, "better", f"say which is better of {', '.join(unknown)}", better))
    return known


def _check_outcomes(training: Training, outcomes: Outcomes, is_part: bool) -> tuple[str, ...]:
    """The names of the numbers that run returned. Raises an error if the outcomes cannot be compared."""
    where = training.where
    done = {run: outcome for run, outcome in outcomes.items() if outcome.failure is None}
    if not done:
        failure = next(outcome.failure for outcome in outcomes.values())
        raise ValueError(must(where, "run", "end without an error in at least one variant", failure))
    first, *others = done
    for run in others:
        if set(done[run].numbers) != set(done[first].numbers):
            names = {each: ", ".join(done[each].numbers).replace(ONLY, "one number") for each in (run, first)}
            got = f"{names[run]} with {run.variant} and seed {run.seed}"
            requirement = f"return {names[first]} as with {first.variant} and seed {first.seed}"
            raise ValueError(must(where, "run", requirement, got, "Return the same names from each run"))
    if not is_part:
        _check_has_acted(training, done.values())
    return tuple(done[first].numbers)


def _check_has_acted(training: Training, outcomes: Collection[Outcome]) -> None:
    """Raise an error if no variant made a difference to any run."""
    if not any(outcome.has_acted for outcome in outcomes):
        requirement = "call the clamp that it is given"
        remedy = "It never did, so every rule gave the same; replace='clamp' runs it unedited"
        if families := training.choice.families:
            requirement = f"call a function of torch that override({', '.join(families)}=...) reaches"
            lines = Reach.union(outcome.reached for outcome in outcomes).lines()
            remedy = " ".join(["Nothing was rewritten, so every rule gave the same.", *lines]).removesuffix(".")
        raise ValueError(must(training.where, "run", requirement, training.name, remedy))


def checked_seeds(where: str, seeds: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        check_count(where, "seeds", seeds)
        return tuple(range(seeds))
    if not isinstance(seeds, Iterable):
        raise TypeError(must(where, "seeds", "be a number of seeds, or a list of them", seeds))
    chosen = tuple(seeds)
    are_numbers = all(
        isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < _SEED_LIMIT for seed in chosen
    )
    if not chosen or not are_numbers or len(set(chosen)) < len(chosen):
        raise ValueError(must(where, "seeds", "be different whole numbers, at least one, none below 0", seeds))
    return chosen


def check_arguments(where: str, better: Directions, jobs: int, executor: object) -> None:
    for direction in better.values() if isinstance(better, Mapping) else (better,):
        check_better(where, direction)
    if executor is not None and jobs != 1:
        raise ValueError(must(where, "jobs", "be left out with an executor", jobs, "It has processes of its own"))
    check_count(where, "jobs", jobs)


def check_count(where: str, argument: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(must(where, argument, "be a whole number", value))
    if value < 1:
        raise ValueError(must(where, argument, "be at least 1", value))
