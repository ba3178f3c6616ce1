"""The public names, the table and the docstrings agree."""

import ast
import importlib
import importlib.metadata
import inspect
import io
import pydoc
import re
import runpy
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import pseudograd as pg
from pseudograd import ops, rules
from pseudograd.public_names import public_path
from pseudograd.rule import OPS, RuleObject

from .choices import folded

FUNCTIONS = {name: getattr(pg, name) for name in pg.__all__ if inspect.isfunction(getattr(pg, name))}
FUNCTIONS["optim.project"] = pg.optim.project
FUNCTIONS |= {
    f"{module.__name__.rpartition('.')[2]}.{name}": getattr(module, name)
    for module in (pg.policy, pg.codebook, pg.familiar)
    for name in module.__all__
    if inspect.isfunction(getattr(module, name))
}
PARTS = ("Forward:", "Backward:", "Args:", "Returns:", "Raises:", "Example:", "Source:")


def test_all_is_what_the_package_shows() -> None:
    names: dict[str, object] = {}
    exec("from pseudograd import *", names)
    assert names.keys() - {"__builtins__"} == set(pg.__all__)
    assert len(set(pg.__all__)) == len(pg.__all__)
    assert None not in names.values()
    assert len(set(pg.__all__) - {"__version__"}) <= 40
    for name in set(ops.__all__) & set(pg.__all__):
        assert getattr(ops, name) is getattr(pg, name)


def test_version_stands_once() -> None:
    assert pg.__version__ == importlib.metadata.version("pseudograd")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pg.nothing


def test_every_op_of_the_table_is_public_under_its_name() -> None:
    assert set(OPS) <= set(ops.__all__)
    for name, op in OPS.items():
        assert op.name == name
        assert attrgetter(public_path(name))(pg) is getattr(ops, name)
        assert op.default_rule in op.rules
        assert op.default_edge in (op.edges or (None,))
        defaults = {key: p.default for key, p in inspect.signature(getattr(ops, name)).parameters.items()}
        assert defaults.get("rule", op.default_rule) == op.default_rule
        assert ("rule" in defaults) == (len(op.rules) > 1)
        assert defaults.get("edge") == op.default_edge
        assert ("edge" in defaults) == bool(op.edges)
        assert (
            ("maximize" in defaults)
            == op.takes_maximize
            == any(len(op.rules) > 1 and not rule.is_linear for rule in op.rules.values())
        )


def test_the_list_of_all_ops_is_what_their_files_say(script: Any, tmp_path: Path) -> None:
    lister = script("list_ops")
    assert lister.text() == lister.LIST.read_text(encoding="utf-8")
    assert lister.stubs() == lister.STUBS.read_text(encoding="utf-8")
    assert lister.rules() == lister.RULES.read_text(encoding="utf-8")
    (tmp_path / "fractions.py").write_text('__all__ = ["frac", "Whole"]\n')
    (tmp_path / "samples.py").write_text("values = 1\n")
    written = lister.text(tmp_path)
    assert "\nfrom .fractions import Whole, frac\n\n" in written
    assert '\n__all__ = ["Whole", "frac"]\n' in written
    assert "samples" not in written


def test_every_row_is_complete() -> None:
    for op in OPS.values():
        for name, rule in op.rules.items():
            assert rule.name == name
            assert rule.formula
            assert rule.source
            assert not set(rule.translates.split()) & set(op.rules), f"{name}: a translation that is a rule itself"
            assert set(rule.requires) <= set(op.inputs)


def test_every_rule_has_an_object() -> None:
    names = {name for op in OPS.values() for name in op.rules}
    assert set(dir(rules)) >= names
    for name in names:
        rule = rules.custom(torch.cos) if name == "custom" else getattr(rules, name)()
        assert rule.name == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = rules.nothing
    with pytest.raises(AttributeError, match="_private"):
        _ = rules._private


def test_a_rule_object_prints_as_it_is_written_and_compares_by_value() -> None:
    assert repr(rules.leaky(0.5)) == "leaky(slope=0.5)"
    assert repr(rules.inward()) == "inward()"
    assert rules.elastic(width=2) == rules.elastic(2.0) == RuleObject("elastic", (("width", 2.0),))
    assert rules.leaky() == rules.leaky(OPS["clamp"].rules["leaky"].parameters["slope"])
    assert rules.elastic() == rules.elastic(OPS["clamp"].rules["elastic"].parameters["width"])


def test_any_rule_takes_its_parameters_by_position_and_by_name() -> None:
    """`fourier` is no function of the module: so are rules that somebody registered."""
    assert rules.fourier(0.1) == rules.fourier(amplitude=0.1) == RuleObject("fourier", (("amplitude", 0.1),))
    with pytest.raises(TypeError, match=r"fourier: parameters must be amplitude, got \(0.1, 2\)"):
        rules.fourier(0.1, 2)
    with pytest.raises(TypeError, match=r"fourier: amplitude must be given once, got 0\.2"):
        rules.fourier(0.1, amplitude=0.2)


@folded
@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_has_its_seven_parts_in_order(name: str) -> None:
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    assert [line.split(" ")[0] for line in text.splitlines() if line.startswith(PARTS)] == list(PARTS)
    summary = text.splitlines()[0]
    assert summary.endswith(".")
    assert text.splitlines()[1] == ""


@folded
@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_names_every_argument_and_everything_is_annotated(name: str) -> None:
    function = FUNCTIONS[name]
    text = inspect.getdoc(function) or ""
    arguments = text[text.index("Args:") : text.index("Returns:")]
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty
        assert re.search(rf"\b{parameter.name}\b", arguments), parameter.name
    assert inspect.signature(function).return_annotation is not inspect.Signature.empty


@folded
@pytest.mark.parametrize("name", FUNCTIONS)
def test_options_are_keyword_only(name: str) -> None:
    options = {"rule", "edge", "maximize", "loss", "ax", "backward"}
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    for parameter in parameters.values():
        if parameter.name in options and len(parameters) > 1 and name != "pin_edge":
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY


HERE = Path(__file__).parent
PUBLIC: list[tuple[ModuleType, set[str]]] = [
    (pg, set(pg.__all__)),
    (pg.nn, set(pg.nn.__all__)),
    (pg.optim, {"project"}),
    *((module, set(module.__all__)) for module in (pg.policy, pg.codebook, pg.familiar)),
    (rules, {name for op in OPS.values() for name in op.rules}),
]


@pytest.mark.parametrize(("module", "names"), PUBLIC, ids=lambda value: getattr(value, "__name__", ""))
def test_dir_lists_the_public_names_and_nothing_else(module: ModuleType, names: set[str]) -> None:
    assert {name for name in dir(module) if not name.startswith("__")} == names - {"__version__"}
    assert ("__version__" in dir(module)) == (module is pg)
    text = io.StringIO()
    pydoc.Helper(output=text).help(module)
    assert all(name in text.getvalue() for name in names - {"custom"})
    assert dict(inspect.getmembers(module)).keys() >= names - {"custom"}


MODULES = ["look.plot", "look.gradient", "rewrite.convert", "rewrite.override", "rewrite.pin_edge", "testing"]


@pytest.mark.program
@pytest.mark.parametrize("order", [MODULES, pytest.param(MODULES[::-1], marks=pytest.mark.slow, id="backwards")])
def test_dir_lists_what_nobody_has_used_yet_and_submodules_hide_nothing(order: list[str]) -> None:
    program = [
        "import inspect, sys, pseudograd as pg",
        "assert {'override', 'pin_edge', 'convert', 'nn', '__version__'} <= set(dir(pg)), dir(pg)",
        "assert not {'pseudograd.rewrite', 'pseudograd.nn'} & set(sys.modules)",
        *[f"import pseudograd.{name}" for name in order],
        "functions = pg.plot, pg.gradient, pg.convert, pg.override, pg.pin_edge, pg.testing.check_rule",
        "assert all(inspect.isfunction(function) for function in functions), functions",
        "assert not {'engine', 'rewrite', 'testing'} & set(dir(pg))",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("table_as_it_was")
def test_the_users_file_has_every_public_name_and_runs() -> None:
    """The file that `make check` reads with two type checkers."""
    file = HERE / "typing" / "user.py"
    used: dict[str, set[str]] = {"pg": set(), "nn": set(), "rules": set(), "optim": set()}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            holder = node.value
            name = (
                holder.attr if isinstance(holder, ast.Attribute) else holder.id if isinstance(holder, ast.Name) else ""
            )
            used.get(name, set()).add(node.attr)
    assert used["pg"] | {"nn", "rules"} >= set(pg.__all__), set(pg.__all__) - used["pg"]
    assert used["nn"] >= set(pg.nn.__all__), set(pg.nn.__all__) - used["nn"]
    with_parameters = {name for name in dir(rules) if inspect.signature(getattr(rules, name)).parameters}
    assert len(used["rules"] & with_parameters) > 5, "list_ops.py writes the types of all rules alike"
    assert "project" in used["optim"]
    runpy.run_path(str(file))["main"]()
    commands = (HERE.parent / "Makefile").read_text(encoding="utf-8")
    for checker in ("mypy --strict", "pyright"):
        assert re.search(rf"-m {checker} .*tests/typing/user.py", commands)


def test_a_name_that_does_not_exist_is_one_to_type_checkers_too() -> None:
    """A module's __getattr__ that they see would let every misspelling pass."""
    assert "__getattr__" in vars(pg)
    tree = ast.parse(Path(inspect.getfile(pg)).read_text(encoding="utf-8"))
    assert not any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body)
