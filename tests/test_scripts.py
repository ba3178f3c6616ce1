"""Habits of the files at the root."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pseudograd.torch_table.eras import SUPPORTED

ROOT = Path(__file__).resolve().parents[1]


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_workflow_runs_the_torch_versions_that_are_supported() -> None:
    (theirs,) = re.findall(r"^ +torch: \[(.*)\]$", _text(".github/workflows/ci.yml"), re.MULTILINE)
    assert re.findall(r"[\d.]+", theirs) == [*SUPPORTED]
    goals = re.findall(r"run: make ([\w-]+)", _text(".github/workflows/ci.yml"))
    assert goals == ["check", "test", "test-programs", "test-versions"]


@pytest.mark.parametrize(
    ("tag", "source", "answer"),
    [
        ("v1.0", "https://pseudograd.invalid", "the tag is v1.0, and pyproject.toml has the version 1.1."),
        ("v1.1", "https://pseudograd.invalid", "these addresses are a stand-in"),
        ("v1.1", "https://example.org", "CHANGELOG.md has no section 1.1."),
    ],
)
def test_a_release_is_refused(tmp_path: Path, tag: str, source: str, answer: str) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "release.sh", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").write_text(f'version = "1.1"\nSource = "{source}"\n', encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text("## 1.0 - 2026-01-01\n", encoding="utf-8")
    done = subprocess.run(
        ["bash", tmp_path / "scripts" / "release.sh", tag], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert answer in done.stderr


def test_no_part_on_a_device_stops_another_or_the_budget(tmp_path: Path) -> None:
    """With a python that fails, and once with one that hangs."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "on_a_device.sh", tmp_path / "scripts")
    python = tmp_path / "python"
    for answer, budget, expected in (("exit 3", "300", "3"), ("exec sleep 60", "5", "no time")):
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "BUDGET": budget}
        python.write_text(f"#!/bin/sh\n{answer}\n")
        python.chmod(0o755)
        command = ["sh", "scripts/on_a_device.sh", "results"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        ends = dict(line[3:].split(": ") for line in done.stdout.splitlines() if line.startswith("== "))
        assert [*ends] == ["build", "doctor", "values", "settings", "memcheck", "speed", "steps"]
        assert ends["steps"] == ends["doctor"] == expected, done


def test_the_version_is_that_of_pyproject_wherever_another_tool_needs_it() -> None:
    """Ours read it there. conda's recipe, the citation and the changelog are read without it: the same, and the newest release."""
    (version,) = re.findall(r'^version = "(.*)"$', _text("pyproject.toml"), re.MULTILINE)
    assert re.findall(r'^  version: "(.*)"$', _text("conda/recipe.yaml"), re.MULTILINE) == [version]
    assert re.findall(r"^version: (.*)$", _text("CITATION.cff"), re.MULTILINE) == [version]
    assert re.findall(r"^## (\S+) - ", _text("CHANGELOG.md"), re.MULTILINE)[0] == version
    tracked = (ROOT / "src", ROOT / "docs", ROOT / "scripts", ROOT / ".github", ROOT / "README.md", ROOT / "llms.txt")
    files = [file for place in tracked for file in ([place] if place.is_file() else place.rglob("*"))]
    texts = {
        file: file.read_text(encoding="utf-8") for file in files if file.suffix in (".py", ".md", ".yml", ".sh", ".txt")
    }
    assert [file for file, text in texts.items() if re.search(rf"(?<![\w.]){re.escape(version)}(?![\w.])", text)] == []
