"""Importing the package is cheap, and its parts import one another in one direction only."""

import ast
import importlib.machinery
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pseudograd
from pseudograd import engine

ROOT = Path(pseudograd.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
HEAVY = ("torch._dynamo", "torch._inductor", "matplotlib", "sklearn", "scipy", "rich", "jinja2", "pandas", "sympy")
# From the top: a part may import only parts of a higher number. design.md section 8.
LEVELS = [
    {"__main__"},
    {"cli"},
    {"report", "doctor"},
    {"tasks", "diagnose", "rewrite", "nn", "optim"},
    {"analysis", "testing"},
    {"ops", "rules"},
    {"engine"},
    {"kernels", "layouts"},
    {"rule", "checks", "torch_facts"},
    {"reference", "errors"},
]
ALLOWED_TOO = {("kernels", "checks"), ("rules", "rule")}


def _modules_after(statement: str) -> set[str]:
    program = f"import sys; {statement}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_pseudograd_imports_nothing_heavy_that_torch_does_not() -> None:
    extra = _modules_after("import torch, pseudograd") - _modules_after("import torch")
    heavy = {name for name in extra if name.split(".")[0] in HEAVY or name.startswith(HEAVY)}
    assert heavy == set()
    assert "pseudograd" in extra


@pytest.mark.parametrize(
    "order",
    ["import torch._dynamo, pseudograd as pg", "import pseudograd as pg, torch._dynamo"],
    ids=["before", "after"],
)
def test_dynamo_learns_of_us_whoever_comes_first(order: str) -> None:
    program = (
        f"import torch; {order}\n"
        "f = torch.compile(torch.func.grad(lambda x: pg.clamp(x, -1, 1).sum()), backend='aot_eager', fullgraph=True)\n"
        "print(f(torch.tensor([-2., 0., 2.])).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[0.0, 1.0, 1.0]", done.stderr


def test_an_import_hook_that_waits_for_dynamo_finds_nothing_else() -> None:
    assert engine._WhenDynamoArrives().find_spec("torch._dynamo.config") is None
    assert engine._WhenDynamoArrives().find_spec("math") is None


def test_the_import_hook_comes_before_whoever_finds_torch() -> None:
    program = "import sys, pseudograd; print(type(sys.meta_path[0]).__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "_WhenDynamoArrives"


@pytest.mark.parametrize("spec", [None, importlib.machinery.ModuleSpec("torch._dynamo", None)], ids=["absent", "bare"])
def test_a_torch_without_dynamo_is_left_as_it_is(spec: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """What importlib found goes back to it, and its own error tells what is missing."""
    finder = engine._WhenDynamoArrives()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert finder.find_spec("torch._dynamo") is spec
    assert finder not in sys.meta_path


def _imports(path: Path) -> Iterator[str]:
    """Absolute names of everything a file imports, in functions too; not what only type checkers see."""
    package = ["pseudograd", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            if node.module:
                yield ".".join([*base, node.module])
            else:
                yield from (".".join([*base, alias.name]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _part(name: str) -> str | None:
    """The part of the package that a module belongs to; None for modules of others and the package itself."""
    pieces = name.split(".")
    return pieces[1] if pieces[0] == "pseudograd" and len(pieces) > 1 else None


def _level(part: str) -> int:
    found = [level for level, parts in enumerate(LEVELS) if part in parts]
    assert found, f"{part} has no place in the order of design.md section 8"
    return found[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_run_one_way(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if own == "__init__":  # the list of public names
        return
    for name in _imports(path):
        other = _part(name)
        if other is not None and other != own and (own, other) not in ALLOWED_TOO and other != "__version__":
            assert _level(own) < _level(other), f"{own} imports {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_only_the_engine_subclasses_function(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base) for base in node.bases}
            if any(base.split(".")[-1] == "Function" for base in bases):
                assert path.name == "engine.py"


def test_the_reference_imports_neither_torch_nor_us() -> None:
    for path in (ROOT / "reference").glob("*.py"):
        names = {name.split(".")[0] for name in _imports(path) if name != "pseudograd.reference.bounds"}
        assert names <= {"math", "struct", "collections", "__future__", "typing"}, path


def test_rules_are_pure() -> None:
    """No clamp, min, max, item or in-place call in the formulas: torch's own edges changed, and double backward needs the rest."""
    for path in (ROOT / "ops").glob("*rules.py"):
        called = {
            node.func.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        }
        assert not called & {
            "clamp",
            "clip",
            "minimum",
            "maximum",
            "min",
            "max",
            "relu",
            "item",
            "tolist",
            "backward",
        }, path
        assert not [name for name in called if name.endswith("_") and not name.startswith("_")], path
