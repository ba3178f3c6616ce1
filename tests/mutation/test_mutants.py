"""Of the mutation runner: no file of the package is left out, the tests that notice a change come first, a mutant is one change."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from .explained import EXPLAINED
from .files import OUT_OF_REACH, every_file, files_beginning_with, place_of, why_not
from .mutants import changed_source, drawn, mutants_of
from .reach import RECORDED, Noted, follow, imports, in_order, in_parts, name_of, not_recorded, read


def test_no_file_is_left_out_without_a_reason() -> None:
    """Of all of src."""
    assert {"optim.py", "pseudograd_pytest.py", "pseudograd_lint/walk.py"} < set(files_beginning_with([]))
    assert [file for file in every_file() if why_not(file) is None and not file.endswith(".py")] == []
    for end in OUT_OF_REACH:
        assert any(file.endswith(end) for file in every_file()), f"no file ends with {end}"
    for file in every_file():
        assert place_of(file).is_file()
        assert name_of(str(place_of(file))) == file


def test_what_a_recording_leaves_is_no_file_of_the_package(tmp_path: Path) -> None:
    """While the suite is recorded, this file of tests runs beside it."""
    (tmp_path / "pseudograd").mkdir()
    (tmp_path / "pseudograd" / "optim.py").touch()
    before = every_file(tmp_path)
    follow(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert every_file(tmp_path) == before == ["optim.py"]


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
    with pytest.raises(SystemExit) as error:
        files_beginning_with(["optim.py", name])
    assert str(error.value).startswith(f"--files must be the beginnings of files of src/pseudograd, {told}")
    assert files_beginning_with(["optim.py"]) == ["optim.py"]


TESTS = [
    Noted("a.py::test_much[0]", 0.1, frozenset({("one.py", "f"), ("two.py", "g"), ("two.py", "h")})),
    Noted("a.py::test_much[1]", 0.1, frozenset({("one.py", "f"), ("two.py", "g"), ("two.py", "h")})),
    Noted("a.py::test_other", 0.1, frozenset({("two.py", "h")})),
    Noted("b.py::test_slowly", 9.0, frozenset({("one.py", "f")})),
    Noted("b.py::test_f", 0.1, frozenset({("one.py", "f")})),
    Noted("c.py::test_nothing", 0.1, frozenset()),
]


@pytest.mark.parametrize(
    ("function", "order"),
    [
        # What is about it, what enters it among others, with other parameters too, what is slow; then what stands beside these.
        (("one.py", "f"), ["test_f", "test_much[0]", "test_much[1]", "test_slowly", "test_other"]),
        (("two.py", "module"), ["test_other", "test_much[0]", "test_much[1]"]),  # whatever enters the file
        (("three.py", "f"), []),
    ],
)
def test_the_likely_and_fast_tests_come_first(function: tuple[str, str], order: list[str]) -> None:
    assert [test.name.split("::")[1] for test in in_order(TESTS, function)] == order


def test_what_is_only_a_parameter_or_an_import_leads_to_a_test_too() -> None:
    """Of a test of every rule one set of parameters is recorded, and nothing is seen to enter a table of numbers."""
    gelu = Noted("a.py::test_every[relu-plain]", 0.1, frozenset({("others.py", "relu")}))
    about = gelu._replace(name="a.py::test_every[gelu-tanh]")
    entering = Noted("b.py::test_one", 9.0, frozenset({("one.py", "gelu"), ("one.py", "_slope")}))
    table = Noted("c.py::test_table", 0.1, frozenset())
    others = Noted("d.py::test_nothing", 0.1, frozenset())
    tests = [gelu, about, entering, table, others]
    assert in_order(tests, ("one.py", "_slope")) == [about, entering, gelu]
    assert in_order(tests, ("table.py", "module")) == []
    assert in_order(tests, ("table.py", "module"), {"c.py"}) == [table]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from pseudograd.ops.fitted_slopes import FITTED", True),
        ("import pseudograd.ops.fitted_slopes", True),
        ("from pseudograd.ops import bounds, fitted_slopes", True),
        ("from pseudograd.ops import fitted_slopes_of", False),
        ("from pseudograd.ops.fitted import slopes  # fitted_slopes", False),
        ("from pseudograd_lint.fitted_slopes import FITTED", False),
    ],
)
def test_who_imports_a_file(text: str, expected: bool) -> None:
    assert imports(f"import torch\n{text}\n", "ops/fitted_slopes.py") is expected
    of_the_linter = text.replace("pseudograd.ops", "pseudograd_lint.ops")
    assert imports(of_the_linter, "pseudograd_lint/ops/fitted_slopes.py") is expected


RECORD = [
    {"sets of parameters": {"a.py::f": ["a.py::f[0]", "a.py::f[1]"], "a.py::g": ["a.py::g"], "b.py::h": ["b.py::h"]}},
    {"function": ["one.py", "f"]},
    {"test": "a.py::f[1]", "seconds": 0.5, "outcome": "passed", "enters": [0]},
    {"test": "a.py::g", "seconds": 0.5, "outcome": "failed", "enters": [0]},
    {"test": "b.py::h", "seconds": 0.2, "outcome": "passed", "enters": []},
]


def record(notes: Path, name: str, files: dict[str, str], lines: list[dict[str, object]]) -> None:
    (notes / name).mkdir()
    (notes / name / "reach.1.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (notes / name / RECORDED).write_text(json.dumps(files))


def test_notes_are_of_every_set_of_parameters_of_a_test_that_passed(tmp_path: Path) -> None:
    record(tmp_path, "0000", {"a.py": "old", "b.py": "old"}, RECORD)
    enters = frozenset({("one.py", "f")})
    assert read(tmp_path, {"a.py": "old"}) == [Noted("a.py::f[1]", 0.5, enters), Noted("a.py::f[0]", 0.5, enters)]


def test_only_files_of_tests_that_changed_are_recorded_again(tmp_path: Path) -> None:
    record(tmp_path, "0000", {"a.py": "old", "b.py": "old"}, RECORD)
    now = {"a.py": "new", "b.py": "old", "c.py": "new"}
    assert not_recorded(tmp_path, now) == ["a.py", "c.py"]
    assert [test.name for test in read(tmp_path, now)] == ["b.py::h"]
    again = {"test": "a.py::g", "seconds": 0.5, "outcome": "passed", "enters": []}
    record(tmp_path, "0001", {"a.py": "new", "c.py": "new"}, [again])
    assert not_recorded(tmp_path, now) == []
    assert [test.name for test in read(tmp_path, now)] == ["b.py::h", "a.py::g"]


def test_what_killed_a_mutant_before_meets_it_first() -> None:
    parts = list(in_parts(TESTS, 1.0, TESTS[5:]))
    assert [[test.name.split("::")[1] for test in part] for part in parts] == [
        ["test_nothing"],
        ["test_much[0]"],
        ["test_much[1]", "test_other", "test_f"],
    ]


def test_a_sample_stays_when_the_package_changes() -> None:
    source = "def f(x):\n    return x + 1 if x > 0 else x - 1\n"
    before = list(mutants_of("a.py", source))
    after = list(mutants_of("a.py", f"import math\n\n\ndef g(x):\n    return x * 2\n\n\n{source}"))
    keys = [mutant.key for mutant in drawn(after, len(after), seed=3) if mutant.function == "f"]
    assert keys == [mutant.key for mutant in drawn(before, len(before), seed=3)]
    assert len(keys) == len(before) > 4
    assert keys != [mutant.key for mutant in drawn(before, len(before), seed=4)]
    assert drawn(before, 2, seed=3) == drawn(before, len(before), seed=3)[:2]


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
    there = {mutant.key for mutant in mutants_of(file, place_of(file).read_text())}
    assert {key for key in EXPLAINED if key[0] == file} <= there
