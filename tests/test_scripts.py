"""`scripts/test_versions.sh`: one table, whatever happened to a version. Environments are stand-ins that print what pytest would.

And the commands of the Makefile.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pseudograd.torch_table.eras import SUPPORTED

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "test_versions.sh"

pytestmark = pytest.mark.skipif(os.name == "nt" or shutil.which("bash") is None, reason="needs bash")


def _run(cache: Path, *versions: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PSEUDOGRAD_CACHE": str(cache), "PYTHON": "no-such-python"}
    return subprocess.run([str(SCRIPT), *versions], env=env, capture_output=True, text=True, timeout=60, check=False)


def _stand_in(cache: Path, version: str, output: str, status: int) -> None:
    """An environment that environment.sh takes for complete if it finds it, its python a script."""
    python = cache / f"torch-{version}" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\nprintf '{output}'\nexit {status}\n")
    python.chmod(0o755)


def test_one_table_with_every_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    (tree / "scripts").mkdir(parents=True)
    shutil.copy(SCRIPT, tree / "scripts")
    installer = tree / "scripts" / "environment.sh"
    installer.write_text('#!/bin/sh\n[ -x "$1/bin/python" ] || { echo "pseudograd: cannot install" >&2; exit 1; }\n')
    installer.chmod(0o755)
    monkeypatch.setattr(f"{__name__}.SCRIPT", tree / "scripts" / SCRIPT.name)
    cache = tmp_path / "cache"
    _stand_in(cache, "1.0", "..\\n7 passed, 2 skipped in 3.21s\\n", 0)
    _stand_in(cache, "1.1", "..\\n1 failed, 6 passed in 3.21s\\n", 1)
    _stand_in(cache, "1.2", "Segmentation fault\\n", 139)
    done = _run(cache, "1.0", "1.1", "1.2", "1.3")
    assert done.returncode == 1
    table = done.stdout[done.stdout.index("\ntorch ") :].splitlines()[1:]
    assert [line.split(maxsplit=2)[:2] for line in table[:4]] == [
        ["torch", "result"],
        ["1.0", "passed"],
        ["1.1", "FAILED"],
        ["1.2", "FAILED"],
    ]
    assert table[1].endswith("7 passed, 2 skipped in 3.21s")
    assert table[2].endswith(f"1 failed, 6 passed in 3.21s; {cache}/torch-1.1.log")
    assert table[3].endswith(f"no summary; {cache}/torch-1.2.log")
    assert table[4].split(maxsplit=3) == ["1.3", "not", "installed", f"{cache}/torch-1.3.log"]
    assert "cannot install" in (cache / "torch-1.3.log").read_text()
    assert _run(cache, "1.0").returncode == 0


PIP = """#!/bin/sh
[ "$1 $2" = "-m venv" ] && mkdir -p "$3/bin" && cp "$0" "$3/bin/python"
[ "$1 $2" = "-m pip" ] || exit 0
case "$*" in *--editable*) [ -z "$BROKEN" ] || { echo "ERROR: No space left" >&2; exit 1; } ;; *) exit 0 ;; esac
echo "Collecting scipy>=1.10"
echo "  Downloading https://index/files/scipy-1.15.2-cp311-cp311-manylinux.whl.metadata (61 kB)"
echo "  Downloading https://index/files/scipy-1.15.2-cp311-cp311-manylinux_2_17_x86_64.whl (37.6 MB)"
echo "Downloading rich-13.9.tar.gz (242 kB)"
echo "  Building editable for pseudograd (pyproject.toml): started"
echo "Installing collected packages: scipy, rich, pseudograd"
"""


def test_an_installation_says_what_it_waits_for_and_a_complete_one_nothing(tmp_path: Path) -> None:
    """With a python that only pretends: the lines are those of pip."""
    for name in ("constraints.txt", "pyproject.toml", "setup.py", "scripts/environment.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "src/pseudograd/kernels/native", tmp_path / "src/pseudograd/kernels/native")
    python = tmp_path / "python"
    python.write_text(PIP)
    python.chmod(0o755)

    def environment(**more: str) -> subprocess.CompletedProcess[str]:
        given = {**os.environ, "PYTHON": str(python), "TORCH": "", **more}
        return subprocess.run(
            ["bash", "scripts/environment.sh", "made"],
            cwd=tmp_path,
            env=given,
            capture_output=True,
            text=True,
            check=False,
        )

    broken = environment(BROKEN="yes")
    assert broken.returncode == 1
    assert broken.stderr.endswith("ERROR: No space left\n")
    done = environment()
    assert (done.returncode, done.stdout) == (0, "")
    assert [line.removeprefix("pseudograd: ") for line in done.stderr.splitlines()[-4:]] == [
        "  fetching scipy 1.15.2 (37.6 MB)",
        "  fetching rich 13.9 (242 kB)",
        "  compiling the kernels",
        "  unpacking 3 packages",
    ]
    again = environment()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_without_versions_it_says_how(tmp_path: Path) -> None:
    done = _run(tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_an_unusable_python_is_reported_by_the_real_installer(tmp_path: Path) -> None:
    done = _run(tmp_path, "2.13.0")
    assert done.returncode == 1
    assert "no-such-python was not found" in done.stderr
    assert "2.13.0     not installed" in done.stdout


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


@pytest.mark.slow  # as the page is
def test_the_page_of_the_matrix_is_written_by_a_parallel_run(tmp_path: Path) -> None:
    """Whose first process collects nothing, and so reads no conftest.py but that of tests."""
    page = tmp_path / "matrix.md"
    another = "tests/test_scripts.py::test_without_versions_it_says_how"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", f"--matrix={page}", another]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert "0 cells over 0 pairs" in page.read_text()


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


def test_contributing_names_every_page_and_folders_that_are_there() -> None:
    text = _text("CONTRIBUTING.md")
    linked = set(re.findall(r"\]\((docs/[^)]+)\)", text))
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("adding_a*.md")} <= linked
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
