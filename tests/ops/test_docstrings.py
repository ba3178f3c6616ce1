"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest
import torch

import pseudograd
import pseudograd.comparison
import pseudograd.look
import pseudograd.nn
import pseudograd.ops
import pseudograd.optim
import pseudograd.rewrite

from ..choices import slow_but

MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (pseudograd.ops, pseudograd.look, pseudograd.comparison, pseudograd.rewrite)
    for module in pkgutil.iter_modules(package.__path__)
] + ["pseudograd.rules", "pseudograd.optim", "pseudograd.nn", "pseudograd.diagnosis", "pseudograd.integrations.pytest"]
# Our docstrings go on with "Source:" right below an example, which doctest would take for a part of the output.
EXAMPLE = re.compile(r"^ *Example:\n(.*?)^ *Source:", re.MULTILINE | re.DOTALL)


def _documented() -> dict[str, object]:
    """Every public function and class of the package's own modules that has a docstring."""
    documented: dict[str, object] = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for key, value in vars(module).items():
            is_ours = getattr(value, "__module__", None) == name and not key.startswith("_")
            if is_ours and (inspect.isfunction(value) or inspect.isclass(value)) and value.__doc__:
                documented[f"{name}.{key}"] = value
    return documented


_TRAINS = "pseudograd.comparison.compare.compare"  # as long as that of tune
WITH_EXAMPLE = {name: f for name, f in _documented().items() if EXAMPLE.search(inspect.cleandoc(f.__doc__ or ""))}


@pytest.mark.usefixtures("table_as_it_was")
@pytest.mark.parametrize("name", slow_but(WITH_EXAMPLE.keys() - {_TRAINS}, WITH_EXAMPLE, pytest.mark.program))
def test_example_runs(name: str) -> None:
    function = WITH_EXAMPLE[name]
    match = EXAMPLE.search(inspect.cleandoc(function.__doc__ or ""))
    names = {**vars(inspect.getmodule(function)), "torch": torch}
    test = doctest.DocTestParser().get_doctest(match[1], names, name, name, 0)
    assert test.examples
    printed: list[str] = []
    result = doctest.DocTestRunner().run(test, out=printed.append)
    assert result.failed == 0, "".join(printed)


def test_every_public_op_has_an_example() -> None:
    functions = {
        getattr(pseudograd, name) for name in pseudograd.__all__ if inspect.isfunction(getattr(pseudograd, name))
    }
    modules = {getattr(pseudograd.nn, name) for name in pseudograd.nn.__all__}
    assert functions | modules | {pseudograd.optim.project} <= set(WITH_EXAMPLE.values())
