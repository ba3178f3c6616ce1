"""`--matrix=FILE`: write what the cells of the value matrix did in this run, between two marks of that page. conftest.py of tests
registers it.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from . import matrix

BEGIN, END = "<!-- value matrix: begin -->", "<!-- value matrix: end -->"
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
        page = self.path.read_text(encoding="utf-8") if self.path.is_file() else f"{BEGIN}\n{END}\n"
        table = "\n".join([BEGIN, *self.part(), END])
        self.path.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: table, page, flags=re.S), encoding="utf-8")

    def part(self) -> Iterator[str]:
        """Ways with equal results share a row."""
        pairs = {case for _, _, case, _ in self.cells if case != "torch.sin"}
        version = torch.__version__.split("+")[0]
        yield f"torch {version}: {len(self.cells)} comparisons of {len(pairs)} pairs of op and rule, {len(self.failed)} failed."
        yield ""
        yield "| way | " + " | ".join(matrix.PLACES) + " |"
        yield "|---|" + "---:|" * len(matrix.PLACES)
        ways_by_results: dict[tuple[str, ...], list[str]] = {}
        for way in matrix.WAYS:
            cells = [cell for cell in self.cells if cell[1] == way]
            results = tuple(_entry([cell[3] for cell in cells if cell[0] == place]) for place in matrix.PLACES)
            if cells:
                ways_by_results.setdefault(results, []).append(way)
        for results, ways in ways_by_results.items():
            yield f"| {'; '.join(ways)} | {' | '.join(results)} |"


def _entry(outcomes: list[str]) -> str:
    equal, refused = outcomes.count("equal"), outcomes.count("our error")
    limits = sorted({outcome for outcome in outcomes if outcome not in ("equal", "our error")})
    return " + ".join([str(equal)] * (equal > 0) + [f"{refused} refuse"] * (refused > 0) + limits)
