"""Terminals that lack characters, and signals that ask a command to stop."""

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pseudograd.listen.program.signals import Stopped, hold_signals, stoppable
from pseudograd_notices.output import abandon, plain

# --- streams ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "encoding", "text", "shown"),
    [
        ("stdout", "ascii", "0 ≤ x × 2 → é² … ’ – 漢", b"0 <= x x 2 -> e2 ... ' - ?"),
        ("stderr", "ascii", "0 ≤ x × 2 → é² … ’ – 漢", b"0 <= x x 2 -> e2 ... ' - ?"),
        ("stdout", "latin-1", "é × →", "é × ->".encode("latin-1")),  # what the terminal has stays
    ],
)
def test_missing_characters_are_printed_as_those_most_alike(
    name: str, encoding: str, text: str, shown: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    monkeypatch.setattr(sys, name, stream)
    with plain():
        stream.write(text)
    assert raw.getvalue() == shown
    assert stream.errors == "strict"
    with pytest.raises(UnicodeEncodeError):
        stream.write("≤")


def test_a_stream_that_cannot_be_told_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream of a notebook or a test."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    with plain():
        print("0 ≤ x")
    assert stream.getvalue() == "0 ≤ x\n"


def test_only_what_is_written_can_be_replaced() -> None:
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", errors="pseudograd.plain")


def test_an_abandoned_stream_takes_what_is_left_and_shows_nobody(tmp_path: Path) -> None:
    file = tmp_path / "read by nobody"
    with file.open("w") as stream:
        stream.write("seen")
        stream.flush()
        free = os.dup(0)  # the next number that the system gives out
        os.close(free)
        abandon(stream)
        again = os.dup(0)
        os.close(again)
        stream.write("unseen")
    assert again == free, "the way to nowhere is closed again"
    assert file.read_text() == "seen"


# --- signals ------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _handlers_of_a_terminal() -> Iterator[None]:
    """A shell that runs the tests in the background lets them ignore Ctrl-C."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "status", "text"),
    [(signal.SIGINT, 130, "stopped by Ctrl-C"), (signal.SIGTERM, 143, "stopped by SIGTERM")],
)
def test_either_signal_raises_and_the_older_handler_comes_back(number: int, status: int, text: str) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Stopped, match=text) as caught, stoppable():
        signal.raise_signal(number)
    assert caught.value.status == status
    assert not isinstance(caught.value, Exception)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("error", [False, True])
def test_a_signal_waits_for_the_end_of_the_block(error: bool) -> None:
    steps = []

    def block() -> None:
        with hold_signals():
            signal.raise_signal(signal.SIGTERM)
            steps.append("after it")
            if error:
                raise ValueError("of the block")
        steps.append("never")

    with pytest.raises(Stopped), stoppable():
        block()
    assert steps == ["after it"]


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """An ignored signal stays ignored, as nohup asks for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stoppable():
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_another_thread_asks_for_no_signal() -> None:
    handlers = []

    def elsewhere() -> None:
        with stoppable(), hold_signals():
            handlers.append([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)])

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert handlers == [[signal.default_int_handler, signal.SIG_DFL]]
