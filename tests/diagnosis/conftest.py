"""A diagnosis notes its own errors and goes on. Here a test fails for them, unless it reads `errors`."""

import inspect
from collections.abc import Iterator

import pytest

from pseudograd.listen.harmless import Errors


@pytest.fixture(autouse=True)
def _fail_for_errors_that_are_noted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    noted: list[str] = []
    note = Errors.note

    def note_here(errors: Errors, what: str, error: BaseException) -> None:
        note(errors, what, error)
        noted.extend(errors.lines)

    monkeypatch.setattr(Errors, "note", note_here)
    yield
    assert noted == [] or "errors" in inspect.getsource(request.node.function)
