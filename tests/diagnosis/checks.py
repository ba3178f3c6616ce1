"""What tests read of a diagnosis, and how they follow its advice."""

import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

import pseudograd as pg
from pseudograd.diagnosis.context import Diagnosis
from pseudograd.diagnosis.records import Finding, Site


class Heard(TorchFunctionMode):
    """A mode of a program, which notes the functions that it hears of."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def make_function(name: str, forward: Callable[..., object], backward: Callable[..., object]) -> Any:
    """An autograd.Function of a program. Its node has the name and "Backward"."""
    parts = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (torch.autograd.Function,), parts)


def diagnosed(
    loss: Callable[[], torch.Tensor], model: torch.nn.Module | None = None, *, times: int = 1, **options: Any
) -> Diagnosis:
    """A diagnosis of so many backward passes."""
    with pg.diagnose(model, **options) as d:
        for _ in range(times):
            loss().backward()
    return d


def codes(d: Diagnosis) -> list[str]:
    assert d.errors == []
    return [finding.code for finding in d.findings]


def starved(d: Diagnosis) -> list[str]:
    assert d.errors == []
    return [record.parameter for record in d.starved]


def only(d: Diagnosis, code: str) -> Finding:
    """The one finding of this code."""
    (finding,) = [finding for finding in d.findings if finding.code == code]
    return finding


def site_of(d: Diagnosis, op: str) -> Site:
    """The one site of this op."""
    (site,) = [site for site in d.sites if site.op == op]
    return site


def line_of(text: str) -> int:
    """The line of the calling test's file that starts with this text."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    lines = Path(frame.f_back.f_code.co_filename).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


def programs_in(text: str) -> dict[str, str]:
    """Programs by name. Each begins with its name in a comment, and ends at an empty line."""
    parts = [part.partition("\n") for part in text.strip().split("\n\n")]
    return {name.removeprefix("# "): body for name, _, body in parts}


def define(body: str, file: Path, arguments: str, **names: object) -> Any:
    """The function with this body, whose source is in a file of its own."""
    source = f"def program({arguments}):\n{textwrap.indent(body, '    ')}\n"
    file.write_text(source, encoding="utf-8")
    exec(compile(source, str(file), "exec"), names)
    return names["program"]


def number_of(where: str) -> int:
    """The number of the line in "file:line"."""
    return int(where.rpartition(":")[2])


def follow(advice: str, step: Callable[[], object], **names: object) -> None:
    """Paste the advice of a finding around a training step."""
    exec(advice.split("#")[0].replace("...", "step()"), {"pseudograd": pg, "step": step, **names})
