"""The commands of the Makefile, and habits of the files at the root."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pseudograd.torch_table.eras import SUPPORTED

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.program
@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize(
    "goal", ["test", *(pytest.param(goal, marks=pytest.mark.slow) for goal in ("test-programs", "test-all"))]
)
def test_pytest_understands_what_make_tells_it(goal: str) -> None:
    """With --markers it reads its arguments, and runs nothing. An option of ours is known only where no word stands between."""
    planned = subprocess.run(["make", "-n", goal], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    (line,) = (line for line in planned.stdout.splitlines() if " -m pytest " in line)
    options = shlex.split(line.partition(" -m pytest ")[2])
    command = [sys.executable, "-m", "pytest", *options, "--markers"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "pytest.mark.slow" in done.stdout


# --- habits -----------------------------------------------------------------------------------------------------------


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_workflow_runs_the_torch_versions_that_are_supported() -> None:
    (theirs,) = re.findall(r"^ +torch: \[(.*)\]$", _text(".github/workflows/ci.yml"), re.MULTILINE)
    assert re.findall(r"[\d.]+", theirs) == [*SUPPORTED]
    goals = re.findall(r"run: make ([\w-]+)", _text(".github/workflows/ci.yml"))
    assert goals == ["check", "test", "test-programs", "test-versions"]


def test_commits_are_checked_by_the_ruff_of_the_project() -> None:
    (pinned,) = re.findall(r"^ruff==(.*)$", _text("constraints.txt"), re.MULTILINE)
    assert f"ruff-pre-commit\n    rev: v{pinned} " in _text(".pre-commit-config.yaml")


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


def test_contributing_names_every_section_and_folders_that_are_there() -> None:
    text = _text("CONTRIBUTING.md")
    linked = set(re.findall(r"\]\(contributing/([^)]+)\)", text))
    sections = re.findall(r"^## (.*)$", _text("contributing/adding.md"), re.MULTILINE)
    assert {f"adding.md#{section.lower().replace(' ', '-')}" for section in sections} | {
        "releasing.md",
        "upstream.md",
    } == linked
    for name in re.findall(r"\| (?:a file|a row, ?|a row) in `([^`]+)`", text):
        folders = (ROOT / "src" / "pseudograd", ROOT / "src")
        assert any((folder / name).exists() for folder in folders), name


def test_the_changelog_sorts_what_changed() -> None:
    """As keepachangelog.com has it: releases, and in each the kinds of change."""
    unreleased, *releases = _text("CHANGELOG.md").split("\n## ")[1:]
    assert unreleased.startswith("Unreleased\n")
    for release in (unreleased, *releases):
        kinds = re.findall(r"^### (.*)$", release, re.MULTILINE)
        assert kinds == [
            kind for kind in ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security") if kind in kinds
        ]
        assert "\n- " not in release.partition("\n### ")[0], "an entry stands above the sections"
    assert all(re.match(r"\d+\.\d+\.\d+(rc\d+)? - \d{4}-\d\d-\d\d\n", release) for release in releases)


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
