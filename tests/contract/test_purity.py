"""No pull reaches a function of torch with an edge of its own."""

from . import purity


def test_rules_are_pure() -> None:
    faults = {name: purity.faults(pull) for name, pull in purity.pulls().items()}
    assert {name: lines for name, lines in faults.items() if lines} == {}
    assert len(faults) > 300


def test_what_is_forbidden_is_what_the_table_of_torch_has_with_an_edge() -> None:
    clamping = {"clamp", "clip", "clamp_", "clamp_min", "minimum", "maximum", "fmax", "relu", "relu6", "hardtanh"}
    assert {*clamping, "item"} <= purity.FORBIDDEN
    assert not {"where", "abs", "round", "sign"} & purity.FORBIDDEN
