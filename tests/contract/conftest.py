"""`--matrix FILE`: write what the cells of the value matrix did in this run, as a page of the docs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

Cell = tuple[str, str, str, str]  # place, way, row, outcome


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
        yield "# The value matrix"
        yield ""
        version = torch.__version__.split("+")[0]
        rows = {row for _, _, row, _ in self.cells if row != "torch.sin"}
        yield f"Written by `make test-all` on torch {version}: {len(self.cells)} cells over {len(rows)} pairs of op and rule, "
        yield f"{len(self.failed)} failed. A cell compares numbers with plain backward, or with plain double backward."
        for place in dict.fromkeys(sorted(place for place, *_ in self.cells)):
            yield from ("", f"## {place}", "", "| way | equal | our error | torch's limit |", "|---|---:|---:|---|")
            for way in dict.fromkeys(way for at, way, *_ in self.cells if at == place):
                found = [(row, outcome) for at, name, row, outcome in self.cells if (at, name) == (place, way)]
                counts = [sum(outcome == kind for _, outcome in found) for kind in ("equal", "our error")]
                limit = next((outcome for row, outcome in found if row == "torch.sin"), "")
                yield f"| {way} | {counts[0] or ''} | {counts[1] or ''} | {limit} |"
        yield ""
        yield "*Our error*: forward mode of a rule that is not linear in grad, which has no derivative to push forward."
        yield "*torch's limit*: what torch cannot do with torch.sin either, because of the issue named or by design."


def pytest_configure(config: pytest.Config) -> None:
    path: Any = config.getoption("--matrix", default=None)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collector(Path(path)), "value matrix")
