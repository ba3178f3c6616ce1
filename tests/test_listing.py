"""What `pseudograd rules` says of each row, beside the bytes that its call really keeps."""

from __future__ import annotations

import pytest

from pseudograd.listing import rules_text, what_is_saved
from pseudograd.rule import OPS


def saved(op: str, rule: str) -> str:
    return what_is_saved(OPS[op], OPS[op].rules[rule])


@pytest.mark.parametrize(
    ("op", "rule", "expected"),
    [
        ("clamp", "identity", "nothing"),
        ("clamp", "zero", "1 bit or x"),
        ("clamp", "inward", "2 bits or x"),
        ("clamp", "leaky", "1 bit or x"),
        ("clamp", "sign", "2 bits or x"),
        ("clamp", "elastic", "x"),
        ("clamp", "inverting", "x"),
        ("lower_bound", "inward", "1 bit or x"),
        ("round", "identity", "nothing"),
        ("sign", "window", "1 bit or x"),
        ("sign", "arctan", "x"),
    ],
)
def test_what_a_call_keeps(op: str, rule: str, expected: str) -> None:
    assert saved(op, rule) == expected


def test_ops_of_one_set_of_rules_share_a_block_in_the_order_given() -> None:
    relu, clamp, hardtanh = (OPS[name] for name in ("relu", "clamp", "hardtanh"))
    blocks = rules_text([relu, clamp, hardtanh]).split("\n\n")
    heads = [block for block in blocks if not block.startswith("  ")]
    assert [[line.split(":")[0] for line in head.splitlines()] for head in heads] == [["relu"], ["clamp", "hardtanh"]]
    assert heads[1].splitlines() == [
        "clamp: default rule inward, edge closed (or open, half, projected)",
        "hardtanh: default rule zero, edge open (or closed, half, projected)",
    ]
    rows = [block for block in blocks if block.startswith("  ")]
    assert [line.strip() for line in rows[1].splitlines() if line[2] != " "] == [
        rule.called for rule in clamp.rules.values()
    ]


def test_a_row_says_whether_it_is_linear_and_what_else_it_is_called() -> None:
    lines = rules_text([OPS["clamp"]]).splitlines()
    zero, inward, leaky = (lines.index(f"  {rule}") for rule in ("zero", "inward", "leaky(slope=0.1)"))
    assert lines[zero + 3] == "    linear in grad   yes"
    assert lines[inward + 1 : inward + 4] == [
        "    grad_x outside   grad, or 0 where grad points strictly outward",
        "    saves            2 bits or x",
        "    linear in grad   no: no forward mode",
    ]
    assert lines[leaky + 5].startswith("    also called      ")
    assert [rule.also_called for rule in OPS["sign"].rules.values() if not rule.also_called]
    assert "also called      \n" not in rules_text(list(OPS.values()))


def test_an_op_without_a_choice_has_no_default() -> None:
    assert rules_text([OPS["reverse_grad"]]).startswith("reverse_grad: rule ")
    assert "edge" not in rules_text([OPS["reverse_grad"]]).splitlines()[0]
