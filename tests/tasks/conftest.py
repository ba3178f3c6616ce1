"""One run of `compare` for all tests of this folder: their xdist_group keeps them in one process of a parallel run."""

from pathlib import Path

import pytest

from pseudograd_tasks import canvas, retarget
from pseudograd_tasks.report import figures
from pseudograd_tasks.report.results import Results
from pseudograd_tasks.report.sources import run_tasks
from pseudograd_tasks.report.write import write

RULES = ("inward", "identity", "sign")


@pytest.fixture(scope="session", autouse=True)
def _coarse_figures() -> None:
    """Draws quickly; the sizes of figures in inches stay."""
    figures.DPI = 40


@pytest.fixture(scope="session")
def results() -> Results:
    """Pictures are trained for a few steps. tests/tasks/test_numbers.py measures whole trainings."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(retarget, "AWAY_STEPS", 8)
        patched.setattr(retarget, "BACK_STEPS", 4)
        patched.setattr(canvas, "STEPS", 20)
        return run_tasks(["retarget", "canvas", "basin"], RULES)


@pytest.fixture(scope="session")
def folder(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(results, tmp_path_factory.mktemp("out") / "report").parent
