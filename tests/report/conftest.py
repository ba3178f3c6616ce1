"""One run of `compare` for all tests of this folder; the group keeps them in one process of a parallel run."""

from __future__ import annotations

import pytest

from pseudograd.report import Results, compare


@pytest.fixture(scope="session")
def results() -> Results:
    return compare()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "results" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("compare"))
