"""The examples run, without a warning; and the committed notebooks are the scripts, executed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..choices import slow_but

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("analysis_of_clamp_with_grad", "questions")
MARKDOWN = "# %% [markdown]"


def cells_of_script(text: str) -> list[tuple[str, str]]:
    """(kind, source) of each cell of a percent script."""
    cells: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("# %%"):
            cells.append(("markdown" if line == MARKDOWN else "code", []))
        else:
            cells[-1][1].append(line)
    return [(kind, source(kind, lines)) for kind, lines in cells]


def source(kind: str, lines: list[str]) -> str:
    if kind == "markdown":
        lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
    return "\n".join(lines).strip("\n")


def notebook(name: str) -> dict:
    return json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))


def outputs(name: str) -> list[dict]:
    return [output for cell in notebook(name)["cells"] for output in cell.get("outputs", [])]


def test_percent_cells_are_read() -> None:
    text = "# %% [markdown]\n# # Title\n#\n# text\n\n# %%\nx = 1  # one\n\n\n# %%\ny = 2\n"
    assert cells_of_script(text) == [("markdown", "# Title\n\ntext"), ("code", "x = 1  # one"), ("code", "y = 2")]


# The other one takes seconds and calls what tests/tasks and tests/look call.
@pytest.mark.program
@pytest.mark.parametrize("name", slow_but(["questions"], NAMES))
def test_script_runs_without_a_warning(name: str) -> None:
    pytest.importorskip("matplotlib")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")],
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) > 20


@pytest.mark.parametrize("name", NAMES)
def test_notebook_has_the_cells_of_the_script(name: str) -> None:
    script = cells_of_script((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
    stored = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook(name)["cells"]]
    assert len(stored) == len(script), "run examples/make_notebooks.py"
    for position, (in_notebook, in_script) in enumerate(zip(stored, script, strict=True)):
        assert in_notebook == in_script, f"cell {position} differs: run examples/make_notebooks.py"


@pytest.mark.parametrize("name", NAMES)
def test_notebook_was_executed_in_order_and_without_error(name: str) -> None:
    counts = [cell["execution_count"] for cell in notebook(name)["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert outputs(name)
    for output in outputs(name):
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr", output["text"]


@pytest.mark.parametrize("name", NAMES)
def test_notebook_prints_what_it_computes_but_no_left_over_values(name: str) -> None:
    kinds = {output["output_type"] for output in outputs(name)}
    assert kinds <= {"stream", "display_data"}, "a cell ends in a bare expression"


@pytest.mark.parametrize("name", NAMES)
def test_notebook_names_no_machine(name: str) -> None:
    assert set(notebook(name)["metadata"]) == {"kernelspec", "language_info"}
    text = json.dumps([{**output, "data": sorted(output.get("data", {}))} for output in outputs(name)])
    assert str(Path.home()) not in text
    assert str(EXAMPLES.parent) not in text
    for cell in notebook(name)["cells"]:
        assert cell["metadata"] == {}


def test_notebooks_are_small() -> None:
    assert sum((EXAMPLES / f"{name}.ipynb").stat().st_size for name in NAMES) < 1_500_000


TUTORIALS = tuple(sorted(path.stem for path in (EXAMPLES / "tutorials").glob("*.py")))


# Each asserts what it tells; one of them every time, the others with all that is slow.
@pytest.mark.program
@pytest.mark.parametrize("name", slow_but(["joint_limits"], TUTORIALS))
def test_a_tutorial_runs_without_a_warning(name: str) -> None:
    pytest.importorskip("matplotlib")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "tutorials" / f"{name}.py")],
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_page_has_the_cells_of_its_tutorial(name: str) -> None:
    page = (EXAMPLES.parent / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    for kind, text in cells_of_script((EXAMPLES / "tutorials" / f"{name}.py").read_text(encoding="utf-8")):
        shown = f"```python\n{text}\n```" if kind == "code" else text
        assert shown in page, "run examples/make_notebooks.py"
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page):
        assert (EXAMPLES.parent / "docs" / "tutorials" / picture).is_file()
