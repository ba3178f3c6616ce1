"""The public names, the table and the docstrings agree."""

import importlib.metadata
import inspect
import re

import pytest
import torch

import pseudograd as pg
from pseudograd import ops, rules
from pseudograd.rule import OPS, RuleChoice

FUNCTIONS = {name: getattr(pg, name) for name in pg.__all__ if inspect.isfunction(getattr(pg, name))}
FUNCTIONS["optim.project"] = pg.optim.project
PARTS = ("Forward:", "Backward:", "Args:", "Returns:", "Raises:", "Example:", "Source:")


def test_all_is_sorted_and_what_the_package_shows() -> None:
    assert list(pg.__all__) == sorted(
        set(pg.__all__), key=lambda name: (name.islower() or name.startswith("_"), name)
    ) or (sorted(pg.__all__) == sorted(set(pg.__all__)))
    for name in pg.__all__:
        assert getattr(pg, name) is not None
    assert set(ops.__all__) <= set(pg.__all__)
    for name in ops.__all__:
        assert getattr(ops, name) is getattr(pg, name)


def test_star_import_gives_exactly_all() -> None:
    names: dict[str, object] = {}
    exec("from pseudograd import *", names)
    assert set(names) - {"__builtins__"} == set(pg.__all__)


def test_version_stands_once() -> None:
    assert pg.__version__ == importlib.metadata.version("pseudograd")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pg.nothing


def test_every_op_of_the_table_is_public_under_its_name() -> None:
    assert set(OPS) <= set(pg.__all__)
    for name, op in OPS.items():
        assert op.name == name
        assert op.default_rule in op.rules
        assert op.default_edge in (op.edges or (None,))
        defaults = {key: p.default for key, p in inspect.signature(getattr(pg, name)).parameters.items()}
        assert defaults.get("rule", op.default_rule) == op.default_rule
        assert ("rule" in defaults) == (len(op.rules) > 1)
        assert defaults.get("edge") == op.default_edge
        assert ("edge" in defaults) == bool(op.edges)
        assert (
            ("maximize" in defaults)
            == op.takes_maximize
            == any(len(op.rules) > 1 and not rule.is_linear(edge="closed") for rule in op.rules.values())
        )


def test_every_row_is_complete() -> None:
    for op in OPS.values():
        for name, rule in op.rules.items():
            assert rule.name == name
            assert rule.formula
            assert rule.source
            assert not set(rule.translates) & set(op.rules), f"{name}: a translation that is a rule itself"
            assert set(rule.requires) <= set(op.inputs)


@pytest.mark.parametrize("name", OPS)
def test_every_rule_that_an_op_lists_can_be_asked_of_it(name: str) -> None:
    op = OPS[name]
    for rule in op.rules.values():
        if None in rule.parameters.values():
            continue
        how = {"rule": rule.name} if len(op.rules) > 1 else {}
        for sample in op.samples():
            given = sample.build(torch.float32)
            y = op.public(*[v.requires_grad_() if isinstance(v, torch.Tensor) else v for v in given], **how)
            y.sum().backward()


def test_rules_of_two_bounds_are_listed_where_there_are_two() -> None:
    for name in ("clamp", "relu6", "hardtanh", "fake_quantize"):
        assert {"elastic", "inverting"} <= set(OPS[name].rules)
    for name in ("relu", "lower_bound", "upper_bound"):
        assert set(OPS["clamp"].rules) - set(OPS[name].rules) == {"elastic", "inverting"}


def test_every_rule_has_an_object() -> None:
    names = {name for op in OPS.values() for name in op.rules}
    assert set(dir(rules)) >= names
    for name in names:
        made = rules.custom(torch.cos) if name == "custom" else getattr(rules, name)()
        assert made.name == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = rules.nothing
    with pytest.raises(AttributeError, match="_private"):
        _ = rules._private


def test_a_rule_object_prints_as_it_is_written_and_compares_by_value() -> None:
    assert repr(rules.leaky(0.5)) == "leaky(slope=0.5)"
    assert repr(rules.inward()) == "inward()"
    assert rules.elastic(width=2) == rules.elastic(2.0) == RuleChoice("elastic", (("width", 2.0),))
    assert rules.leaky() == rules.leaky(OPS["clamp"].rules["leaky"].parameters["slope"])
    assert rules.elastic() == rules.elastic(OPS["clamp"].rules["elastic"].parameters["width"])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_has_its_seven_parts_in_order(name: str) -> None:
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    found = [line.split(" ")[0] for line in text.splitlines() if line.startswith(PARTS)]
    assert found == list(PARTS)
    summary = text.splitlines()[0]
    assert summary.endswith(".")
    assert text.splitlines()[1] == ""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_names_every_argument_and_everything_is_annotated(name: str) -> None:
    function = FUNCTIONS[name]
    text = inspect.getdoc(function) or ""
    arguments = text[text.index("Args:") : text.index("Returns:")]
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty
        assert re.search(rf"\b{parameter.name}\b", arguments), parameter.name
    assert inspect.signature(function).return_annotation is not inspect.Signature.empty


@pytest.mark.parametrize("name", FUNCTIONS)
def test_options_are_keyword_only(name: str) -> None:
    options = {"rule", "edge", "maximize", "loss", "ax", "backward"}
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    for parameter in parameters.values():
        if parameter.name in options and len(parameters) > 1:
            assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
