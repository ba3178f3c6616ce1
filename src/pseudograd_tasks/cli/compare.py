"""The command `pseudograd compare`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pseudograd.cli._arguments import (
    add_import,
    add_own_case,
    current_folder,
    function_named,
    import_modules,
    in_one_line,
    name_rules,
    own_case,
    require_extras,
)
from pseudograd_notices.command_line import literals

if TYPE_CHECKING:
    from torch import Tensor

    from ..base import Settings
    from ..report.results import Results

PLACE = 30
HELP = "run every rule on real problems, or on a training of yours, and write a report"
EXAMPLE = "pseudograd compare --task mine:run --seeds 12 --out report"


_OUT = Path("pseudograd-report")
_EXTRAS = ("matplotlib", "sklearn", "scipy", "jinja2")


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    tasks, default_tasks = _parse_task_names()
    add(
        "--tasks",
        metavar="A,B",
        help=f"'all', or some of {', '.join(tasks)} (default: {','.join(default_tasks)}, which take half a minute)",
    )
    example = name_rules()[1]
    add(
        "--rules",
        metavar="A,B",
        help=f"rules of clamp, each alone or with an edge: '{example},zero/half' (default: all)",
    )
    add_import(command)
    add("--loss", metavar="MODULE:FUNCTION", help="your own loss of y, for the task basin")
    add("--min", type=float, help="lower bound, for basin (default: -1)")
    add("--max", type=float, help="upper bound, for basin (default: 1)")
    add_own_case(command)
    add("--seeds", type=int, metavar="N", help="number of seeds for --task (default: 12)")
    add("--out", type=Path, metavar="FOLDER", help=f"write the report into this folder (default: {_OUT})")


def _parse_task_names() -> tuple[list[str], list[str]]:
    """The names of all tasks in their order, and the names of the default tasks. The files are parsed, not imported: they import torch."""
    order: dict[str, int] = {}
    for file in Path(__file__).parents[1].glob("*.py"):
        order |= cast("dict[str, int]", literals(file).get("ORDER") or {})
    names = sorted(order, key=lambda name: (order[name], name))
    return names, [name for name in names if order[name] < 100]  # the __init__ of pseudograd_tasks explains 100


def run(options: argparse.Namespace) -> int:
    from pseudograd.errors import must
    from pseudograd.listen.program.signals import stoppable

    with stoppable(), current_folder():
        import_modules("compare", options)
        if options.jobs < 1:
            raise ValueError(must("compare", "--jobs", "be at least 1", options.jobs))
        _check_combination(options)
        folder = options.out or _OUT
        results = _measure(options, folder)
        from ..report.terminal import progress, show
        from ..report.write import find_new_name, write

        older = find_new_name(results, folder)
        with progress("drawing the report"):
            page = write(results, folder)
        show(results)
        if older is not None:
            print(f"\nThe older report, of other numbers, is kept: {older}")
        print(f"\nThe report: {page}\n{page.resolve().as_uri()}")
        return 0


def _check_combination(options: argparse.Namespace) -> None:
    """Raise an error if an option has no effect in this combination."""
    from pseudograd.errors import must

    own = ("better", "replace", "seeds", "variants", "baseline", "keep")
    for name in ("tasks", "loss", "min", "max") if options.task else own:
        if getattr(options, name) is not None:
            requirement = "be left out with --task" if options.task else "come with --task"
            raise ValueError(must("compare", f"--{name.replace('_', '-')}", requirement, getattr(options, name)))


def _measure(options: argparse.Namespace, folder: Path) -> Results:
    """Run the tasks, or the training of the user. folder: the folder of the report, which is checked before any run."""
    from pseudograd.listen.program.process import standard_library_first

    with standard_library_first():
        from pseudograd.comparison.compare import compare
        from pseudograd.comparison.runs import Run
        from pseudograd.comparison.variants import variants
        from pseudograd.ops.bound_rules import COMPARED_RULES
        from pseudograd.parse_rule import items

        from .. import find_tasks

        require_extras("compare", *_EXTRAS)
        from ..report.sources import own_results, run_tasks
        from ..report.terminal import progress
        from ..report.write import check_folder

    settings = _settings(options)
    rules = None if options.rules is None else items(options.rules)
    if options.task:
        case = own_case(options, "compare", rules)
        case |= {} if options.seeds is None else {"seeds": options.seeds}
    else:
        tasks = list(find_tasks(_task_names(options.tasks)).values())
        chosen = list(COMPARED_RULES) if rules is None else rules
        variants(chosen, has_leaves=False)  # raises the errors of unknown rules before any run
    check_folder(folder)
    with progress() as on_step:
        if not options.task:
            return run_tasks(tasks, chosen, settings, on_step, jobs=options.jobs)

        def on_trial(run: Run, done: int, total: int) -> None:
            on_step(options.task, f"seed {run.seed}", run.variant, done, total)

        return own_results(compare(**case, on_trial=on_trial))


def _task_names(text: str | None) -> Sequence[str]:
    from pseudograd.parse_rule import items

    from .. import DEFAULT_TASKS, TASKS

    if text is None:
        return DEFAULT_TASKS
    return tuple(TASKS) if text.strip() == "all" else items(text)


def _settings(options: argparse.Namespace) -> Settings:
    from pseudograd.errors import must

    from ..base import Settings

    low = -1.0 if options.min is None else options.min
    high = 1.0 if options.max is None else options.max
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(must("compare", "--min and --max", "be finite, --min below --max", (low, high)))
    return Settings(low, high, _find_loss(options.loss) if options.loss else None, options.loss or "")


def _find_loss(path: str) -> Callable[[Tensor], Tensor]:
    """The user's loss, called once on a sample. A loss that returns a single number is called for each element alone."""
    import torch

    from pseudograd.errors import must

    from ..base import ElementByElement

    function = function_named("compare", "--loss", path)
    x = torch.linspace(-1, 1, 5, dtype=torch.float64, requires_grad=True)
    try:
        y = function(x)
        if isinstance(y, torch.Tensor) and y.numel() == 1 and y.requires_grad:
            function = ElementByElement(function)
            y = function(x)
    except Exception as error:
        raise ValueError(must("compare", "--loss", "be a function of y", path, in_one_line(error))) from error
    if not isinstance(y, torch.Tensor) or y.shape != x.shape or not y.requires_grad:
        raise ValueError(must("compare", "--loss", "return numbers with a gradient, one or one for each element", y))
    return function
