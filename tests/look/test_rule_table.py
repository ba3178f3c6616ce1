"""The text of `pseudograd rules`, beside the bytes that a call really keeps."""

import pytest
import torch

from pseudograd.kernels import native
from pseudograd.look.rule_table import rules_text, what_is_saved
from pseudograd.rule import OPS

from ..choices import folded

SIZE = 8192
BYTES = {"nothing": 0, "1 bit or x": SIZE // 8, "2 bits or x": SIZE // 4, "x": 4 * SIZE}
ROWS = [
    (name, rule)
    for name, op in OPS.items()
    for rule in op.rules
    if not op.picture.inputs_of and None not in op.rules[rule].parameters.values()  # a user's function has no default
]


def saved_bytes(name: str, rule: str) -> int:
    """The bytes that a real call keeps, of an input that no op has made."""
    saved: list[torch.Tensor] = []
    options = {"rule": rule} if len(OPS[name].rules) > 1 else {}
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append(x), x)[1], lambda x: x):
        OPS[name].public(torch.randn(SIZE, requires_grad=True), *OPS[name].picture.others, **options)
    return sum(tensor.numel() * tensor.element_size() for tensor in saved)


@folded
@pytest.mark.skipif(
    native.status()["state"] != "active", reason="bits are kept where the kernels in C run; without them x is"
)
@pytest.mark.parametrize(("name", "rule"), ROWS, ids="/".join)
def test_what_is_said_is_what_a_call_keeps(name: str, rule: str) -> None:
    assert BYTES[what_is_saved(OPS[name], OPS[name].rules[rule])] == saved_bytes(name, rule)


def test_other_rows_name_the_inputs_that_they_save() -> None:
    for row, expected in {
        ("policy_loss", "inward"): "log_ratio, advantage",
        ("replace_grad", "replace"): "nothing",
        ("fake_quantize", "zero"): "x",
        ("jumprelu", "window"): "x",
        ("sign", "custom"): "x",
    }.items():
        assert what_is_saved(OPS[row[0]], OPS[row[0]].rules[row[1]]) == expected


def test_ops_of_one_set_of_rules_share_a_block_in_the_order_given() -> None:
    relu, clamp, hardtanh = (OPS[name] for name in ("relu", "clamp", "hardtanh"))
    blocks = rules_text([relu, clamp, hardtanh]).split("\n\n")
    heads = [block for block in blocks if not block.startswith("  ")]
    assert [[line.split(":")[0] for line in head.splitlines()] for head in heads] == [["relu"], ["clamp", "hardtanh"]]
    assert heads[1].splitlines() == [
        "clamp: default rule inward, edge closed (or open, half, inward)",
        "hardtanh: default rule zero, edge open (or closed, half, inward)",
    ]
    rows = [block for block in blocks if block.startswith("  ")][1].splitlines()
    assert [line.strip() for line in rows if line[2] != " "] == [rule.called for rule in clamp.rules.values()]


def test_a_row_says_whether_it_is_linear_and_what_else_it_is_called() -> None:
    lines = rules_text([OPS["clamp"]]).splitlines()
    zero, inward, leaky = (lines.index(f"  {rule}") for rule in ("zero", "inward", "leaky(slope=0.1)"))
    assert lines[zero + 3] == "    linear in grad   yes"
    assert lines[inward + 1 : inward + 4] == [
        "    grad_x outside   grad, or 0 where a descent step would move x further out",
        "    saves            2 bits or x",
        "    linear in grad   no: no forward mode",
    ]
    assert lines[leaky + 5].startswith("    also called      ")
    assert [rule.also_called for rule in OPS["sign"].rules.values() if not rule.also_called]
    assert "also called      \n" not in rules_text(list(OPS.values()))


def test_an_op_without_a_choice_has_no_default() -> None:
    assert rules_text([OPS["reverse_grad"]]).startswith("reverse_grad: rule ")
    assert "edge" not in rules_text([OPS["reverse_grad"]]).splitlines()[0]
    assert rules_text([OPS["gelu"]]).startswith("gelu: default rule exact")  # of two
