"""The page for whoever adds a task, followed to the letter on a copy of the library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_STEP = re.compile(r"^In `(?P<file>[^`]+)`, a new file:\n\n```python\n(?P<code>.*?)```\n", re.S | re.M)


def test_the_page_is_true(tmp_path: Path) -> None:
    """Every command runs, but for the one that writes the docs."""
    copy = tmp_path / "copy"
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("src", "tests/tasks"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=left_out)
    for file in ("pyproject.toml", "tests/__init__.py", "tests/conftest.py"):
        shutil.copy(ROOT / file, copy / file)
    page = (ROOT / "docs" / "adding_a_task.md").read_text(encoding="utf-8")
    steps = list(_STEP.finditer(page))
    assert len(steps) == page.count("```python") == 2, "a step is written in a way that this test does not read"
    for step in steps:
        assert not (copy / step["file"]).exists()
        (copy / step["file"]).write_text(step["code"], encoding="utf-8")
    (commands,) = re.findall(r"```sh\n(.*?)```", page, re.S)
    env = {**os.environ, "PYTHONPATH": str(copy / "src")}
    said = []
    for command in commands.splitlines():
        if "generate_docs" not in command:
            command = command.replace("python", sys.executable, 1)
            done = subprocess.run(command, shell=True, env=env, cwd=copy, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            said.append(done.stdout)
    assert re.search(r"\b[3-9] passed", said[0]), said[0]
    assert "inward: an error of 0.000, better than the better era of torch.clamp" in " ".join(said[1].split())
    assert (copy / "dimmer-report" / "dimmer.png").stat().st_size > 1000
