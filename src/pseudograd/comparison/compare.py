"""compare: a training of the user's with every rule's clamp, over seeds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..errors import must
from ..rule import RuleObject
from .comparison import Comparison
from .given import Given, given
from .paired import Better, check_better
from .reached import Reached
from .returned import ONLY
from .runner import Asked, Outcome, Runner, runner
from .store import Store
from .training import Training, takes
from .variants import Ways, ways

Run = Callable[..., Any]
OnTrial = Callable[[Asked, int, int], Any]
Found = dict[Asked, Outcome]
Variants = Mapping[str, Any]  # by name what run is handed: any function, or a rule of clamp
SEEDS = 12  # the usual rules need nine for one number, twelve for five; with these the best of them can be told, too


def compare(
    run: Run,
    *,
    rules: Iterable[str | RuleObject] | None = None,
    variants: Variants | None = None,
    baseline: str | None = None,
    seeds: int | Sequence[int] = SEEDS,
    edges: Sequence[str] | None = None,
    better: Better | Mapping[str, Better] = "lower",
    replace: str | Sequence[str] | None = None,
    jobs: int = 1,
    executor: object = None,
    time_limit: float | None = None,
    keep: Path | str | None = None,
    on_trial: OnTrial | None = None,
) -> Comparison:
    """Train with the clamp of each rule, over the same seeds, and say which differ by more than chance, and by how much.

    Forward:  every clamp has torch.clamp's values, but that of "no clamp", which returns its input.
    Backward: of one rule each. Always among them: torch.clamp as installed, every era of it (zero/closed, zero/open) and no clamp; where
        run takes `project`, also that.

    Args:
        run: called as run(clamp) or run(clamp, seed), by its signature; trains whatever it likes and returns a number, or several by name.
            clamp is called as torch.clamp is; under gradient ascent with maximize=True. `project=True`, if run has an argument of that
            name, asks it to clip its parameters after each step, with the clamp left out. An error is noted as a failed run.
            By name it may return curves (one dimension) and pictures beside its numbers: `plot` draws them.
        rules: names, with parameters and edge where wanted ("leaky(0.2)/open"), or rule objects; None for the usual ones.
        variants: instead of rules of a clamp, what run is handed, by name: a function as it is (a surrogate, a rounding, a loss, a whole
            optimiser), or a rule of clamp. Nothing else is among them then.
        baseline: which of `variants` all are compared with; None for the first.
        seeds: how many, or which. Each run starts from torch, random and numpy seeded with it; the caller's states stay as they were.
        edges: each rule that names no edge is run with each of these.
        better: "lower" or "higher"; for several numbers, one for all or one by each name.
        replace: instead of handing out a clamp, call run() or run(seed), unedited, under `override` of these families ("clamp", or
            several); the eras are then those of `pin_edge`, of "clamp" alone, and no clamp is left out.
        jobs: so many processes; the numbers are the same to the bit. run must then stand at the top of a module.
        executor: instead of `jobs`, anything with `submit` that has processes of its own: of concurrent.futures, loky, dask, submitit.
        time_limit: seconds that a run may take; a longer one has failed, and is not kept.
        keep: a folder for finished runs: a later call with it makes only those that are missing. A run is found again by all that run
            holds and calls, by value, down to what is installed; files that it reads nobody sees. Needs cloudpickle and joblib. What cannot
            be fingerprinted is not kept: a warning says so.
        on_trial: called before each run with (variant, seed, steps), how many are done, and of how many.
    Returns: a Comparison: str(), plot(), to_json(), and the verdicts by variant. Two variants differ where Wilcoxon's signed-rank test of
        their paired differences has p <= 0.05 after Holm's correction for all that this report may claim: every number, every variant, the
        edge, and every pair that could be the best and the next. Only where run takes no seed and provably draws no random numbers are two
        seeds enough to know that it repeats itself.
    Raises: ValueError for an unknown rule, edge or family, if every run fails, if run never calls its clamp, or returns other names from
        run to run; TypeError if it returns no number, or one with a gradient.
    Example:
        >>> def run(clamp):
        ...     x = torch.full((3,), 2.0) + torch.rand(3)
        ...     for _ in range(100):
        ...         x = x.detach().requires_grad_()
        ...         clamp(x, -1, 1).pow(2).sum().backward()
        ...         x = x - 0.1 * x.grad
        ...     return clamp(x, -1, 1).pow(2).sum().item()
        >>> compare(run, rules=["inward"]).verdict("inward").verdict
        'better'
    Source: Wilcoxon (1945), Hodges & Lehmann (1963), Holm (1979).
    """
    case = make_case("compare", run, rules, edges, replace, variants, baseline, time_limit)
    chosen = checked_seeds("compare", seeds)
    check_all_better("compare", better)
    jobs = checked_jobs("compare", jobs, executor)
    began = time.perf_counter()
    with runner_of(case, jobs, keep, on_trial, executor) as runner:
        found = over(runner, case, chosen)
    seconds = time.perf_counter() - began
    return comparison(case, found, case.variants, better, seconds, notes=runner.notes)


def make_case(
    where: str,
    run: Run,
    rules: Iterable[str | RuleObject] | None,
    edges: Sequence[str] | None,
    replace: str | Sequence[str] | None,
    variants: Variants | None = None,
    baseline: str | None = None,
    time_limit: float | None = None,
) -> Training:
    order, named = takes(where, run, is_handed=replace is None)
    chosen: Ways | Given
    if variants is not None:
        chosen = given(where, variants, baseline, {"rules": rules, "edges": edges, "replace": replace})
    elif baseline is not None:
        raise ValueError(must(where, "baseline", "come with variants", baseline, "Rules are compared with torch's own"))
    else:
        chosen = ways(where, rules, edges, replace, with_leaves="project" in named)
    if time_limit is not None:
        check_seconds(where, time_limit)
    return Training(where, run, chosen, order, named, time_limit)


@contextlib.contextmanager
def runner_of(
    case: Training, jobs: int, keep: Path | str | None, on_trial: OnTrial | None, executor: object = None
) -> Iterator[Runner]:
    store = None if keep is None else Store(Path(keep), case.where)
    told = on_trial or (lambda *_: None)
    with runner(case.where, [case], jobs, store, lambda _, asked, done, of: told(asked, done, of), executor) as made:
        yield made


def every(
    runner: Runner, case: Training, names: Sequence[str], seeds: Sequence[int], steps: int | None = None, **count: int
) -> Found:
    """Every variant with every seed."""
    plan = [(case, Asked(name, seed, steps)) for seed in seeds for name in names]
    return {asked: outcome for _, asked, outcome in runner.outcomes(plan, **count)}


def over(runner: Runner, case: Training, seeds: Sequence[int]) -> Found:
    """The same; with two seeds alone, where these show that the seed changes nothing."""
    of = len(seeds) * len(case.variants)
    found = every(runner, case, case.variants, seeds[:2], of=of)
    if len(seeds) > 2 and not repeats(case, found):
        found |= every(runner, case, case.variants, seeds[2:], done=len(found), of=of)
    return found


def repeats(case: Training, found: Mapping[Asked, Outcome]) -> bool:
    """Does every run provably give the same with every seed? It gets none, drew nothing, and gave the same with two or more."""
    if "seed" in (*case.takes, *case.named) or any(outcome.draws for outcome in found.values()):
        return False
    by_variant: dict[str, list[object]] = {}
    for one, outcome in found.items():
        by_variant.setdefault(one.variant, []).append((str(outcome.numbers), outcome.failure))
    return all(len(results) > 1 and len(set(results)) == 1 for results in by_variant.values())


def comparison(
    case: Training,
    found: Mapping[Asked, Outcome],
    names: Sequence[str],
    better: Better | Mapping[str, Better],
    seconds: float,
    is_part: bool = False,
    notes: tuple[str, ...] = (),
) -> Comparison:
    """The record of these trials, or the error that they are worth. is_part: others follow, which may do what none of these did."""
    columns = checked_outcomes(case, found, is_part)
    seeds = tuple(dict.fromkeys(one.seed for one in found))
    directions = {column: better if isinstance(better, str) else better.get(column) for column in columns}
    if unknown := [column for column, direction in directions.items() if direction is None]:
        raise ValueError(must(case.where, "better", f"say which is better of {', '.join(unknown)}", better))
    by_place = {(one.variant, one.seed): outcome for one, outcome in found.items()}
    values = {
        column: {
            name: tuple(by_place[name, seed].numbers.get(column, float("nan")) for seed in seeds) for name in names
        }
        for column in columns
    }
    failures = {(one.variant, one.seed): told.failure for one, told in found.items() if told.failure is not None}
    return Comparison(
        run=case.name,
        better=directions,  # type: ignore[arg-type]
        seeds=seeds,
        values=values,
        failures=failures,
        replaced=case.ways.families,
        repeats=len(seeds) > 1 and repeats(case, found),
        torch=torch.__version__,
        seconds=round(seconds, 3),
        baseline=case.ways.baseline,
        reached=Reached.together(
            outcome.came_upon for one, outcome in found.items() if one.variant not in case.ways.eras
        ),
        notes=notes,
        is_given=isinstance(case.ways, Given),
        arrays=_arrays(found, names),
    )


def _arrays(found: Mapping[Asked, Outcome], names: Sequence[str]) -> dict[str, dict[str, dict[int, object]]]:
    """Curves and pictures: by name, variant and seed."""
    arrays: dict[str, dict[str, dict[int, object]]] = {}
    for one, outcome in found.items():
        for column, array in outcome.arrays.items():
            arrays.setdefault(column, {name: {} for name in names})[one.variant][one.seed] = array
    return arrays


def checked_outcomes(case: Training, found: Mapping[Asked, Outcome], is_part: bool = False) -> tuple[str, ...]:
    """The names of what run returned."""
    done = {one: outcome for one, outcome in found.items() if outcome.failure is None}
    if not done:
        failure = next(outcome.failure for outcome in found.values())
        raise ValueError(must(case.where, "run", "end without an error in at least one variant", failure))
    first, expected = next((one, set(outcome.numbers)) for one, outcome in done.items())
    for one, outcome in done.items():
        if set(outcome.numbers) != expected:
            got = f"{_shown(outcome.numbers)} with {one.variant} and seed {one.seed}"
            as_before = f"{_shown(done[first].numbers)} as with {first.variant} and seed {first.seed}"
            raise ValueError(must(case.where, "run", f"return {as_before}", got, "Return the same names from each run"))
    if not is_part and not any(outcome.reached for outcome in done.values()):
        _raise_unreached(case, Reached.together(outcome.came_upon for outcome in done.values()))
    return tuple(done[first].numbers)


def _shown(numbers: Mapping[str, float]) -> str:
    names = tuple(numbers)
    return "one number" if names == (ONLY,) else ", ".join(names)


def _raise_unreached(case: Training, seen: Reached) -> None:
    if case.ways.families:
        what = f"call a function of torch that override({', '.join(case.ways.families)}=...) reaches"
        remedy = " ".join(["Nothing was rewritten, so every rule gave the same.", *seen.lines()]).removesuffix(".")
        raise ValueError(must(case.where, "run", what, case.name, remedy))
    remedy = "It never did, so every rule gave the same; replace='clamp' runs it unedited"
    raise ValueError(must(case.where, "run", "call the clamp that it is given", case.name, remedy))


# --- arguments --------------------------------------------------------------------------------------------------------


def checked_seeds(where: str, seeds: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        return tuple(range(checked_count(where, "seeds", seeds)))
    try:
        chosen = tuple(seeds)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(must(where, "seeds", "be a number of seeds, or a list of them", seeds)) from None
    is_whole = all(isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**63 for seed in chosen)
    if not chosen or not is_whole or len(set(chosen)) < len(chosen):
        raise ValueError(must(where, "seeds", "be different whole numbers, at least one, none below 0", seeds))
    return chosen


def checked_jobs(where: str, jobs: int, executor: object) -> int:
    if executor is not None and jobs != 1:
        raise ValueError(must(where, "jobs", "be left out with an executor", jobs, "It has processes of its own"))
    return checked_count(where, "jobs", jobs)


def check_seconds(where: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(must(where, "time_limit", "be a number of seconds", value))
    if not 0 < value < float("inf"):
        raise ValueError(must(where, "time_limit", "be finite and above 0", value))


def checked_count(where: str, argument: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(must(where, argument, "be a whole number", value))
    if value < 1:
        raise ValueError(must(where, argument, "be at least 1", value))
    return value


def check_all_better(where: str, better: Better | Mapping[str, Better]) -> None:
    for one in better.values() if isinstance(better, Mapping) else (better,):
        check_better(where, one)
