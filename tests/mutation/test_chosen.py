"""The table of chosen.py: no file of the package is left out, and the tests that it names are there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from .chosen import OUT_OF_REACH, PACKAGE, TESTS, every_file, prefix_of, why_not
from .explained import EXPLAINED
from .mutants import changed_source, mutants_of

ROOT = PACKAGE.parents[1]


@pytest.mark.parametrize("file", every_file())
def test_each_file_has_tests_or_a_reason(file: str) -> None:
    if file.endswith(".py") and why_not(file) is None:
        assert prefix_of(file), "name its tests in TESTS, or in OUT_OF_REACH why there are none"
    else:
        assert why_not(file), "say in OUT_OF_REACH why no mutants are made of it"


def test_no_line_of_the_table_is_left_over() -> None:
    """Each prefix is the first that fits some file, and each reason is needed."""
    files = every_file()
    assert set(TESTS) == {prefix_of(file) for file in files} - {None}
    for end in OUT_OF_REACH:
        assert any(file.endswith(end) for file in files), end


@pytest.mark.parametrize("prefix", TESTS)
def test_the_tests_are_there(prefix: str) -> None:
    for group in TESTS[prefix]:
        paths = [
            argument.removeprefix("--ignore=") for argument in group if argument.startswith(("tests/", "--ignore="))
        ]
        assert paths
        for path in paths:
            place = ROOT / path
            assert place.is_file() or list(place.glob("test_*.py")), f"{prefix}: {path}"
        if "-k" in group:
            _names_words(group[group.index("-k") + 1], [ROOT / path for path in paths])


def _names_words(expression: str, places: list[Path]) -> None:
    """Python's own rules for the connectives; whether a test fits is asked when mutants are run, which takes longer."""
    words = set(expression.replace("(", " ").replace(")", " ").split()) - {"and", "or", "not"}
    assert words, places
    ast.parse(expression.replace("-", ""), mode="eval")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("optimal.py", r"got 'optimal.py'. Did you mean optim.py?"),
        ("src/pseudograd/optim.py", r"got 'src/pseudograd/optim.py'. Did you mean optim.py?"),
        ("qqqq", r"got 'qqqq'. It fits nothing: write optim.py, or ops/."),
        ("report/page.html", "got 'report/page.html'. No mutants are made of it: the frame of a page is no Python"),
    ],
)
def test_a_name_that_fits_nothing_is_an_error(name: str, told: str) -> None:
    """Also beside one that fits."""
    done = subprocess.run(
        [sys.executable, "tests/mutation/run.py", "--list", "--files", "optim.py", name],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"--files must be the beginnings of files of src/pseudograd, {told}" in done.stderr


def test_a_mutant_is_the_file_with_one_change() -> None:
    source = "def f(x: int = 1):\n    if x > 0 and g(x):\n        h(x)\n    return -x\n"
    found = {str(mutant): changed_source(mutant, source) for mutant in mutants_of("a.py", source)}
    whole = ast.unparse(ast.parse(source))
    assert found == {
        "a.py:1 f: 1 -> 2": whole.replace("= 1", "= 2").replace("=1", "=2"),
        "a.py:2 f: x > 0 and g(x) -> x > 0 or g(x)": whole.replace("and", "or"),
        "a.py:4 f: -x -> x": whole.replace("-x", "x"),
        "a.py:2 f: x > 0 -> x >= 0": whole.replace(">", ">="),
        "a.py:2 f: 0 -> 1": whole.replace("0", "1"),
        "a.py:3 f: h(x) -> pass": whole.replace("h(x)", "pass"),
    }


@pytest.mark.parametrize("file", sorted({file for file, _, _ in EXPLAINED}))
def test_every_explanation_is_of_a_mutant_that_there_is(file: str) -> None:
    there = {mutant.key for mutant in mutants_of(file, (PACKAGE / file).read_text())}
    assert {key for key in EXPLAINED if key[0] == file} <= there
