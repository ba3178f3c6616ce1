"""Importing the package is cheap, and its parts import one another in one direction only, no file itself by way of others."""

import ast
import functools
import importlib
import importlib.machinery
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pseudograd
from pseudograd.import_hook import WhenImported

from ..choices import slow_but

ROOT = Path(pseudograd.__file__).parent
SRC = ROOT.parent
FILES = sorted(ROOT.rglob("*.py"))
NEIGHBOURS = sorted(path.parent.name for path in SRC.glob("pseudograd_*/__init__.py"))


def _name(path: Path) -> str:
    """The name of the module in a file of src."""
    return ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_name(path): path for path in sorted(SRC.rglob("*.py"))}
HEAVY = ("torch._dynamo", "torch._inductor", "matplotlib", "sklearn", "scipy", "jinja2", "pandas", "sympy")
HEAVY += ("lightning", "pytorch_lightning", "transformers", "accelerate", "pytest")
# From the top: a part may import only parts of a higher number. design.md section 8.
LEVELS = [
    {"__main__"},
    {"cli", "integrations"},
    {"doctor"},
    {"migrate"},
    {"comparison", "diagnosis"},
    {"rewrite", "nn", "optim"},
    {"policy", "familiar", "codebook"},
    {"look"},
    {"testing", "listen"},
    {"torch_table"},
    {"ops", "rules", "parse_rule"},
    {"engine"},
    {"kernels", "dynamo"},
    {"formula", "torch_table.eras"},
    {"rule"},
    {"user_function"},
    {"arguments", "torch_table.private"},
    {"geometry"},
    {"reference", "errors", "import_hook", "record", "notebook", "wording"},
    {"public_names"},
]


@pytest.mark.program
def test_pseudograd_and_its_contexts_import_nothing_heavy_that_torch_does_not() -> None:
    step = "torch.ones(2, requires_grad=True).clamp(0, 1).sum().backward()"
    diagnosis = f"with pseudograd.diagnose(sensitivity=True) as d:\n    {step}\nstr(d)\n"
    first = "with torch.device('meta'), pseudograd.pin_edge('closed'), pseudograd.diagnose(): pass\n"  # on it, no number can be read
    contexts = f"{first}{diagnosis}with pseudograd.override(clamp='inward'):\n    {step}\n"
    program = f"import sys, torch; {step}; before = set(sys.modules); import pseudograd\n{contexts}print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    extra = set(done.stdout.split())
    heavy = {name for name in extra if name.split(".")[0] in HEAVY or name.startswith(HEAVY)}
    assert heavy == set()
    assert "pseudograd" in extra
    assert extra & sys.stdlib_module_names == set()  # a program may have a file statistics.py or html.py of its own


def test_an_import_hook_that_waits_for_dynamo_finds_nothing_else() -> None:
    hook = WhenImported("torch._dynamo", print)
    assert hook.find_spec("torch._dynamo.config") is None
    assert hook.find_spec("math") is None


@pytest.mark.parametrize("spec", [None, importlib.machinery.ModuleSpec("torch._dynamo", None)], ids=["absent", "bare"])
def test_a_torch_without_dynamo_is_left_as_it_is(spec: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """importlib gets the answer of the other finders, and raises its own error for a missing module."""

    class Other:
        @staticmethod
        def find_spec(*arguments: object) -> object:
            return spec

    finder = WhenImported("torch._dynamo", print)
    monkeypatch.setattr(sys, "meta_path", [finder, Other])
    assert finder.find_spec("torch._dynamo") is spec
    assert sys.meta_path == [finder, Other]


_HEAD = """
import importlib, importlib.util, sys, threading
from importlib.machinery import PathFinder
import torch
"""
_COMPILES = """
f = torch.compile(torch.func.grad(lambda x: pg.clamp(x, -1, 1).sum()), backend="aot_eager", fullgraph=True)
assert f(torch.tensor([-2., 0., 2.])).tolist() == [0, 1, 1]
"""
_REGISTERED = """
assert engine.registration() == "registered with Dynamo"
assert not [hook for hook in sys.meta_path if type(hook).__name__ == "WhenImported"]
"""
_OURS = "import pseudograd as pg\nfrom pseudograd import doctor, engine\n"
_LATER = f"import torch._dynamo\n{_COMPILES}{_REGISTERED}"
_WAITS = 'assert engine.registration() == "waits for the first import of torch._dynamo"\n'
DYNAMO_LEARNS_OF_US = {
    "an import that fails": f"""{_OURS}
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "torch._dynamo.config": raise ImportError("not now")
assert type(sys.meta_path[0]).__name__ == "WhenImported"
sys.meta_path.insert(0, Broken())
try: import torch._dynamo
except ImportError: del sys.meta_path[0]
else: raise AssertionError
{_WAITS}
for name in [name for name in sys.modules if name.startswith("torch._dynamo")]: del sys.modules[name]
{_LATER}""",
    "two threads": f"""{_OURS}
threads = [threading.Thread(target=importlib.import_module, args=("torch._dynamo",)) for _ in range(2)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
{_LATER}""",
    "our own reload": f"{_OURS}from pseudograd import dynamo\nimportlib.reload(dynamo); importlib.reload(engine)\n{_LATER}",
    "another finder answered": f"""{_OURS}
sys.meta_path.insert(0, PathFinder)
import torch._dynamo
assert "torch.compile over torch.func: NOT registered with Dynamo" in doctor.text(doctor.examine())
{_COMPILES}""",
    "the hook is gone": f"""{_OURS}{_WAITS}
sys.meta_path.pop(0)
assert doctor.examine()["compile_over_functorch"] == "NOT registered: the import hook is gone"
""",
}


@pytest.mark.program
@pytest.mark.parametrize("name", slow_but(["an import that fails"], DYNAMO_LEARNS_OF_US))
def test_dynamo_learns_of_us(name: str) -> None:
    program = _HEAD + DYNAMO_LEARNS_OF_US[name]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@functools.cache
def nodes_of_file(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def _imports(path: Path) -> Iterator[str]:
    """Absolute names of everything a file imports, in functions and for type checkers too; a name from a package may be a module of it."""
    package = list(path.relative_to(SRC).parts[:-1])
    for node in nodes_of_file(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            within = (f"{module}.{alias.name}" for alias in node.names)
            yield from (name if name in MODULES else module for name in within)


def _part(name: str) -> str | None:
    """The part of `pseudograd` that a module belongs to; None for modules of others and the package itself."""
    pieces = name.split(".")
    if pieces[0] != "pseudograd" or len(pieces) == 1:
        return None
    inner = ".".join(pieces[1:3])
    return inner if any(inner in parts for parts in LEVELS) else pieces[1]


def _level(part: str) -> int:
    levels = [level for level, parts in enumerate(LEVELS) if part in parts]
    assert levels, f"{part} has no place in the order of design.md section 8"
    return levels[0]


def test_imports_run_one_way() -> None:
    assert [fault for path in FILES for fault in _against_the_order(path)] == []


def _against_the_order(path: Path) -> Iterator[str]:
    own = _part(_name(path))
    if own is None:  # the list of public names
        return
    for name in _imports(path):
        if name == "pseudograd" and _level(own) > _level("doctor"):
            yield f"{path}: the list of public names stands above all but what uses it"
        if name.startswith("pseudograd_") and name.split(".")[0] != "pseudograd_notices":
            yield f"{path}: the library imports {name}, a neighbour"
        other = _part(name)
        if other is not None and other != own and other != "__version__" and _level(own) >= _level(other):
            yield f"{path}: {own} imports {other}"


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_a_neighbour_imports_what_its_interface_lists(neighbour: str) -> None:
    """`USES` in the __init__ of a neighbour lists exactly what it imports from other packages."""
    uses = importlib.import_module(neighbour).USES
    imported = {
        name
        for path in (SRC / neighbour).rglob("*.py")
        for name in _imports(path)
        if name.split(".")[0].startswith("pseudograd") and name.split(".")[0] != neighbour
    }
    assert sorted(imported) == sorted(uses)


def test_no_file_imports_itself_by_way_of_others() -> None:
    """What stands in a circle can neither be read nor be changed apart. The list of public names, at the top, is asked for the version."""
    modules = {name: path for name, path in MODULES.items() if name != "pseudograd"}
    below = {
        name: {other for other in _imports(path) if other in modules and other != name}
        for name, path in modules.items()
    }
    while ends := [name for name, names in below.items() if not names]:
        below = {name: names.difference(ends) for name, names in below.items() if name not in ends}
    while starts := set(below).difference(*below.values()):
        below = {name: names for name, names in below.items() if name not in starts}
    assert not below, "each imports another one of these: " + ", ".join(below)


def test_only_the_engine_subclasses_function() -> None:
    assert {path.name for path in FILES if _subclasses_function(path)} == {"engine.py"}


def _subclasses_function(path: Path) -> bool:
    bases = [base for node in nodes_of_file(path) if isinstance(node, ast.ClassDef) for base in node.bases]
    return any(ast.unparse(base).split(".")[-1] == "Function" for base in bases)


def test_the_reference_imports_neither_torch_nor_us() -> None:
    for path in (ROOT / "reference").glob("*.py"):
        names = {name.split(".")[0] for name in _imports(path) if not name.startswith("pseudograd.reference")}
        assert names <= {"math", "struct", "collections", "__future__", "typing"}, path
