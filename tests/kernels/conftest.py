"""What the tests of kernels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pseudograd.kernels import native

from .ways import LEVELS


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[None]:
    wanted = LEVELS[request.param]
    if native.operators is None or native.operators.choose(wanted) != wanted:
        pytest.skip(f"this processor has no {request.param}")
    yield
    native.operators.choose(max(LEVELS.values()))
