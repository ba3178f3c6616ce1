"""Run every variant in every world and collect the numbers."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..cases.fingerprints import FingerprintError, fingerprint, own_rules
from ..cases.kept import Kept
from ..cases.trials import modules_of_rules, pool
from ..errors import must
from ..tasks import DEFAULT_TASKS, TASKS, Measured, Task, by_name, variants
from ..tasks.base import DEFAULT_RULES, KINDS, Settings
from ..torch_eras import ERAS, installed_era
from .results import Results, edges_now


def compare(
    tasks: Sequence[str | Task] = DEFAULT_TASKS,
    rules: Sequence[str] = DEFAULT_RULES,
    settings: Settings | None = None,
    on_step: Callable[[str, str, str, int, int], None] = lambda *_: None,
    *,
    jobs: int = 1,
    kept: Kept | None = None,
) -> Results:
    """Run `tasks`, names or your own, with `rules`, both eras, the installed torch and no clamp.

    On one thread, so that a run repeats to the bit; in `jobs` processes, which gives the same. Runs that are `kept` are not made again.
    on_step(task, world, variant, done, of) is called before each run.
    """
    records = by_name(tasks)
    settings = settings or Settings()
    results = Results(
        tuple(rules), settings.loss_name or None, records, edges=edges_now(), era=ERAS[installed_era()].rule
    )
    plan = [
        _Step(task, world, variant.name, position)
        for task in records.values()
        for world in task.worlds(settings)
        for position, variant in enumerate(variants(rules, has_leaves=task.has_leaves))
    ]
    if jobs > 1 and (strangers := [name for name, task in records.items() if TASKS.get(name) is not task]):
        raise ValueError(
            must("compare", "jobs", "be 1 for tasks of your own, which other processes do not know", strangers)
        )
    threads = torch.get_num_threads()
    began = time.perf_counter()
    try:
        torch.set_num_threads(1)
        with contextlib.ExitStack() as stack:
            executor = stack.enter_context(pool("compare", jobs, _modules(rules))) if jobs > 1 else None
            kept, keys = _keys(kept, records, rules, settings)
            found = [kept.find(_name(step, keys)) if kept else None for step in plan]
            futures = {
                place: executor.submit(_in_another_process, step.task.name, step.world, step.position, rules, settings)
                for place, step in enumerate(plan)
                if executor and found[place] is None
            }
            for place, step in enumerate(plan):
                on_step(step.task.name, step.world, step.variant, place, len(plan))
                done = found[place]
                if done is None:
                    done = (
                        _with_tensors(futures[place].result()) if executor else _run(step.task, step, rules, settings)
                    )
                    if kept is not None:
                        kept.put(_name(step, keys), done)
                measured = _checked(step.task, Measured(done["numbers"], done["arrays"], tuple(done["seeds"])))
                results.tasks.setdefault(step.task.name, {}).setdefault(step.world, {})[step.variant] = measured
        for name, task in records.items():
            first = task.figure.first if task.figure else {}
            results.contexts[name] = task.context(settings)
            results.first |= {(name, w): {title: of(w) for title, of in first.items()} for w in results.tasks[name]}
    finally:
        torch.set_num_threads(threads)
    results.seconds = round(time.perf_counter() - began, 3)
    return results


class _Step(NamedTuple):
    task: Task
    world: str
    variant: str
    position: int  # of the variant among all of the task


def _run(task: Task, step: _Step, rules: Sequence[str], settings: Settings) -> dict[str, Any]:
    """What one run measured, as plain data and tensors."""
    variant = variants(rules, has_leaves=task.has_leaves)[step.position]
    measured = task.run(step.world, variant, settings)
    return {"numbers": measured.numbers, "arrays": measured.arrays, "seeds": list(measured.seeds)}


def _in_another_process(
    task: str, world: str, position: int, rules: Sequence[str], settings: Settings
) -> dict[str, Any]:
    """With arrays of numpy: torch would share the memory of its tensors, which goes with this process."""
    found = _run(TASKS[task], _Step(TASKS[task], world, "", position), rules, settings)
    return {**found, "arrays": {key: value.numpy() for key, value in found["arrays"].items()}}


def _with_tensors(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "arrays": {key: torch.from_numpy(value) for key, value in found["arrays"].items()}}


def _keys(
    kept: Kept | None, records: Mapping[str, Task], rules: Sequence[str], settings: Settings
) -> tuple[Kept | None, dict[str, str]]:
    """What the runs of each task depend on, to keep them by; where that cannot be told nothing is kept, and a warning says so."""
    if kept is None:
        return None, {}
    held = [list(rules), own_rules(rules), settings.low, settings.high, settings.loss]
    try:
        return kept, {name: fingerprint([task.run, *held]) for name, task in records.items()}
    except FingerprintError as error:
        warnings.warn(f"compare: nothing is kept: {error}", stacklevel=3)
        return None, {}


def _name(step: _Step, keys: Mapping[str, str]) -> dict[str, Any]:
    return {"key": keys[step.task.name], "name": step.task.name, "world": step.world, "variant": step.variant}


def _modules(rules: Sequence[str]) -> tuple[str, ...]:
    return modules_of_rules([rule.split("(")[0].split("/")[0].strip() for rule in rules])


def _checked(task: Task, measured: Measured) -> Measured:
    """A task that leaves out what its table or figure shows is told so at once, not when the report is written."""
    for what, needed, given in (
        ("numbers", task.columns, measured.numbers),
        ("arrays", KINDS[task.figure.kind] if task.figure else (), measured.arrays),
    ):
        if missing := [key for key in needed if key not in given]:
            raise ValueError(must(f"compare: {task.name}", what, f"have {', '.join(missing)}", ", ".join(given)))
    return measured
