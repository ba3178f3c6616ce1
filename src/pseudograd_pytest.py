"""The plugin of pytest: the fixture `diagnosed`, `--pseudograd-pin EDGE` for a whole suite, a marker for one test, and a line about the
pinned calls at the end.

It is a module beside the package, because pytest imports its plugins in every project, and the package imports torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

import pytest

from pseudograd_notices.settings import Settings, read_settings

if TYPE_CHECKING:
    from pseudograd.integrations.pytest import PinnedTests

_OPTION, _MARKER, _NO_PIN = "--pseudograd-pin", "pseudograd_pin", "none"
_Calls = tuple[str, str, str]  # their kind, their line, and why the pin did not reach them
_KINDS = ("pinned", "compiled", "missed")
_SETTINGS, _CONTEXTS = pytest.StashKey[Settings](), pytest.StashKey[dict[str, "PinnedTests"]]()
_OF_WORKERS, _OUTPUT = pytest.StashKey[Counter[_Calls]](), "pseudograd_pins"
_SHOWN = 5  # lines


class _Node(Protocol):
    """A worker of pytest-xdist, in the process that started it."""

    config: pytest.Config


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pseudograd")
    group.addoption(
        _OPTION,
        metavar="EDGE",
        help="run every test under pin_edge(EDGE), such as 'torch<=2.13'; none: no pin (default: that of pyproject.toml)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{_MARKER}(edge): run this test under pseudograd.pin_edge(edge)")
    try:
        config.stash[_SETTINGS] = settings = read_settings("pytest")
        if config.getoption(_OPTION) is not None:
            _pin(config, config.getoption(_OPTION))  # raises the error of a wrong edge before any test
        elif settings.pin:
            settings.make_pin("pytest", lambda edge: _pin(config, edge))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def _edge(config: pytest.Config) -> str:
    """The pin of the suite."""
    edge: str | None = config.getoption(_OPTION)
    return edge or config.stash[_SETTINGS].pin or _NO_PIN


def pytest_report_header(config: pytest.Config) -> str | None:
    edge, settings = _edge(config), config.stash[_SETTINGS]
    source = "" if config.getoption(_OPTION) else f", by {settings.argument('pin')}"
    return None if edge == _NO_PIN else f"pseudograd: every test runs under pin_edge({edge!r}){source}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Raise the errors of wrong markers before any test."""
    for item in items:
        marker = item.get_closest_marker(_MARKER)
        if marker is not None:
            if len(marker.args) != 1 or marker.kwargs:
                got = f"got {len(marker.args)} and {len(marker.kwargs)} by name, at {item.nodeid}"
                raise pytest.UsageError(
                    f"{_MARKER}: there must be one argument, {got}. Name the edge, as 'torch<=2.13'."
                )
            try:
                _pin(config, marker.args[0])
            except ValueError as error:
                raise pytest.UsageError(f"{error} It is the marker of {item.nodeid}.") from error


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Pin a test and its fixtures, in which models are often trained. The marker of a test overrides the option."""
    marker = item.get_closest_marker(_MARKER)
    with _pin(item.config, _edge(item.config) if marker is None else marker.args[0]):
        return (yield)


def _pin(config: pytest.Config, edge: str) -> AbstractContextManager[object]:
    """The context of a pinned test. ValueError for an unknown edge."""
    if edge == _NO_PIN:
        return nullcontext()
    contexts = config.stash.setdefault(_CONTEXTS, {})
    if edge not in contexts:
        from pseudograd.integrations.pytest import PinnedTests

        contexts[edge] = PinnedTests(edge)
    return contexts[edge]


def _count_calls(config: pytest.Config) -> Counter[_Calls]:
    """The calls under the pins of this process and of the workers that it had."""
    counts = Counter(config.stash.get(_OF_WORKERS, {}))
    for context in config.stash.get(_CONTEXTS, {}).values():
        counts.update(context.count_calls())
    return counts


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands its counts over."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_OUTPUT] = [[*calls, count] for calls, count in _count_calls(session.config).items()]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: _Node) -> None:
    counts = node.config.stash.setdefault(_OF_WORKERS, Counter())
    for kind, where, why, count in getattr(node, "workeroutput", {}).get(_OUTPUT, ()):  # none of one that crashed
        counts[kind, where, why] += count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    counts = _count_calls(config)
    pinned, compiled, missed = ({calls: counts[calls] for calls in counts if calls[0] == kind} for kind in _KINDS)
    if not (pinned or compiled or missed):
        return
    text = f"{_describe_number(pinned)} pinned"
    text += f", {sum(compiled.values()):,} traced into compiled code" if compiled else ""
    if missed:
        places = [f"{where}, {why}" for _, where, why in missed]
        more = f"; and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
        text += f"; {_describe_number(missed)} not: {'; '.join(places[:_SHOWN])}{more}"
    terminalreporter.write_line(f"pseudograd: {text}")


def _describe_number(counts: Mapping[_Calls, int]) -> str:
    calls, lines = sum(counts.values()), len({where for _, where, _ in counts})
    s_of_calls, s_of_lines = "" if calls == 1 else "s", "" if lines == 1 else "s"
    return f"{calls:,} call{s_of_calls} at {lines:,} line{s_of_lines} {'was' if calls == 1 else 'were'}"


@pytest.fixture
def diagnosed(pytestconfig: pytest.Config) -> Callable[..., AbstractContextManager[object]]:
    """`with diagnosed(model, fail_on="starved"):` around training steps; see pseudograd.integrations.pytest."""
    from pseudograd.integrations.pytest import diagnosed_by

    return diagnosed_by(pytestconfig.stash[_SETTINGS])
