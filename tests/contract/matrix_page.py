"""`--matrix=FILE`: write what the cells of the value matrix did in this run, as a page of the docs. conftest.py of tests registers it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from . import matrix

Cell = tuple[str, str, str, str]  # place, way, case, outcome


class Collector:
    """Gathers the cells that passed, also from the workers of a parallel run, and the cells that did not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells: list[Cell] = []
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "test_matrix" not in report.nodeid:
            return
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "call":
            self.cells += [tuple(value) for name, value in report.user_properties if name == "cell"]

    def pytest_sessionfinish(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("\n".join(self.page()) + "\n", encoding="utf-8")

    def page(self) -> Iterator[str]:
        pairs = sorted({case for _, _, case, _ in self.cells if case != "torch.sin"})
        ways = [way for way in matrix.WAYS if any(way == name for _, name, *_ in self.cells)]
        yield "# The value matrix"
        yield ""
        version = torch.__version__.split("+")[0]
        yield f"Written by `make test-all` on torch {version}: {len(self.cells)} cells over {len(pairs)} pairs of op and rule,"
        yield f"{len(self.failed)} failed. A cell compares numbers with plain backward in eager, or with plain double backward."
        yield ""
        yield "- A number: so many pairs, or ways, give equal values."
        yield "- *refuse*: our error, in forward mode of a rule that reads grad and so has no derivative to push forward."
        yield "- An issue, or *by design*: what torch cannot do with `torch.sin` either."
        yield "- Compiled: `torch.compile(fullgraph=True, backend='aot_eager')`, static and with `dynamic=True`, of what does not refuse in"
        yield "  eager. Inductor, the compiler that writes code, gets three of the pairs."
        yield from ("", "## By way of asking for the gradient", "")
        yield from self.table("way", ways, lambda cell: cell[1])
        yield from ("", "## By op and rule", "")
        yield from self.table("op/rule", pairs, lambda cell: cell[2])

    def table(self, first: str, names: list[str], name_of: Callable[[Cell], str]) -> Iterator[str]:
        yield f"| {first} | " + " | ".join(matrix.PLACES) + " |"
        yield "|---|" + "---:|" * len(matrix.PLACES)
        for name in names:
            entries = []
            for place in matrix.PLACES:
                cells = [cell for cell in self.cells if cell[0] == place and name_of(cell) == name]
                entries.append(_entry([outcome for *_, outcome in cells]))
            yield f"| {name} | " + " | ".join(entries) + " |"


def _entry(outcomes: list[str]) -> str:
    equal, refused = outcomes.count("equal"), outcomes.count("our error")
    limits = sorted({outcome for outcome in outcomes if outcome not in ("equal", "our error")})
    return " + ".join([str(equal)] * (equal > 0) + [f"{refused} refuse"] * (refused > 0) + limits)
