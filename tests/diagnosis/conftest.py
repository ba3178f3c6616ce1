"""What holds for every diagnosis in these tests: it has no errors, and it sends nobody into a worse training without a word of warning."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from pseudograd.diagnosis.judge.findings import Kind
from pseudograd.diagnosis.records import Finding
from pseudograd.listen.harmless import Errors

# An advice with a line to paste, or with what changes the numbers of a training.
_CHANGES = r"  # |pin_edge\(|override\(|\brule|project\(|replace_grad|add_param_group|\brate\b|maximize=|bandwidth="
_WARNS = r"None, if |.*\b[Cc]ompare a training with "
# The advices that need no training to compare with, by how they read, and the reason.
_FACTS = {
    r"with pseudograd\.pin_edge\(.*  # keeps it so on every torch": "the pin is that of the installed torch, so no number changes",
    r".*  # in the loop, before this line|torch\.autocast\(": "a loss of old weights trains nothing",
    r".*, if (the term should change the steps|the loss should depend on it|these should learn|they should train)": "says for what",
    r"torch\.utils\.checkpoint\.checkpoint\(": "the same numbers, and the gradient that was lost",
}
# Kinds of finding about gradients that are not finite: a training with these has no numbers to compare with.
_NOT_FINITE = ("nonfinite", "guard")


@pytest.fixture(autouse=True)
def _fail_for_errors_that_are_noted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A diagnosis notes its own errors and goes on. Here a test fails for them, unless it reads `errors`."""
    noted: list[str] = []
    note = Errors.note

    def note_here(errors: Errors, what: str, error: BaseException) -> None:
        note(errors, what, error)
        noted.extend(errors.lines)

    monkeypatch.setattr(Errors, "note", note_here)
    yield
    assert noted == [] or "errors" in inspect.getsource(request.node.function)


@pytest.fixture(autouse=True)
def _fail_for_advice_that_asks_for_no_comparison(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever pastes a line that changes numbers may get a worse training: the advice says so, or begins with "None, if"."""
    bare: list[str] = []
    make = Kind.finding

    def make_here(kind: Kind, *texts: str, **more: Any) -> Finding:
        finding = make(kind, *texts, **more)
        advice = finding.next_step
        is_excused = finding.code in _NOT_FINITE or re.match("|".join(_FACTS), advice)
        if re.search(_CHANGES, advice) and not (is_excused or re.match(_WARNS, advice)):
            bare.append(f"{finding.code}: {advice}")
        return finding

    monkeypatch.setattr(Kind, "finding", make_here)
    yield
    assert bare == []
