"""The command `pseudograd audit`."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from ._arguments import function_named, require_extras

PLACE = 20
HELP = "compare the backward of a function with its derivative"
EXAMPLE = "pseudograd audit mine:arctan --low -2 --high 2 --plot picture.svg"


_PICTURES = (".png", ".svg", ".pdf")


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("function", metavar="MODULE:FUNCTION", help="a function of one tensor, a module or an autograd.Function")
    add("--low", type=float, required=True, help="lower end of the range of x")
    add("--high", type=float, required=True, help="upper end of the range of x")
    add("--points", type=int, default=601, metavar="N", help="number of evenly spaced x (default: 601)")
    add("--at", metavar="X,Y", help="more x, separated by commas")
    add("--json", type=Path, metavar="FILE", help="also write the result to FILE, as JSON")
    add("--plot", type=Path, metavar="FILE", help="also draw the result to FILE: .png, .svg or .pdf")


def run(options: argparse.Namespace) -> int:
    from ..errors import must
    from ..listen.program.files import checked_file, json_text, write
    from ..listen.program.signals import stoppable
    from ..look.audit import audit

    targets = {name: getattr(options, name) for name in ("json", "plot")}
    files = {name: checked_file("audit", f"--{name}", file) for name, file in targets.items() if file is not None}
    if options.plot is not None:
        if options.plot.suffix.lower() not in _PICTURES:
            raise ValueError(must("audit", "--plot", f"end in {', '.join(_PICTURES)}", str(options.plot)))
        require_extras("audit", "matplotlib")
    try:
        at = [] if options.at is None else [float(number) for number in options.at.split(",")]
    except ValueError as error:
        raise ValueError(must("audit", "--at", "be numbers with commas between", options.at)) from error
    with stoppable():
        result = audit(
            function_named("audit", "the function", options.function),
            options.low,
            options.high,
            points=options.points,
            at=at,
        )
        print(result)
        if "json" in files:
            write("audit", "--json", files["json"], json_text(result.to_json()))
        if "plot" in files:
            picture = io.BytesIO()
            result.plot().savefig(picture, format=options.plot.suffix.lower()[1:])
            write("audit", "--plot", files["plot"], picture.getvalue())
    return 0
