"""The examples run, without a warning; and the committed notebooks are the scripts, executed."""

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


def run_without_warning(script: Path) -> str:
    """What it prints."""
    pytest.importorskip("matplotlib")
    command, environment = [sys.executable, "-W", "error", str(script)], {**os.environ, "MPLBACKEND": "Agg"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


# The other one takes seconds and calls what tests/tasks and tests/look call.
@pytest.mark.program
@pytest.mark.parametrize("name", slow_but(["questions"], NAMES))
def test_script_runs_without_a_warning(name: str) -> None:
    assert len(run_without_warning(EXAMPLES / f"{name}.py").splitlines()) > 20


@pytest.mark.parametrize("name", NAMES)
def test_notebook_has_the_cells_of_the_script(name: str) -> None:
    script = cells_of_script((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
    stored = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook(name)["cells"]]
    assert stored == script, "run examples/make_notebooks.py"


@pytest.mark.parametrize("name", NAMES)
def test_notebook_was_executed_in_order_without_an_error_and_names_no_machine(name: str) -> None:
    stored = notebook(name)
    counts = [cell["execution_count"] for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))
    outputs = [output for cell in stored["cells"] for output in cell.get("outputs", [])]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data"}, "an error, or a bare expression"
    assert all(output.get("name") != "stderr" for output in outputs)
    assert set(stored["metadata"]) == {"kernelspec", "language_info"}
    assert all(cell["metadata"] == {} for cell in stored["cells"])
    text = json.dumps([{**output, "data": sorted(output.get("data", {}))} for output in outputs])
    assert str(Path.home()) not in text
    assert str(EXAMPLES.parent) not in text


def test_notebooks_are_small() -> None:
    assert sum((EXAMPLES / f"{name}.ipynb").stat().st_size for name in NAMES) < 1_500_000


TUTORIALS = tuple(sorted(path.stem for path in (EXAMPLES / "tutorials").glob("*.py")))


# Each asserts what it tells; one of them every time, the others with all that is slow.
@pytest.mark.program
@pytest.mark.parametrize("name", slow_but(["joint_limits"], TUTORIALS))
def test_a_tutorial_runs_without_a_warning(name: str) -> None:
    run_without_warning(EXAMPLES / "tutorials" / f"{name}.py")


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_page_has_the_cells_of_its_tutorial(name: str) -> None:
    page = (EXAMPLES.parent / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    for kind, text in cells_of_script((EXAMPLES / "tutorials" / f"{name}.py").read_text(encoding="utf-8")):
        shown = f"```python\n{text}\n```" if kind == "code" else text
        assert shown in page, "run examples/make_notebooks.py"
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page):
        assert (EXAMPLES.parent / "docs" / "tutorials" / picture).is_file()
