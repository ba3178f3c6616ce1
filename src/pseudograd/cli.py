"""The command line: `pseudograd rules`, `audit`, `compare`, `tune`, `run`, `diagnose`, `bisect` and `doctor`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from .errors import must, unknown_name
from .listing import rules_text
from .rule import OPS
from .rule_text import items
from .running import output
from .running.signals import Stopped, stoppable
from .tasks import DEFAULT_TASKS, TASKS, by_name
from .tasks.base import DEFAULT_RULES, Settings, variants

_OUT = Path("pseudograd-report")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 for success, 2 for a call that cannot be answered, with one line on stderr.

    Also 141 where the reader of a pipe left, 130 or 143 after Ctrl-C or SIGTERM, and what `run` and `doctor --expect` say.
    """
    try:
        options = _parsed(arguments)
        if getattr(options, "is_program", False):  # which prints as it would without us
            return _answer(options)
        with output.plain():
            return _answer(options)
    except BrokenPipeError:
        output.abandon(sys.stdout)
        return 128 + 13
    except OSError as error:  # a full disk behind the standard output
        output.abandon(sys.stdout)
        print(f"pseudograd: {error}", file=sys.stderr)
        return 2


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    try:
        return _parser().parse_args(arguments)
    finally:
        sys.stdout.flush()  # --help and --version end here


def _answer(options: argparse.Namespace) -> int:
    try:
        return options.run(options) or 0
    except (ValueError, TypeError, ImportError) as error:
        print(f"pseudograd: {error}", file=sys.stderr)
        return 2
    except Stopped as stop:
        print(f"pseudograd: {stop}; nothing is left half-written", file=sys.stderr)
        return stop.status
    except KeyboardInterrupt:
        print("pseudograd: stopped by Ctrl-C", file=sys.stderr)
        return 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"pseudograd: {message}. See {self.prog} --help.", file=sys.stderr)
        raise SystemExit(2)


class _Version(argparse.Action):
    """Looked up when asked for: the version stands in the metadata of the installed package."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from . import __version__

        print(f"pseudograd {__version__}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="pseudograd", description="Choose the gradient of a clamp, and see what the choice does.")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.set_defaults(run=lambda options: print(parser.format_help(), end=""))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    rules = commands.add_parser("rules", help="list the backward rules: formula, what is saved, linear or not, source")
    rules.add_argument("op", nargs="?", metavar="OP", help="one op only, such as clamp or relu")
    _add_import(rules)
    rules.set_defaults(run=_rules)
    _add_audit(commands.add_parser("audit", help="what the backward of a function does, beside its derivative"))
    compare = commands.add_parser("compare", help="run every rule on real problems and write a report")
    compare.add_argument(
        "--tasks",
        metavar="A,B",
        help=f"all, or some of {', '.join(TASKS)} (default: {','.join(DEFAULT_TASKS)}, which take half a minute)",
    )
    compare.add_argument(
        "--rules", metavar="A,B", help="rules of clamp, with an edge if wanted: 'leaky(0.2),zero/half' (default: all)"
    )
    _add_import(compare)
    compare.add_argument("--loss", metavar="MODULE:FUNCTION", help="your loss of y, for basin and curve")
    compare.add_argument("--min", type=float, help="lower bound for basin and curve (default: -1)")
    compare.add_argument("--max", type=float, help="upper bound for basin and curve (default: 1)")
    _add_own_case(compare)
    compare.add_argument("--seeds", type=int, metavar="N", help="how many seeds --task runs with (default: 12)")
    compare.add_argument("--out", type=Path, metavar="FOLDER", help=f"default: {_OUT}")
    compare.add_argument("--resume", action="store_true", help="go on with a run of the same that was broken off")
    compare.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="lay another report's results.json beside it, of another torch perhaps",
    )
    compare.add_argument(
        "--redraw",
        type=Path,
        metavar="FOLDER",
        help="draw the report in FOLDER again, from what it keeps; runs nothing",
    )
    compare.set_defaults(run=_compare)
    tune = commands.add_parser("tune", help="find the rule for a training of yours with a budget of runs")
    _add_own_case(tune)
    tune.add_argument("--rules", metavar="A,B", help="rules to choose from, as for compare")
    _add_import(tune)
    tune.add_argument("--budget", type=int, required=True, metavar="N", help="how many whole runs it may cost")
    tune.add_argument("--steps", type=int, metavar="N", help="length of a whole run, if the function takes steps")
    tune.add_argument("--json", type=Path, metavar="FILE", help="write all of it, too, as JSON")
    tune.set_defaults(run=_tune)
    _add_run(
        commands.add_parser("run", help="run a program, unedited, with another edge or rule in torch's own clamps")
    )
    _add_diagnose(commands.add_parser("diagnose", help="run a program, unedited, and say which line cuts its gradient"))
    _add_bisect(
        commands.add_parser("bisect", help="which line decides how a program behaves under another edge or rule?")
    )
    doctor = commands.add_parser("doctor", help="what the installed torch does at a bound, and which kernels run")
    doctor.add_argument("--json", action="store_true", help="the findings as JSON")
    doctor.add_argument(
        "--expect", metavar="EDGE", help="closed or open: one line, and status 1 if number bounds have the other edge"
    )
    doctor.set_defaults(run=_doctor)
    return parser


def _add_audit(audit: argparse.ArgumentParser) -> None:
    audit.add_argument(
        "function", metavar="MODULE:FUNCTION", help="of one tensor; a module or an autograd.Function, too"
    )
    audit.add_argument("--low", type=float, required=True, help="where the range to look at begins")
    audit.add_argument("--high", type=float, required=True, help="where it ends")
    audit.add_argument("--points", type=int, default=601, metavar="N", help="evenly spaced ones (default: 601)")
    audit.add_argument("--at", metavar="X,Y", help="further x to look at")
    audit.add_argument("--shape", metavar="N,M", help="of the x of a function that is not element-wise")
    audit.add_argument("--json", type=Path, metavar="FILE", help="write all of it there, too, as JSON")
    audit.add_argument("--plot", type=Path, metavar="FILE", help="draw it, too: .png, .svg or .pdf")
    audit.set_defaults(run=_audit)


def _add_own_case(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--task",
        metavar="MODULE:FUNCTION",
        help="your own training: a function run(clamp, seed) that returns a number, or numbers by name",
    )
    command.add_argument(
        "--better", metavar="WAY", help="lower or higher; or 'loss=lower,accuracy=higher' (default: lower)"
    )
    command.add_argument("--edges", metavar="A,B", help="run each rule of --task with each of these edges")
    command.add_argument(
        "--replace", metavar="A,B", help="call --task as run(seed), unedited, under override of these families"
    )
    command.add_argument("--jobs", type=int, default=1, metavar="N", help="run in so many processes (default: 1)")


def _add_change(command: argparse.ArgumentParser) -> None:
    command.add_argument("--pin", metavar="EDGE", help="closed, open, half, 'torch<=2.13' or 'torch>=2.14'")
    command.add_argument(
        "--override",
        metavar="FAMILY=RULE",
        action="append",
        default=[],
        help="such as clamp=inward or 'clamp=leaky(0.2)'; may be repeated",
    )


def _add_bisect(bisect: argparse.ArgumentParser) -> None:
    _add_change(bisect)
    bisect.add_argument("--check", metavar="CMD", help="its status, not the program's, is the verdict of each run")
    bisect.add_argument("--json", type=Path, metavar="FILE", help="write the answer there, too, as JSON")
    _add_program(bisect, _bisect)


def _add_run(run: argparse.ArgumentParser) -> None:
    _add_change(run)
    _add_import(run)
    run.add_argument("--json", type=Path, metavar="FILE", help="write the reports there, too, as JSON")
    run.add_argument(
        "--require",
        action="store_true",
        help="status 3 if --pin or --override rewrote nothing and the program ends well",
    )
    _add_program(run, _run)


def _add_diagnose(diagnose: argparse.ArgumentParser) -> None:
    diagnose.add_argument("--steps", type=int, metavar="N", help="end the program after N backward passes")
    diagnose.add_argument("--html", type=Path, metavar="FILE", help="write a page, too: one file, no network")
    diagnose.add_argument("--json", type=Path, metavar="FILE", help="write all of it, too, as JSON")
    diagnose.add_argument(
        "--whatif",
        metavar="CHANGE",
        action="append",
        default=[],
        help="what would each parameter get under 'torch>=2.14', or under FAMILY=RULE such as clamp=inward? may be repeated",
    )
    diagnose.add_argument(
        "--fail-on",
        metavar="CODE>SHARE",
        help="such as 'cut>0.5', 'starved' or 'any': status 4 if it holds and the program ends well",
    )
    diagnose.add_argument(
        "--ignore",
        metavar="PATTERN",
        action="append",
        default=[],
        help="what is deliberate: parameters such as 'teacher.*', lines such as 'losses.py:12'; may be repeated",
    )
    diagnose.add_argument("--counts", action="store_true", help="shares of elements alone: cheaper, without sides")
    _add_program(diagnose, _diagnose)


def _add_program(command: argparse.ArgumentParser, act: Callable[[argparse.Namespace], int]) -> None:
    command.add_argument("-m", dest="is_module", action="store_true", help="the program is a module, as in python -m")
    command.add_argument("program", metavar="SCRIPT", help="what python would run")
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    command.set_defaults(run=act, is_program=True)


def _add_import(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--import",
        dest="imports",
        metavar="MODULE",
        action="append",
        default=[],
        help="a module of yours that registers rules, also from the current folder; may be repeated",
    )


def _imported(where: str, argument: str, name: str, got: str) -> ModuleType:
    """A module of the user, looked up in the current folder too. Whatever goes wrong in it is told in one line."""
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        requirement = f"name a {'function' if ':' in got else 'module'} that can be imported"
        raise ValueError(must(where, argument, requirement, got, _in_one_line(error))) from error
    finally:
        sys.path.remove(os.getcwd())


def _in_one_line(error: Exception) -> str:
    """What went wrong; with the kind of error where that is not one of importing."""
    text = " ".join(str(error).split()).rstrip(".")
    return text if isinstance(error, (ImportError, AttributeError)) else f"{type(error).__name__}: {text}"


# --- rules ------------------------------------------------------------------------------------------------------------


def _rules(options: argparse.Namespace) -> int:
    for name in options.imports:
        _imported("rules", "--import", name, name)
    if options.op is not None and options.op not in OPS:
        raise unknown_name("rules", "op", tuple(OPS), options.op)
    print(rules_text([OPS[options.op]] if options.op else list(OPS.values())))
    return 0


# --- audit ------------------------------------------------------------------------------------------------------------

_PICTURES = (".png", ".svg", ".pdf")


def _audit(options: argparse.Namespace) -> int:
    from .analysis.auditing import audit
    from .running.files import checked_file, write

    targets = {name: getattr(options, name) for name in ("json", "plot")}
    files = {name: checked_file("audit", f"--{name}", file) for name, file in targets.items() if file is not None}
    if options.plot is not None:
        if options.plot.suffix.lower() not in _PICTURES:
            raise ValueError(must("audit", "--plot", f"end in {', '.join(_PICTURES)}", str(options.plot)))
        _require_extras("audit", "matplotlib")
    at, shape = _numbers("--at", options.at, float), _numbers("--shape", options.shape, int)
    with stoppable():
        found = audit(
            _function("audit", "the function", options.function),
            options.low,
            options.high,
            points=options.points,
            at=at or (),
            shape=shape,
        )
        print(found)
        if "json" in files:
            write("audit", "--json", files["json"], json.dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n")
        if "plot" in files:
            picture = io.BytesIO()
            found.plot().savefig(picture, format=options.plot.suffix.lower()[1:])
            write("audit", "--plot", files["plot"], picture.getvalue())
    return 0


def _numbers(argument: str, text: str | None, kind: Callable[[str], Any]) -> list[Any] | None:
    """The numbers of "1,2"."""
    try:
        return None if text is None else [kind(one) for one in text.split(",")]
    except ValueError as error:
        kinds = "integers" if kind is int else "numbers"
        raise ValueError(must("audit", argument, f"be {kinds} with commas between", text)) from error


def _function(where: str, argument: str, path: str) -> Any:
    """What stands behind "module:function"; the name may have dots."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(must(where, argument, "be MODULE:FUNCTION", path))
    found: Any = _imported(where, argument, module, path)
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise ValueError(must(where, argument, "name a function that can be imported", path, str(error))) from error
    return found


# --- compare ----------------------------------------------------------------------------------------------------------


def _compare(options: argparse.Namespace) -> int:
    with stoppable(), _current_folder():
        for name in options.imports:
            _imported("compare", "--import", name, name)
        if options.jobs < 1:
            raise ValueError(must("compare", "--jobs", "be at least 1", options.jobs))
        _check_combination(options)
        other = _other(options.against)
        try:
            results, folder, argument = _run_before(options) if options.redraw else _run_now(options)
            from . import report
            from .report.terminal import show

            older = report.set_aside(results, folder)
            page = report.write(results, folder, argument, None if options.redraw else report.unfinished(folder))
        except (Stopped, KeyboardInterrupt):
            _tell_of_finished_runs(options)
            raise
        show(results)
        if other is not None:
            print(f"\n{report.side_by_side(results, other)}")
        if older is not None:
            print(f"\nThe older report, of other numbers, is kept: {older}")
        print(f"\nThe report: {page}")
        return 0


def _tell_of_finished_runs(options: argparse.Namespace) -> None:
    from . import report

    kept = report.unfinished(options.out or _OUT)
    if not options.redraw and kept.count:
        print(
            f"pseudograd: {kept.count} finished runs are in {kept.folder}; --resume goes on with them", file=sys.stderr
        )


@contextlib.contextmanager
def _current_folder() -> Iterator[None]:
    """For modules of the user, also in other processes: the folder they were found in stays on the path."""
    path = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = path


_OF_A_CASE = ("better", "edges", "replace", "seeds")
_OF_TASKS = ("tasks", "loss", "min", "max")


def _check_combination(options: argparse.Namespace) -> None:
    """Options that say nothing in this combination are no help; better an error."""
    refused = _OF_TASKS if options.task else _OF_A_CASE
    for name in refused:
        if getattr(options, name) is not None:
            with_it = "be left out with --task" if options.task else "come with --task"
            raise ValueError(must("compare", f"--{name}", with_it, getattr(options, name)))


def _other(file: Path | None) -> Any:
    if file is None:
        return None
    from .report import against

    return against.stored(file)


def _run_now(options: argparse.Namespace) -> tuple[Any, Path, str]:
    """The results, the folder for their report, and the argument that names it."""
    settings = _settings(options)
    _require_report_extras()
    from . import report

    folder = options.out or _OUT
    rules = None if options.rules is None else items(options.rules)
    if options.task:
        results = _run_own(options, rules, folder)
        return results, folder, "--out"
    from .report.terminal import progress

    tasks = by_name(_tasks(options.tasks))
    rules = list(DEFAULT_RULES) if rules is None else rules
    variants(rules, has_leaves=False)  # the errors of unknown rules, before any work
    report.check_folder(folder)
    kept = report.unfinished(folder, options.resume)
    with progress() as on_step:
        found = report.compare(list(tasks.values()), rules, settings, on_step, jobs=options.jobs, kept=kept)
    return found, folder, "--out"


def _run_own(options: argparse.Namespace, rules: Sequence[str] | None, folder: Path) -> Any:
    from . import report
    from .cases import compare
    from .report.terminal import progress

    case = _case(options, "compare", rules)
    report.check_folder(folder)
    kept = report.unfinished(folder, options.resume)
    more = {} if options.seeds is None else {"seeds": options.seeds}
    with progress() as on_step:
        found = compare(
            **case,
            **more,
            keep=kept.folder,
            on_trial=lambda one, done, of: on_step(options.task, f"seed {one.seed}", one.variant, done, of),
        )
    return report.results_of(found)


def _case(options: argparse.Namespace, where: str, rules: Sequence[str] | None) -> dict[str, Any]:
    """What `compare` and `tune` of Python take."""
    better: Any = options.better or "lower"
    if "=" in better:
        pairs = [one.partition("=") for one in items(better)]
        better = {name.strip(): way.strip() for name, _, way in pairs}
    return {
        "run": _function(where, "--task", options.task),
        "rules": rules,
        "edges": None if options.edges is None else items(options.edges),
        "better": better,
        "replace": None if options.replace is None else items(options.replace),
        "jobs": options.jobs,
    }


def _tasks(given: str | None) -> Sequence[str]:
    if given is None:
        return DEFAULT_TASKS
    return tuple(TASKS) if given.strip() == "all" else items(given)


def _run_before(options: argparse.Namespace) -> tuple[Any, Path, str]:
    for name in ("tasks", "rules", "loss", "min", "max", "out", "task"):
        if getattr(options, name) is not None:
            raise ValueError(must("compare", "--redraw", "stand alone", f"--{name}", "What it draws was run before"))
    _require_report_extras()
    from . import report

    return report.read(options.redraw), options.redraw, "--redraw"


def _settings(options: argparse.Namespace) -> Settings:
    low = -1.0 if options.min is None else options.min
    high = 1.0 if options.max is None else options.max
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(must("compare", "--min and --max", "be finite, --min below --max", (low, high)))
    loss = _loss(options.loss) if options.loss else None
    return Settings(low, high, loss, options.loss or "")


def _loss(path: str) -> Callable[..., Any]:
    """The user's loss, tried once. One that returns a single number is asked for each element by itself."""
    import torch

    from .tasks.scalar_loss import ElementByElement

    function = _function("compare", "--loss", path)
    x = torch.linspace(-1, 1, 5, dtype=torch.float64, requires_grad=True)
    try:
        y = function(x)
        if isinstance(y, torch.Tensor) and y.numel() == 1 and y.requires_grad:
            function = ElementByElement(function)
            y = function(x)
    except Exception as error:
        raise ValueError(must("compare", "--loss", "be a function of y", path, _in_one_line(error))) from error
    if not isinstance(y, torch.Tensor) or y.shape != x.shape or not y.requires_grad:
        raise ValueError(must("compare", "--loss", "return numbers with a gradient, one or one for each element", y))
    return function


def _require_report_extras() -> None:
    _require_extras("compare", "matplotlib", "rich", "sklearn", "scipy", "jinja2", "cloudpickle", "joblib")


def _require_extras(where: str, *names: str) -> None:
    missing = [name for name in names if not importlib.util.find_spec(name)]
    if missing:
        raise ImportError(f"{where}: {', '.join(missing)} must be installed, got none. Run pip install '.[report]'.")


# --- tune -------------------------------------------------------------------------------------------------------------


def _tune(options: argparse.Namespace) -> int:
    from .cases import tune
    from .running.files import checked_file, write

    with stoppable(), _current_folder():
        for name in options.imports:
            _imported("tune", "--import", name, name)
        if options.task is None:
            raise ValueError("tune: --task must be given, got none. Name your training as MODULE:FUNCTION.")
        target = None if options.json is None else checked_file("tune", "--json", options.json)
        case = _case(options, "tune", None if options.rules is None else items(options.rules))
        found = tune(**case, budget=options.budget, steps=options.steps, on_trial=_told_on_a_terminal)
        if target is not None:
            write("tune", "--json", target, json.dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n")
        print(found)
        return 0


def _told_on_a_terminal(one: Any, done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\rtune: {one.variant}, seed {one.seed}: {done} of {of} of this round\033[K", end="", file=sys.stderr)


# --- run --------------------------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    from .rewrite import run

    for name in options.imports:
        _imported("run", "--import", name, name)
    return run.run(
        options.program,
        options.arguments,
        options.is_module,
        {"pin": options.pin, "overrides": options.override, "imports": options.imports},
        json_file=options.json,
        requires=options.require,
    )


# --- diagnose ---------------------------------------------------------------------------------------------------------


def _diagnose(options: argparse.Namespace) -> int:
    from .diagnosis import run

    if options.steps is not None and options.steps < 1:
        raise ValueError(must("diagnose", "--steps", "be at least 1", options.steps))
    fails = None if options.fail_on is None else run.condition(options.fail_on)
    return run.run(
        options.program,
        options.arguments,
        options.is_module,
        {"whatif": options.whatif, "detail": "counts" if options.counts else "full", "ignore": options.ignore},
        steps=options.steps,
        html=options.html,
        json_file=options.json,
        fails=fails,
    )


# --- bisect -----------------------------------------------------------------------------------------------------------


def _bisect(options: argparse.Namespace) -> int:
    from .rewrite.bisection import FOUND, bisect
    from .running.files import checked_file, write

    target = None if options.json is None else checked_file("bisect", "--json", options.json)
    found = bisect(
        options.program,
        options.arguments,
        pin=options.pin,
        overrides=options.override,
        is_module=options.is_module,
        checked_by=options.check,
        on_run=lambda run, changed, places, passes: print(
            f"bisect: run {run}, the change at {changed} of {places} places: {'passes' if passes else 'fails'}",
            file=sys.stderr,
            flush=True,
        ),
    )
    if target is not None:
        write("bisect", "--json", target, json.dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n")
    print(found)
    return 0 if found.outcome == FOUND else 1


# --- doctor -----------------------------------------------------------------------------------------------------------


def _doctor(options: argparse.Namespace) -> int:
    from .doctor import edge_text, examine, text

    is_right, line = edge_text(options.expect) if options.expect is not None else (True, "")
    if options.json:
        print(json.dumps(examine(), indent=1))
    elif not line:
        print(text(examine()))
    if line:
        print(line, file=sys.stderr if options.json else sys.stdout)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
