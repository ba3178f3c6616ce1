"""The pages for whoever adds a rule, an op or a function of torch, followed to the letter on a copy of the library."""

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
            file.write_text(code, encoding="utf-8")
            continue
        before, old = step["before"].replace("\\n", "\n"), file.read_text(encoding="utf-8")
        assert old.count(before) == 1, f"{page}: {before!r} stands {old.count(before)} times in {step['file']}"
        file.write_text(old.replace(before, code + before), encoding="utf-8")
    (commands,) = re.findall(r"```sh\n(.*?)```", text, re.S)
    return commands.splitlines()


# What is run of the tests that a page names.
SOME = {
    "tests/contract -k fading": "tests/contract/test_values.py -k 'fading and float32'",
    "tests/contract -k frac": "tests/contract/test_values.py -k 'frac and float32'",
    "tests/rewrite/test_every_row.py -k sgn": "tests/rewrite/test_every_row.py -k sgn",
    "tests/test_torch_forms.py": "tests/test_torch_forms.py -k 'lists or comes_and_goes'",
}


@pytest.mark.parametrize("page", ["adding_a_rule.md", "adding_an_op.md", "adding_a_function.md"])
def test_the_page_is_true(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Every command runs with --slow, but for the one that writes the docs; else a choice of the tests does."""
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    for command in _follow(page, tmp_path):
        if "generate_docs" in command or ("check_rule" in command and not request.config.getoption("--slow")):
            continue
        if "pytest" in command:
            command = f"python -m pytest -q -p no:cacheprovider {SOME[command.removeprefix('python -m pytest ')]}"
        command = command.replace("python", sys.executable, 1)
        done = subprocess.run(command, shell=True, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
