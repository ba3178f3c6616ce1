"""What the tests of kernels share."""

import re
from collections.abc import Iterator

import pytest
import torch

from pseudograd import engine
from pseudograd.kernels import native
from pseudograd.rule import prepared

from .ways import DTYPES, LEVELS

# The operators are looked up when they are first asked for, so their names are read where they are registered.
OPERATORS = re.findall(r'^    {"(\w+)", "\1\(', native.LIBRARY.with_name("operators.c").read_text(), re.MULTILINE)


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[int]:
    """Runs the test with the loops for each processor that this one can stand in for."""
    wanted = LEVELS[request.param]
    if native.operators is None or native.operators.choose(wanted) != wanted:
        pytest.skip(f"this processor has no {request.param}")
    yield wanted
    native.operators.choose(max(LEVELS.values()))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every run has the loops of the widest processor with each dtype, and those of the others with half of them."""
    for item in items:
        cell = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if cell.get("level") in LEVELS and "dtype" in cell:  # items of other folders come here, too
            level = LEVELS[cell["level"]]
            if level < max(LEVELS.values()) and (level + DTYPES.index(cell["dtype"])) % 2:
                item.add_marker(pytest.mark.slow)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Which operators in C ran."""
    names: list[str] = []
    for name in {*OPERATORS} - {"choose", "version", "cuda_status"}:
        right = getattr(native.operators, name)
        monkeypatch.setattr(
            native.operators, name, lambda *args, right=right, name=name: (names.append(name), right(*args))[1]
        )
    prepared.clear()
    yield names
    prepared.clear()


@pytest.fixture
def lowerings() -> Iterator[list[str]]:
    """Which lowerings ran, by what made the nodes."""
    names: list[str] = []

    def note(y: torch.Tensor | None) -> None:
        if y is not None and y.grad_fn is not None:
            lowering = type(y.grad_fn)._forward_cls
            names.append(lowering.__qualname__.split(".")[0].removeprefix("_"))

    prepared.clear()
    with engine.watch(lambda: note):
        yield names
    prepared.clear()
