"""No pull reaches a function of torch with an edge of its own; and whoever puts one in, in any file, is found."""

from __future__ import annotations

from pathlib import Path
from types import FunctionType

import pytest
import torch
from torch import Tensor

from pseudograd.ops import policy, steps

from ..choices import folded
from . import purity

PULLS = purity.pulls()
ROOT = Path(__file__).resolve().parents[2]


def _name_of(function: FunctionType) -> str:
    return f"{Path(function.__code__.co_filename).name}:{function.__code__.co_firstlineno} {function.__qualname__}"


# Each function with a pull that reaches it.
REACHED = {_name_of(function): (function, pull) for pull in PULLS.values() for function in purity.functions(pull)}


def test_rules_are_pure() -> None:
    faults = {name: purity.faults(pull) for name, pull in PULLS.items()}
    assert {name: lines for name, lines in faults.items() if lines} == {}
    assert len(faults) > 300


def test_what_is_forbidden_is_what_the_table_of_torch_has_with_an_edge() -> None:
    clamping = {"clamp", "clip", "clamp_", "clamp_min", "minimum", "maximum", "fmax", "relu", "relu6", "hardtanh"}
    assert {*clamping, "item"} <= purity.FORBIDDEN
    assert not {"where", "abs", "round", "sign"} & purity.FORBIDDEN


def test_all_files_with_rules_are_read() -> None:
    files = {name.partition(":")[0] for name in REACHED}
    names = "absolute activations bound_rules grad_transforms jump policy quantize replace rounding shared_rules steps edges"
    assert files >= {f"{name}.py" for name in f"{names} clamps eras".split()}
    for function in (policy._limit, policy._replace, steps._triangle):
        assert _name_of(function) in REACHED


def _planted(x: Tensor) -> Tensor:
    return torch.clamp(x, 0)


@folded
@pytest.mark.parametrize("name", sorted(REACHED))
def test_clamp_in_any_function_that_a_pull_reaches_is_found(name: str) -> None:
    """In a function that is made inside it, which nobody calls: so the rule stays as it is."""
    function, pull = REACHED[name]
    code = function.__code__
    function.__code__ = code.replace(co_consts=(*code.co_consts, _planted.__code__))
    try:
        assert any("clamp" in fault for fault in purity.faults(pull))
    finally:
        function.__code__ = code
    assert purity.faults(pull) == []


_ALIAS, _TABLE = torch.nn.functional.relu, {"a": [torch.clamp]}
