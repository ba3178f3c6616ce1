"""One run of `compare` for all tests of this folder: their xdist_group keeps them in one process of a parallel run."""

from __future__ import annotations

from pathlib import Path

import pytest

from pseudograd.report.results import Results
from pseudograd.report.sources import compare
from pseudograd.report.write import write


@pytest.fixture(scope="session")
def results() -> Results:
    return compare(["retarget", "retarget_srgb", "canvas", "basin", "curve"])


@pytest.fixture(scope="session")
def folder(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(results, tmp_path_factory.mktemp("out") / "report").parent
