"""The page for whoever adds something, followed to the letter on a copy of the tree: each step, and each command that it shows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pseudograd as pg

ROOT = Path(__file__).resolve().parents[1]
_TITLE, *_PARTS = (ROOT / "contributing" / "adding.md").read_text(encoding="utf-8").split("\n## ")
SECTIONS = {part.partition("\n")[0]: part for part in _PARTS}
_STEP = re.compile(
    r"^(?:In|[^`\n]+, in) `(?P<file>[^`]+)`, (a new file|before `(?P<before>[^\n]*)`):\n\n"
    r"(?:<!--[^\n]*\n)?```(?:python|c|md)\n(?P<code>.*?)```\n",
    re.S | re.M,
)
_NOT_COPIED = (".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "build", "pseudograd-report*")
# A program that has nothing to do with us: once, following the page of an op broke it.
_COMPILES = (
    "import torch, pseudograd; torch.compile(lambda x: x.sin() * 2, backend='aot_eager', fullgraph=True)(torch.ones(3))"
)


def _copied(folder: Path) -> Path:
    """The tree as somebody who contributes has it."""
    return Path(shutil.copytree(ROOT, folder / "tree", ignore=shutil.ignore_patterns(*_NOT_COPIED)))


def _steps(section: str) -> tuple[list[re.Match[str]], dict[str, str], list[str]]:
    """The steps of a section, the files that they write or change with their new text, and the commands that it shows."""
    text, files = SECTIONS[section], dict[str, str]()
    steps = list(_STEP.finditer(text))
    assert len(steps) == len(re.findall("```(?:python|c|md)\n", text)), (
        "a step is written in a way that this test does not read"
    )
    for step in steps:
        name, code = step["file"], step["code"]
        if step["before"] is None:
            assert name not in files
            assert not (ROOT / name).exists()
            files[name] = code
            continue
        before, old = step["before"].replace("\\n", "\n"), files.get(name) or (ROOT / name).read_text(encoding="utf-8")
        assert old.count(before) == 1, f"{section}: {before!r} stands {old.count(before)} times in {name}"
        files[name] = old.replace(before, code + before)
    (commands,) = re.findall(r"```sh\n(.*?)```", text, re.S)
    return steps, files, commands.splitlines()


def _follow(section: str, copy: Path) -> list[str]:
    """Carry out the steps of the section in the copy; returns the commands that it shows."""
    _, files, commands = _steps(section)
    for name, text in files.items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text(text, encoding="utf-8")
    return commands


def _run(command: str, copy: Path) -> subprocess.CompletedProcess[str]:
    """As somebody in the root of the copy, whose python has the library from there."""
    env = {**os.environ, "PYTHONPATH": str(copy / "src")}
    command = re.sub(r"^python\b", lambda _: sys.executable, command)
    done = subprocess.run(command, shell=True, env=env, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done


# The file of the library that each section has somebody write, or add to.
IN_THE_LIBRARY = {
    "A rule": "pseudograd/ops/bound_rules.py",
    "An op": "pseudograd/ops/fractions.py",
    "A function of torch": "pseudograd/torch_table/rows/rounding.py",
    "A task": "pseudograd_tasks/dimmer.py",
    "A finding": "pseudograd/diagnosis/judge/findings/large.py",
    "A command": "pseudograd/cli/ops.py",
    "A kernel": "pseudograd/kernels/masks.py",
}


@pytest.mark.parametrize("section", SECTIONS)
def test_each_step_fits_the_tree(section: str) -> None:
    """One file of code, of a screen at most, beside tests, references and examples. Each command runs something that is there."""
    steps, changed, commands = _steps(section)
    for command in commands:
        for path in re.findall(r"\b(?:tests|scripts|docs)/[\w/.]+", command):
            assert path in changed or (ROOT / path).exists(), command
    files = {step["file"] for step in steps if re.match(r"src/(?!.*/reference/).*(?<!\.md)$", step["file"])}
    assert files == {f"src/{IN_THE_LIBRARY[section]}"}
    assert all(len(step["code"].splitlines()) <= 70 for step in steps)
    for name, text in changed.items():
        if name.endswith(".py"):
            compile(text, name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS)
def test_the_section_is_true(section: str, tmp_path: Path) -> None:
    copy = _copied(tmp_path)
    for command in _follow(section, copy):
        _run(command, copy)
    _run(f'python -c "{_COMPILES}"', copy)


@pytest.mark.usefixtures("table_as_it_was")
def test_a_rule_more_is_no_line_more_in_the_readme(script: Any) -> None:
    docs = script("generate_docs")
    before = docs._rule_table()

    @pg.register_rule("clamp", formula="grad / 2", source="a test", is_linear=True)
    def halved(grad: Any, x: Any, y: Any, min: Any, max: Any) -> Any:
        return grad / 2

    after = docs._rule_table()
    assert after != before
    assert "`halved`" in after
    assert len(after.splitlines()) == len(before.splitlines())
