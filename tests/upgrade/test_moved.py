"""Lines of a package whose two versions differ."""

from pathlib import Path

import pytest

from pseudograd_upgrade.answer import CONVENTION, OTHER_OP, SAME
from pseudograd_upgrade.moved import MovedLines, match_lines
from pseudograd_upgrade.recording import Event, Origin, Recording
from pseudograd_upgrade.runs import Interpreter
from pseudograd_upgrade.upgrade import Question

from .made_runs import CLAMP_GRAD, LEAF, LINEAR, ORIGINS, SILU, run
from .test_questions import Run, ask

OLD = """\
import torch

def soft(g, x):
    h = torch.relu(x)
    return (h * 0 + g).clamp(0, 1)

def hard(x):
    return x.sign()
"""


@pytest.mark.parametrize(
    ("changes", "moved"),
    [
        ({"": ""}, None),
        ({"import torch\n": "# a comment\n\nimport torch\n"}, {6: 4, 7: 5, 10: 8}),
        ({"def soft": "def gentle"}, {4: 4, 5: 5, 8: 8}),
        ({"clamp(0, 1)": "clamp(0.0, 1.0)", "import": "\nimport"}, {5: 4, 6: 5, 9: 8}),
        ({"    return (h": "    h = h.abs()\n    return (h"}, {4: 4, 5: None, 6: 5, 9: 8}),
        ({"    h = torch.relu(x)\n": "", "h * 0": "x * 0"}, {7: 8}),
        ({"    h = torch.relu(x)": "    if x.any():\n        h = torch.relu(x)"}, {4: None, 5: 4, 6: 5}),
    ],
    ids=["same", "two lines more", "renamed", "edited", "a call more", "a call less", "nested"],
)  # fmt: skip
def test_a_statement_keeps_its_older_line(
    tmp_path: Path, changes: dict[str, str], moved: dict[int, int | None] | None
) -> None:
    text = OLD
    for old, new in changes.items():
        text = text.replace(old, new, 1)
    files = [tmp_path / name for name in ("old.py", "new.py")]
    for file, content in zip(files, (OLD, text), strict=True):
        file.write_text(content, encoding="utf-8")
    lines = match_lines(*map(str, files))
    assert (lines is None) == (moved is None)
    assert {number: (lines or {}).get(number) for number in moved or {}} == (moved or {})


def test_a_file_is_sought_in_the_innermost_folder_and_not_in_that_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "new" / "packages"
    for folder, text in ((tmp_path / "old", OLD), (inner, OLD.replace("\n\n", "\n\nx = 1\n", 1))):
        folder.mkdir(parents=True)
        (folder / "module_of_a_test.py").write_text(text, encoding="utf-8")
    moved = MovedLines([str(tmp_path / "old")], [str(inner.parent), str(inner)])

    def align(number: int) -> str:
        origin = Origin("forward", "relu", f"{inner / 'module_of_a_test.py'}:{number}", "", "")
        aligned = moved.align(Recording("2.15.0", [[1.0]], {1: [Event(origin, "", (), line="as recorded")]}))
        return aligned.steps[1][0].line

    assert align(5).endswith("module_of_a_test.py:4")
    assert align(3).endswith("module_of_a_test.py:3, new")
    monkeypatch.chdir(inner)
    assert align(5) == "as recorded"


PACKAGE = "import torch\n\n\n\n\ndef gate(x):\n    return x.clamp(0, 1)\n"  # made_runs calls line 7


@pytest.mark.parametrize(
    ("changes", "line", "kind"),
    [
        ({"import": "# one\n# two\nimport"}, 9, CONVENTION),
        ({"def gate": "\n\ndef gate", "clamp": "clip"}, 9, CONVENTION),
        ({"    return": "    x = x.abs()\n    return"}, 8, OTHER_OP),
        ({"import": "# one\nimport"}, 8, SAME),
    ],
    ids=["two lines more", "edited", "a call more", "no difference"],
)
def test_a_call_at_another_line_is_no_other_op(tmp_path: Path, changes: dict[str, str], line: int, kind: str) -> None:
    text = PACKAGE
    for old, new in changes.items():
        text = text.replace(old, new)
    pythons = []
    for name, content, torch in (("old", PACKAGE, "2.13.0"), ("new", text, "2.15.0")):
        file = tmp_path / name / "site-packages" / "package" / "gate.py"
        file.parent.mkdir(parents=True)
        file.write_text(content, encoding="utf-8")
        pythons.append(Interpreter(name, torch, folders=("/nowhere", str(file.parents[1]))))

    def record(asked: Run) -> Recording:
        is_equal = asked.is_old or kind == SAME or (asked.pin is not None and kind == CONVENTION)
        slope = 1.0 if is_equal else 0.0
        events = [(LINEAR, 1.0), (CLAMP_GRAD, slope), (LEAF, slope), (SILU, 3.0)]
        origins = ORIGINS
        if not asked.is_old:
            origins = [[*row[:2], row[2].replace("gate.py:7", f"gate.py:{line}"), *row[3:]] for row in ORIGINS]
            origins.append(["forward", "abs", "package/gate.py:7", "train.py:6", "x.abs()"])
            events[1:1] = [(len(ORIGINS), 1.0)] if kind == OTHER_OP else []
        return run(*events, losses=(1.0, 2.0 - slope), origins=origins)

    answer, runner = ask(Question, *pythons, record)
    assert answer.kind == kind
    if answer.difference is not None:
        shown = "7  step 1, forward of abs" if kind == OTHER_OP else "7  step 1, backward of ClampBackward1"
        assert f"\n  package/gate.py:{shown}\n" in f"{answer}"
        is_moved = kind == CONVENTION and line != 7
        assert (f"\n    in the newer environment: package/gate.py:{line}\n" in f"{answer}") == is_moved
    if kind == CONVENTION:
        assert [request.lines for request in runner.all if request.pin] == [[f"package/gate.py:{line}"]]
        assert answer.why[0].startswith("this line pinned")
