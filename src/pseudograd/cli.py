"""The command line: `pseudograd rules`, `compare`, `run` and `doctor`."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .errors import must, unknown_name
from .rule import OPS, Op, Rule


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 for success, 2 for a call that cannot be answered, with one line on stderr."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except (ValueError, TypeError, ImportError) as error:
        print(f"pseudograd: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pseudograd: stopped; nothing was written", file=sys.stderr)
        return 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"pseudograd: {message}. See {self.prog} --help.", file=sys.stderr)
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="pseudograd", description="Choose the gradient of a clamp, and see what the choice does.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    rules = commands.add_parser("rules", help="list the backward rules: formula, what is saved, linear or not, source")
    rules.add_argument("op", nargs="?", metavar="OP", help="one op only, such as clamp or relu")
    rules.set_defaults(run=_rules)
    compare = commands.add_parser("compare", help="run every rule on real problems and write a report")
    compare.add_argument("--tasks", metavar="A,B", help="some of retarget, canvas, basin, curve (default: all)")
    compare.add_argument(
        "--rules", metavar="A,B", help="rules of clamp, with an edge if wanted: inward,zero/half (default: all)"
    )
    compare.add_argument("--loss", metavar="MODULE:FUNCTION", help="your element-wise loss of y, for basin and curve")
    compare.add_argument("--min", type=float, help="lower bound for basin and curve (default: -1)")
    compare.add_argument("--max", type=float, help="upper bound for basin and curve (default: 1)")
    compare.add_argument(
        "--out", type=Path, default=Path("pseudograd-report"), metavar="FOLDER", help="default: %(default)s"
    )
    compare.set_defaults(run=_compare)
    run = commands.add_parser(
        "run", help="run a program, unedited, with another edge or backward rule in torch's own clamps"
    )
    run.add_argument("--pin", metavar="EDGE", help="closed, open, half, 'torch<=2.13' or 'torch>=2.14'")
    run.add_argument(
        "--override", metavar="FAMILY=RULE", action="append", default=[], help="such as clamp=inward; may be repeated"
    )
    run.add_argument("-m", dest="is_module", action="store_true", help="the program is a module, as in python -m")
    run.add_argument("program", metavar="SCRIPT", help="what python would run")
    run.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    run.set_defaults(run=_run)
    doctor = commands.add_parser("doctor", help="what the installed torch does at a bound, and which kernels run")
    doctor.add_argument("--json", action="store_true", help="the findings as JSON")
    doctor.set_defaults(run=_doctor)
    return parser


# --- rules ------------------------------------------------------------------------------------------------------------


def _rules(options: argparse.Namespace) -> int:
    if options.op is not None and options.op not in OPS:
        raise unknown_name("rules", "op", tuple(OPS), options.op)
    print(rules_text([OPS[options.op]] if options.op else list(OPS.values())))
    return 0


def rules_text(ops: list[Op]) -> str:
    """The table as text; ops that share their rules share a block."""
    blocks = []
    for family in dict.fromkeys(op.family for op in ops):
        members = [op for op in ops if op.family == family]
        names = "\n".join(_default_line(op) for op in members)
        rows = [_rule_lines(members[0], rule) for rule in members[0].rules.values()]
        blocks.append("\n".join([names, "", *rows]))
    return "\n\n".join(blocks)


def _default_line(op: Op) -> str:
    edge = (
        f", edge {op.default_edge} (or {', '.join(str(e) for e in op.edges if e != op.default_edge)})"
        if op.edges
        else ""
    )
    return f"{op.name}: {'default ' if len(op.rules) > 1 else ''}rule {op.default_rule}{edge}"


def _rule_lines(op: Op, rule: Rule) -> str:
    how = rule.keywords(op.default_edge)
    kept = rule.keeps((True,) + (False,) * (len(op.inputs) - 1), **how)
    given = ", ".join(key if value is None else f"{key}={value}" for key, value in rule.parameters.items())
    where = "grad_x outside" if "closed" in op.edges else "grad_x        "
    lines = [
        f"  {rule.name}({given})" if given else f"  {rule.name}",
        f"    {where}   {rule.formula}",
        f"    saves            {'x' if 'x' in kept else 'nothing'}",
        f"    linear in grad   {'yes' if rule.is_linear(**how) else 'no: no forward mode'}",
        f"    source           {rule.source}",
    ]
    if rule.also_called:
        lines.append(f"    also called      {rule.also_called}")
    return "\n".join(lines)


# --- compare ----------------------------------------------------------------------------------------------------------


def _compare(options: argparse.Namespace) -> int:
    settings = _settings(options)
    _require_report_extras()
    from . import report
    from .tasks import TASKS
    from .tasks.base import DEFAULT_RULES, unknown_task, variants

    tasks = options.tasks.split(",") if options.tasks else list(TASKS)
    rules = options.rules.split(",") if options.rules else list(DEFAULT_RULES)
    if error := unknown_task(tasks, TASKS):
        raise error
    variants(rules, has_leaves=False)  # the errors of unknown rules, before any work
    report.check_folder(options.out)

    from .report.terminal import progress, show

    with progress() as on_step:
        results = report.compare(tasks, rules, settings, on_step)
    page = report.write(results, options.out)
    show(results)
    print(f"\nThe report: {os.path.relpath(page)}")
    return 0


def _settings(options: argparse.Namespace) -> Any:
    from .tasks.base import Settings

    low = -1.0 if options.min is None else options.min
    high = 1.0 if options.max is None else options.max
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(must("compare", "--min and --max", "be finite, --min below --max", (low, high)))
    loss = _loss(options.loss) if options.loss else None
    return Settings(low, high, loss, options.loss or "")


def _loss(path: str) -> Callable[..., Any]:
    """The user's function from "module:function", looked up in the current folder too, and tried once."""
    import torch

    module, _, name = path.partition(":")
    if not module or not name:
        raise ValueError(must("compare", "--loss", "be MODULE:FUNCTION", path))
    sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(must("compare", "--loss", "name a function that can be imported", path, str(error))) from error
    finally:
        sys.path.remove(os.getcwd())
    x = torch.linspace(-1, 1, 5, dtype=torch.float64, requires_grad=True)
    y = function(x)
    if not isinstance(y, torch.Tensor) or y.shape != x.shape or not y.requires_grad:
        raise ValueError(must("compare", "--loss", "return one number with a gradient for each element", y))
    return function  # type: ignore[no-any-return]


def _require_report_extras() -> None:
    missing = [
        name for name in ("matplotlib", "rich", "sklearn", "scipy", "jinja2") if not importlib.util.find_spec(name)
    ]
    if missing:
        raise ImportError(
            f"compare: {', '.join(missing)} must be installed, got none. Run pip install 'pseudograd[report]'."
        )


# --- run --------------------------------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    from .rewrite import run

    return run.run(options.program, options.arguments, options.is_module, run.contexts(options.pin, options.override))


# --- doctor -----------------------------------------------------------------------------------------------------------


def _doctor(options: argparse.Namespace) -> int:
    from .doctor import examine, text

    findings = examine()
    print(json.dumps(findings, indent=1) if options.json else text(findings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
