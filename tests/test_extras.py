"""`pip install pseudograd` needs torch alone, and what is missing is named with the extra that brings it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pseudograd

SOURCE = Path(pseudograd.__file__).parents[1]
ROOT = SOURCE.parent
# An environment in which nothing can be imported that torch itself does not ask for. pip and numpy are nowhere asked for.
HIDING = f"""\
import importlib.abc, importlib.machinery, sys
sys.path.insert(0, {str(SOURCE)!r})
HIDDEN = {{"matplotlib", "sklearn", "scipy", "jinja2", "pandas", "lightning",
    "pytorch_lightning", "transformers", "accelerate", "pytest", "numpy", "hypothesis", "IPython", "PIL"}}

class Hiding(importlib.abc.MetaPathFinder):
    # in the place of every finder that was there

    finders = list(sys.meta_path)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            return None
        return next((spec for finder in self.finders if (spec := finder.find_spec(name, path, target)) is not None), None)

    def find_distributions(self, *args, **how):
        return importlib.machinery.PathFinder.find_distributions(*args, **how)

sys.meta_path[:] = [Hiding()]
import warnings; warnings.simplefilter("ignore")  # of torch, about numpy
import torch, pseudograd as pg

def run(clamp, seed):
    x = torch.tensor([2.0 + seed], requires_grad=True)
    clamp(x, 0, 1).sum().backward()
    return seed + float(x.grad.sum())

def print_error(f, *args, **how):
    try:
        f(*args, **how)
    except ImportError as error:
        print(error)
    else:
        print("no error")
"""
WORKS = """
x = torch.linspace(-2, 2, 5, requires_grad=True)
pg.clamp(x, -1, 1).sum().backward()
with pg.diagnose() as d, pg.override(clamp="identity"):
    x.clamp(-1, 1).sum().backward()
print(len(str(d)) > 0, len(d.metrics()) > 0, len(d._repr_html_()) > 0)
print("relu" in str(pg.audit(torch.relu, -1, 1)), "<svg" in pg.audit(torch.relu, -1, 1)._repr_html_())
found = pg.compare(run, rules=["inward"], seeds=2)
print(len(str(found)) > 0)
print(len(str(pg.tune(run, rules=["inward", "leaky", "identity"], budget=20))) > 0)
from pseudograd.integrations.pytest import diagnosed
with diagnosed(): x.sin().sum().backward()
from pseudograd.cli import main
for words in ("doctor", "rules", "rules clamp", "kinks", "explain PG203", *COMMANDS):
    print(main(words.split()) == 0, file=sys.stderr)
"""
TRAINING = """
import torch
def f(x):
    return torch.clamp(x, -1.0, 1.0)
def train(clamp, seed):
    x = torch.full((2,), 2.0, requires_grad=True)
    clamp(x, -1.0, 1.0).sum().backward()
    return float(x.grad.sum())
if __name__ == "__main__":
    f(torch.full((2,), 2.0, requires_grad=True) * 1).sum().backward()
"""
COMMANDS = (
    "run --override clamp=inward training.py",
    "diagnose training.py",
    "audit training:f --low -2 --high 2",
    "tune --task training:train --rules zero,inward --budget 10",
)
TELLS = """
print_error(pg.plot, "inward")
print_error(pg.audit(torch.relu, -1, 1).plot)
print_error(pg.compare(run, rules=["inward"], seeds=2).to_frame)
print_error(pg.compare(run, rules=["inward"], seeds=2).plot)
import importlib
print_error(importlib.import_module, "pseudograd.integrations.lightning")
print_error(importlib.import_module, "pseudograd.integrations.transformers")
from pseudograd.cli import main
print(main(["compare"]))
"""


def _run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # A file, because what is compared needs a source.
    (folder / "program.py").write_text(f"{HIDING}COMMANDS = {COMMANDS!r}\n{program}")
    (folder / "training.py").write_text(TRAINING)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "program.py"], capture_output=True, text=True, check=False, cwd=folder, env=environment
    )


@pytest.mark.program
def test_everything_in_code_works_with_torch_alone(tmp_path: Path) -> None:
    done = _run(WORKS, tmp_path)
    assert done.returncode == 0, done.stderr
    # The one False: without matplotlib there is no picture.
    assert "False" not in re.sub(r"True False\n", "", done.stdout, count=1), done.stdout
    assert done.stderr.splitlines()[-1] == "True"
    assert done.stderr.splitlines().count("True") == 5 + len(COMMANDS)


@pytest.mark.program
def test_what_is_missing_is_named_with_its_extra(tmp_path: Path) -> None:
    done = _run(TELLS, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:-1] == [
        f'{where} must be installed, got none. Run pip install "pseudograd[{extra}]".'
        for where, extra in (
            ("plot: matplotlib", "report"),
            ("audit: matplotlib", "report"),
            ("to_frame: pandas", "pandas"),
            ("plot: matplotlib", "report"),
            ("pseudograd.integrations.lightning: lightning or pytorch_lightning", "lightning"),
            ("pseudograd.integrations.transformers: transformers", "transformers"),
        )
    ]
    assert lines[-1] == "2"
    assert 'must be installed, got none. Run pip install "pseudograd[report]".' in done.stderr


def _project() -> Any:
    file = ROOT / "pyproject.toml"
    if not file.is_file():
        pytest.skip("no checkout")
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    return tomllib.loads(file.read_text())["project"]


def test_every_extra_that_a_text_names_is_there() -> None:
    project = _project()
    assert [name.partition(">")[0] for name in project["dependencies"]] == ["torch", "typing-extensions"]
    named = {
        extra
        for folder in ("src", "docs", "examples")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".md", ".ipynb")
        for group in re.findall(r"pseudograd\[([\w,]+)\]", file.read_text(encoding="utf-8"))
        for extra in group.split(",")
    }
    assert named - {"extra"} <= set(project["optional-dependencies"])
    for extra in project["optional-dependencies"]:
        assert extra in ("dev", "docs") or extra in (ROOT / "docs" / "install.md").read_text(), extra


@pytest.mark.program
@pytest.mark.parametrize(
    ("words", "status", "end"),
    [
        ("rules", 2, f"pseudograd: rules: {sys.executable} must have torch, got none. Install it"),
        ("rules --help", 0, ""),
        ("--version", 0, ""),
        ("explain PG101", 0, ""),
    ],
)
def test_without_torch_the_module_is_the_command(tmp_path: Path, words: str, status: int, end: str) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('none', name='torch')")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(SOURCE)])}
    command = [sys.executable, "-m", "pseudograd", *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr.strip()) == (status, end)
    assert bool(done.stdout) == (status == 0)
