"""Which line decides: the search by itself, and programs in processes of their own."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from pseudograd.cli import main
from pseudograd.rewrite.bisection import RANDOM, SAME, Key, Place, _smallest, bisect
from pseudograd.torch_eras import CLOSED_ERA, OPEN_ERA, installed_era

OTHER = OPEN_ERA if installed_era() == CLOSED_ERA else CLOSED_ERA

# --- the search -------------------------------------------------------------------------------------------------------


def _searched(count: int, needed: set[int]) -> tuple[set[int], int]:
    runs: list[list[Key]] = []

    def is_enough(some: list[Key]) -> bool:
        runs.append(some)
        return needed <= {int(key[0]) for key in some}

    found = _smallest(is_enough, [(str(number),) for number in range(count)])
    return {int(key[0]) for key in found}, len(runs)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 16, 33, 100])
def test_one_place_is_found_in_two_runs_for_each_halving(count: int) -> None:
    for culprit in range(count):
        found, runs = _searched(count, {culprit})
        assert found == {culprit}
        assert runs <= 2 * math.ceil(math.log2(count)), (count, culprit, runs)


def test_several_places_that_are_needed_together() -> None:
    generator = random.Random(0)
    for _ in range(200):
        count = generator.randint(2, 20)
        needed = set(generator.sample(range(count), generator.randint(1, min(4, count))))
        assert _searched(count, needed)[0] == needed


def test_the_caller_that_tells_two_ways_apart() -> None:
    one = Place("clamp", "lib.py:1", "main.py:9", "clamp(x)", ("lib.py:1", "lib.py:5", "lib.py:20", "main.py:9"))
    two = Place("clamp", "lib.py:1", "main.py:9", "clamp(x)", ("lib.py:1", "lib.py:5", "lib.py:30", "main.py:9"))
    assert (one.via([one, two]), two.via([one, two]), one.via([one])) == ("lib.py:20", "lib.py:30", None)


# --- programs ---------------------------------------------------------------------------------------------------------

PROGRAM = """\
import sys
import torch

def bounded(x):
    return torch.clamp(x, 0.0, 1.0)

def slope(f):
    x = torch.zeros(1, requires_grad=True)
    f(x).sum().backward()
    return x.grad.item()

first = slope(lambda x: bounded(x))
second = slope(lambda x: bounded(x))
third = slope(lambda x: x.clamp_min(0.0))
fourth = slope(lambda x: torch.fmax(x, torch.zeros(1)))
open("seen.txt", "w").write(f"{first} {second} {third} {fourth}")
"""
ENDINGS = {
    "one": "sys.exit(second == 1.0)",
    "two": "sys.exit(second == 1.0 or third == 1.0)"
    if installed_era() == CLOSED_ERA
    else "sys.exit(second + third < 2)",
    "none": "sys.exit(0)",
    "random": "import os; ran = os.path.exists('ran'); open('ran', 'w').close(); sys.exit(ran)",
    "checked": "sys.exit(3)",
}


def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    (tmp_path / "train.py").write_text(PROGRAM + ENDINGS[ending] + "\n")
    monkeypatch.chdir(tmp_path)


def _line(text: str) -> str:
    return f"train.py:{next(number for number, line in enumerate(PROGRAM.splitlines(), 1) if text in line)}"


def test_one_line_of_the_caller_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _program(tmp_path, monkeypatch, "one")
    assert main(("bisect", "--pin", OTHER, "--json", "found.json", "train.py")) == 0
    shown = capsys.readouterr()
    assert (
        f"  clamp        {_line('return torch.clamp')}\n               reached from {_line('second = ')}" in shown.out
    )
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(one["op"], one["where"], one["via"]) for one in found["decide"]] == [
        ("clamp", _line("return torch.clamp"), _line("second = "))
    ]
    assert len(found["places"]) == 4
    assert found["runs"] <= 2 * 2 + 4
    assert found["passes"] == [installed_era() == OPEN_ERA, installed_era() == CLOSED_ERA]
    assert shown.err.startswith("bisect: run 1, the change at 0 of ")


@pytest.mark.slow
def test_two_lines_that_are_needed_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, monkeypatch, "two")
    found = bisect("train.py", pin=OTHER)
    assert [place.where for place in found.decide] == [_line("return torch.clamp"), _line("third = ")]
    assert "these 2 lines decide, each is needed" in str(found)


@pytest.mark.slow
def test_a_check_decides_instead_of_the_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, monkeypatch, "checked")
    wanted = "1.0" if installed_era() == OPEN_ERA else "0.0"  # what the change gives to the third
    found = bisect("train.py", pin=OTHER, checked_by=f"grep -q '^[0-9.]* [0-9.]* {wanted} ' seen.txt")
    assert [place.where for place in found.decide] == [_line("third = ")]


@pytest.mark.parametrize(("ending", "outcome"), [("none", SAME), ("random", RANDOM)])
def test_nothing_is_guessed(
    ending: str, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _program(tmp_path, monkeypatch, ending)
    assert main(("bisect", "--override", "clamp=inward", "train.py")) == 1
    assert outcome in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["train.py"], "bisect: one of --pin and --override must be given, got neither."),
        (["--pin", "open", "nowhere.py"], "bisect: the script must be a file, got 'nowhere.py'."),
        (
            ["--override", "clamp", "train.py"],
            "bisect: --override must be FAMILY=RULE, such as clamp=inward, got 'clamp'.",
        ),
        (["--pin", "ajar", "train.py"], "pin_edge: edge must be one of"),
        (
            ["--pin", "open", "--json", "no/found.json", "train.py"],
            "bisect: --json must lie where files can be written",
        ),
    ],
)
def test_bad_calls(
    arguments: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _program(tmp_path, monkeypatch, "none")
    assert main(("bisect", *arguments)) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"pseudograd: {text}")
    assert err.count("\n") == 1
