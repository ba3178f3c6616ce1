"""pytest's way into pseudograd: the fixture `diagnosed`, `--pseudograd-pin EDGE` for a whole suite, and a marker for one test.

It stands beside the package, because pytest imports its plugins in every project, and the package imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager

import pytest

_OPTION, _MARKER = "--pseudograd-pin", "pseudograd_pin"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pseudograd")
    group.addoption(_OPTION, metavar="EDGE", help="run every test under pin_edge(EDGE), such as 'torch<=2.13'")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{_MARKER}(edge): run this test under pseudograd.pin_edge(edge)")
    edge = config.getoption(_OPTION)
    if edge is not None:
        _pin(edge)  # its error, before any test


def pytest_report_header(config: pytest.Config) -> str | None:
    edge = config.getoption(_OPTION)
    return None if edge is None else f"pseudograd: every test runs under pin_edge({edge!r})"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The errors of markers, before any test."""
    for item in items:
        marker = item.get_closest_marker(_MARKER)
        if marker is not None:
            if len(marker.args) != 1 or marker.kwargs:
                got = f"got {len(marker.args)} and {len(marker.kwargs)} by name, at {item.nodeid}"
                raise pytest.UsageError(
                    f"{_MARKER}: there must be one argument, {got}. Name the edge, as 'torch<=2.13'."
                )
            _pin(marker.args[0])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Around the fixtures of a test, too: models are often trained in them. The marker of a test goes before the option."""
    marker = item.get_closest_marker(_MARKER)
    edge = item.config.getoption(_OPTION) if marker is None else marker.args[0]
    if edge is None:
        return (yield)
    with _pin(edge):
        return (yield)


def _pin(edge: str) -> AbstractContextManager[object]:
    from pseudograd import pin_edge

    try:
        return pin_edge(edge)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


@pytest.fixture
def diagnosed() -> Callable[..., AbstractContextManager[object]]:
    """`with diagnosed(model, fail_on="starved"):` around training steps; see pseudograd.integrations.pytest."""
    from pseudograd.integrations.pytest import diagnosed

    return diagnosed
