"""One run of `compare` for all tests of this folder: their xdist_group keeps them in one process of a parallel run."""

from __future__ import annotations

import pytest

from pseudograd.report import Results, compare


@pytest.fixture(scope="session")
def results() -> Results:
    return compare()
