"""The pages for whoever adds a rule, an op or a finding, followed to the letter on a copy of the library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_STEP = re.compile(
    r"^In `(?P<file>[^`]+)`, (a new file|before `(?P<before>[^\n]*)`):\n\n(?:<!--[^\n]*\n)?```python\n(?P<code>.*?)```\n",
    re.S | re.M,
)


def _follow(page: str, copy: Path) -> list[str]:
    """Carry out what the page says in a copy of the sources; returns the commands that it shows."""
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    steps = list(_STEP.finditer(text))
    assert len(steps) == text.count("```python"), "a step is written in a way that this test does not read"
    for step in steps:
        file, code = copy / step["file"], step["code"]
        if step["before"] is None:
            assert not file.exists()
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(code, encoding="utf-8")
            continue
        before, old = step["before"].replace("\\n", "\n"), file.read_text(encoding="utf-8")
        assert old.count(before) == 1, f"{page}: {before!r} stands {old.count(before)} times in {step['file']}"
        file.write_text(old.replace(before, code + before), encoding="utf-8")
    (commands,) = re.findall(r"```sh\n(.*?)```", text, re.S)
    return commands.splitlines()


def _run(command: str, folder: Path, copy: Path) -> subprocess.CompletedProcess[str]:
    """In this folder, with the sources of the copy."""
    env = {**os.environ, "PYTHONPATH": str(copy / "src")}
    command = command.replace("python", sys.executable, 1)
    return subprocess.run(command, shell=True, env=env, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("page", "tests"), [("adding_a_rule.md", "fading"), ("adding_an_op.md", "frac")])
def test_the_page_is_true(page: str, tests: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Every command runs with --slow, but for the one that writes the docs; else a choice of the contract tests does."""
    for command in _follow(page, tmp_path):
        if "generate_docs" in command or ("check_rule" in command and not request.config.getoption("--slow")):
            continue
        if "pytest" in command:
            assert command == f"python -m pytest tests/contract -k {tests}"
            command = f"python -m pytest -q -p no:cacheprovider tests/contract/test_values.py -k '{tests} and float32'"
        done = _run(command, ROOT, tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def test_the_page_of_a_finding_is_true(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Its own test runs in the copy; the programs, with --slow alone, from here."""
    own, programs, docs = _follow("adding_a_finding.md", tmp_path)
    assert own == "python -m pytest tests/diagnosis/test_infinite.py"
    assert "test_programs.py" in programs
    assert docs == "python scripts/generate_docs.py --ops"
    if not request.config.getoption("--slow"):
        programs = programs.replace(" tests/diagnosis/test_programs.py", " -k 'not page'")
    for command, folder in ((own, tmp_path), (programs, ROOT)):
        done = _run(command.replace("pytest", "pytest -q -p no:cacheprovider"), folder, tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    (tmp_path / "train.py").write_text(
        "import torch\n(torch.zeros(3, requires_grad=True) * 2).sqrt().sum().backward()\n"
    )
    done = _run("python -m pseudograd diagnose --fail-on infinite train.py", tmp_path, tmp_path)
    assert (done.returncode, "infinite  train.py:2" in done.stderr) == (4, True), done.stderr
