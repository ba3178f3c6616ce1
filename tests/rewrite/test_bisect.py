"""bisect: the search alone, and programs in processes of their own."""

import math
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pseudograd.cli import main
from pseudograd.listen.program import follow as programs
from pseudograd.listen.program.signals import Stopped
from pseudograd.rewrite.bisect import (
    FOUND,
    RANDOM,
    SAME,
    Bisection,
    CallSite,
    Key,
    _find_smallest,
    _lines_of_callers,
    bisect,
)
from pseudograd.rewrite.standard_input import StandardInput

from ..commands import answer


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('of the program')")
    return tmp_path / "train.py"


# --- the search -------------------------------------------------------------------------------------------------------


def _searched(count: int, needed: set[int]) -> tuple[set[int], list[str]]:
    """The answer, and the runs of the search, each as the digits of its places."""
    runs: list[str] = []

    def is_enough(keys: list[Key]) -> bool:
        runs.append("".join(key[0] for key in keys))
        return needed <= {int(key[0]) for key in keys}

    answer = _find_smallest(is_enough, [(str(number),) for number in range(count)])
    return {int(key[0]) for key in answer}, runs


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 16, 33, 100])
def test_one_place_is_found_in_two_runs_for_each_halving(count: int) -> None:
    for culprit in range(count):
        answer, runs = _searched(count, {culprit})
        assert answer == {culprit}
        assert len(runs) <= 2 * math.ceil(math.log2(count)), (count, culprit, runs)


def test_several_places_that_are_needed_together() -> None:
    generator = random.Random(0)
    for _ in range(200):
        count = generator.randint(2, 20)
        needed = set(generator.sample(range(count), generator.randint(1, min(4, count))))
        assert _searched(count, needed)[0] == needed


def test_the_callers_that_tell_two_ways_apart() -> None:
    lines = [("lib.py:1", "lib.py:5", caller, "main.py:9") for caller in ("lib.py:20", "lib.py:30")]
    first, second = (CallSite("clamp", "lib.py:1", "main.py:9", "clamp(x)", way) for way in lines)
    longer = CallSite("clamp", "lib.py:1", "main.py:9", "clamp(x)", (*lines[0], "main.py:9"))  # by a recursion
    assert [first.callers([other]) for other in (second, first, longer)] == [("lib.py:20",), (), ()]
    # Four ways of two callers and two phases: no single line tells one way from the other three.
    ways = [("lib.py:1", caller, "lib.py:9", phase) for caller in ("lib.py:5", "lib.py:6") for phase in ("m:3", "m:4")]
    places = [CallSite("clamp", "lib.py:1", "m:2", "clamp(x)", way) for way in ways]
    assert [place.callers(places) for place in places] == [(way[1], way[3]) for way in ways]
    text = str(Bisection("pin", FOUND, (True, False), (places[1],), tuple(places), 9))
    assert "reached by way of lib.py:5 and m:4\n               in the program: m:2\n" in text


# --- what is printed --------------------------------------------------------------------------------------------------

INSIDE = tuple(f"lib.py:{line}" for line in (1, 5, 20, 30, 40, 50))
SITES = (
    CallSite("clamp", "lib.py:1", "main.py:9", "clamp(x)", (*INSIDE, "main.py:9")),
    CallSite("clamp", "lib.py:1", "main.py:9", "clamp(x)", ("lib.py:1", "lib.py:6", "main.py:9")),
    CallSite("relu", "main.py:4", "main.py:4", "relu(x)", ("main.py:4", "main.py:8")),
    CallSite("round", "lib.py:3", "main.py:6", "round(x)", ("lib.py:3", "main.py:6")),
)
SURE = (
    "bisect: each run that decides was repeated, with the same verdict; if 1 verdict in 10 were wrong by chance,\n"
    "bisect: fewer than 1 of 100 searches would name wrong lines, and many would end without an answer"
)
HEAD = "bisect: as it is the program passes, with pin_edge('open') everywhere it fails; 9 runs\n"
TEXTS: dict[str, tuple[str, tuple[CallSite, ...], tuple[CallSite, ...], str]] = {
    "several": (
        FOUND,
        (SITES[0], *SITES[2:]),
        SITES,
        "bisect: of 4 these 3 lines decide, each is needed:\n"
        "  clamp        lib.py:1\n"
        "               reached from lib.py:5, from lib.py:20, from lib.py:30, from lib.py:40\n"
        "               in the program: main.py:9\n"
        "  relu         main.py:4\n"
        "  round        lib.py:3\n"
        f"               in the program: main.py:6\n{SURE}",
    ),
    "one": (FOUND, SITES[2:3], SITES, f"bisect: of 4 this line decides:\n  relu         main.py:4\n{SURE}"),
    "no call": (SAME, (), (), "bisect: nothing to find: the change decides nothing (the change reached no call)"),
    "one place": (SAME, (), SITES[:1], "bisect: nothing to find: the change decides nothing (it reached 1 place)"),
    "the same": (SAME, (), SITES, "bisect: nothing to find: the change decides nothing (it reached 4 places)"),
    "random": (
        RANDOM,
        (),
        SITES,
        "bisect: the same run passed once and failed once: the program does not repeat. "
        "Fix its seeds, or make --check sharper.",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_answer_in_words(name: str) -> None:
    outcome, decide, places, text = TEXTS[name]
    assert str(Bisection("pin_edge('open')", outcome, (True, False), decide, places, 9)) == HEAD + text


# --- which runs there are ---------------------------------------------------------------------------------------------


def _instead_of_processes(
    monkeypatch: pytest.MonkeyPatch, status: Callable[[set[str]], int], sites: str = "abcd"
) -> None:
    """Replace the program by one that calls torch at these lines. status: the exit status if these lines are changed. Checks do run."""

    def run(command: Any, job: Any, **how: Any) -> programs.Run:
        assert (command[0], command[-1]) == (sys.executable, "train.py")  # between them: options of this interpreter
        content = [CallSite("clamp", name, name, "", (name,), 1) for name in sites]
        places = job["change"]["places"]
        changed = set(sites) if places is None else {path for _, path in places}
        return programs.Run(status(changed), (programs.Part(1, None, True, content),))

    monkeypatch.setattr(programs, "run", run)


@pytest.mark.usefixtures("train")
def test_a_set_of_lines_is_run_once_and_what_decides_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[int, int, int, bool]] = []
    _instead_of_processes(monkeypatch, lambda changed: {"a", "d"} <= changed)
    answer = bisect("train.py", pin="open", on_run=lambda *numbers: runs.append(numbers))
    assert [place.where for place in answer.decide] == ["a", "d"]
    searched = [2, 2, 1, 1, 1, 1, 3, 3, 2]
    again = [2, 1, 1]  # the answer, and it without one of its lines
    changed = [0, 4, 0, 4, *searched, 2, *again, *again, 2]  # at last all but the answer
    passes = [number not in (2, 4, 12, 13, 14, 15, 18) for number in range(1, 22)]
    assert runs == [(number, count, 4, ok) for number, (count, ok) in enumerate(zip(changed, passes, strict=True), 1)]
    assert (answer.passes, answer.runs) == ((True, False), 21)


@pytest.mark.usefixtures("train")
def test_the_answer_has_the_formats_of_lint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file, or on the standard output; then the text goes to the standard error."""
    _instead_of_processes(monkeypatch, lambda changed: "c" in changed)
    command, answer, known = (
        ("bisect", "--pin", "open"),
        "of 4 this line decides:\n  clamp        c\n",
        "::warning file=train.py",
    )
    for options, streams in (
        ("", (answer,)),
        ("--output-format github", (known, answer)),
        ("--output-format github --output-file found.txt", (answer, "", known)),
        ("--output-file found.txt", ("", "", answer)),
    ):
        assert main((*command, *options.split(), "train.py")) == 0
        out, err = capsys.readouterr()
        file = Path("found.txt")
        texts = (out, err, file.read_text() if file.exists() else "")
        assert all(
            (part in text) if part else not text or text is err for part, text in zip(streams, texts, strict=False)
        ), options
        assert ("::" in out) == (streams[0] == known)
        file.unlink(missing_ok=True)
    monkeypatch.setattr(programs, "run", lambda *_, **__: pytest.fail("an error of the options comes before any run"))
    for options, error in (
        ("--output-format xml", "bisect: --output-format must be one of text, json, github, sarif, got 'xml'."),
        ("--output-file no/x", "bisect: --output-file must lie where files can be written, got 'no/x'."),
    ):
        assert main((*command, *options.split(), "train.py")) == 2
        assert error in capsys.readouterr().err


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize(
    ("runs", "known"),
    [
        (0, ["as it is the program was not run to its end, with", "everywhere it was not run to its end"]),
        (1, ["as it is the program passes", "everywhere it was not run to its end"]),
        (3, ["enough: 4 places\n  clamp        a\n", "cleared, as the change is not needed there: 0 places"]),
        (7, ["enough: 1 place\n  clamp        c\n", "needed there: 3 places\n  clamp        a\n"]),
    ],
)
def test_a_signal_leaves_the_suspects_and_the_cleared_places(
    runs: int, known: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[set[str]] = []

    def status(changed: set[str]) -> int:
        if len(done) == runs:
            raise Stopped(signal.SIGTERM)
        done.append(changed)
        return "c" in changed

    _instead_of_processes(monkeypatch, status)
    assert main(["bisect", "--pin", "open", "train.py"]) == 143
    out, err = capsys.readouterr()
    assert out.startswith(f"bisect: stopped after {runs} run")
    assert all(text in out for text in known), out
    assert err.splitlines()[-1] == "pseudograd: stopped by SIGTERM; nothing is left half-written"


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize(("enough", "is_alone"), [("d", True), ("db", False)])
def test_all_lines_but_the_answer_are_run(enough: str, is_alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If either of two lines is enough, the answer is one of them and says that there is another."""
    _instead_of_processes(monkeypatch, lambda changed: not changed.isdisjoint(enough))
    answer = bisect("train.py", pin="open")
    assert (answer.outcome, len(answer.decide), answer.is_alone) == (FOUND, 1, is_alone)
    assert ("too: it is enough there, and it is enough elsewhere" in str(answer)) == (not is_alone)


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize("passes", [True, False], ids=["to pass", "to fail"])
def test_a_verdict_that_is_wrong_by_chance_names_no_line_too_many(
    passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 1 of 10 runs the program fails, whatever is changed; without repeats 1 of 10 answers had a line too many."""
    chance, wrong, right = random.Random(0), 0, 0
    _instead_of_processes(monkeypatch, lambda changed: ({"c"} <= changed) != passes or chance.random() < 0.1)
    for _ in range(100):
        answer = bisect("train.py", pin="open")
        lines = [place.where for place in answer.decide]
        right += lines == ["c"]
        wrong += answer.outcome == SAME or lines not in ([], ["c"])
    assert wrong <= 3
    assert right >= 40


@pytest.mark.usefixtures("train")
def test_an_answer_that_does_not_repeat_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    before: list[set[str]] = []

    def status(changed: set[str]) -> int:
        before.append(changed)
        return "c" in changed and before.count({"c"}) < 2

    _instead_of_processes(monkeypatch, status)
    answer = bisect("train.py", pin="open")
    assert (answer.outcome, answer.decide, answer.is_alone, len(answer.places)) == (RANDOM, (), True, 4)


def test_a_check_is_a_shell_command_that_nobody_sees(
    train: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def status(changed: set[str]) -> int:
        (train.parent / "changed.txt").write_text("".join(sorted(changed)))
        return 3

    _instead_of_processes(monkeypatch, status)
    answer = bisect("train.py", pin="open", checked_by="echo of the check; ! grep b changed.txt && test -e train.py")
    assert (answer.passes, [place.where for place in answer.decide]) == ((True, False), ["b"])
    assert capfd.readouterr() == ("", "")


def test_an_error_of_ours_in_the_program_is_told(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "run", lambda *_, **__: programs.Run(0, (), errors=("it broke",)))
    with pytest.raises(ValueError, match=r"bisect: the change must reach the program, got an error there\. it broke"):
        bisect(str(train), pin="open")


# --- the standard input -----------------------------------------------------------------------------------------------


def _feed(end: int, text: bytes) -> None:
    with os.fdopen(end, "wb") as pipe:
        pipe.write(text)


@pytest.mark.parametrize("is_file", [False, True])
def test_every_run_gets_the_whole_standard_input(is_file: bool, tmp_path: Path) -> None:
    text = bytes(range(256)) * 1000  # more than a pipe holds
    file = tmp_path / "input"
    file.write_bytes(b"before" + text)
    with open(file, "rb") as source:
        descriptor = source.fileno()
        os.lseek(descriptor, 6, os.SEEK_SET)
        feeder = None
        if not is_file:
            descriptor, end = os.pipe()
            feeder = threading.Thread(target=_feed, args=(end, text), daemon=True)
            feeder.start()
        stdin = StandardInput(descriptor)
        for wanted in (text, text[:10], b"", text):
            with stdin.open_for_run() as handed:
                reading = descriptor if handed is None else handed
                read = b""
                while len(read) < len(wanted):
                    read += os.read(reading, len(wanted) - len(read))
            assert read == wanted
        if feeder is not None:
            feeder.join()
            os.close(descriptor)


ENDS_AT_ONCE = """\
import os, sys, torch
x = torch.full((2,), 2.0, requires_grad=True)
x.clamp(0, 1).sum().backward()
failed = x.grad.sum() == 0 or sys.stdin.read() != "x"
if failed:
    with open("failures", "a+") as failures:
        print(f"line 1\\nbehind {failures.tell()} failures", file=sys.stderr, flush=True)
        failures.write("x")
os._exit(failed)
"""


@pytest.mark.usefixtures("in_copies")
def test_a_program_that_reads_and_ends_by_os_exit(train: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train.write_text(ENDS_AT_ONCE)
    with _stdin("x"):
        status, out, err = answer(capfd, "bisect", "--override", "clamp=identity", "train.py")
    assert status == 0, err
    assert "as it is the program fails, with override(clamp='identity') everywhere it passes" in out
    assert "this line decides:\n  clamp        train.py:3\n" in out
    assert out.endswith("bisect: a run that fails ends with:\n  line 1\n  behind 0 failures\n")


@contextmanager
def _stdin(text: str) -> Iterator[None]:
    """Standard input from a pipe, which can be read once."""
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    before = os.dup(0)
    os.dup2(reading, 0)
    os.close(reading)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)


@pytest.mark.usefixtures("train")
@pytest.mark.parametrize(
    ("pin", "text"), [("ajar", "pin_edge: edge must be one of"), ("jax", "bisect: pin must be an edge")]
)
def test_a_wrong_call_gets_one_line(pin: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("bisect", "--pin", pin, "train.py")) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"pseudograd: {text}")
    assert err.count("\n") == 1


def test_the_path_has_no_line_of_pythons_own() -> None:
    lines: list[str] = []

    @contextmanager
    def entered() -> Iterator[None]:
        lines.extend(_lines_of_callers())
        yield

    with entered():  # through a function of contextlib
        pass
    assert [line.split(":")[0].endswith("test_bisect.py") for line in lines[:2]] == [True, True]
    assert not [line for line in lines if "contextlib" in line]
