"""The rule table as text, for `pseudograd rules`."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import bits
from ..rule import Call, Op, Rule


def rules_text(ops: list[Op]) -> str:
    """The table as text; ops that have the same rules share a block."""
    blocks = []
    for rules in dict.fromkeys((op.rule_set, *op.rules) for op in ops):
        members = [op for op in ops if (op.rule_set, *op.rules) == rules]
        names = "\n".join(_default_line(op) for op in members)
        rows = [_rule_lines(members[0], rule) for rule in members[0].rules.values()]
        blocks.append("\n".join([names, "", *rows]))
    return "\n\n".join(blocks)


def _default_line(op: Op) -> str:
    edge = (
        f", edge {op.default_edge} (or {', '.join(str(e) for e in op.edges if e != op.default_edge)})"
        if op.edges
        else ""
    )
    return f"{op.name}: {'default ' if len(op.rules) > 1 else ''}rule {op.default_rule}{edge}"


def _rule_lines(op: Op, rule: Rule) -> str:
    where = "grad_x outside" if op.has_outside else f"grad_{op.formula_of:<9}"
    lines = [
        f"  {rule.called}",
        f"    {where}   {rule.formula}",
        f"    saves            {what_is_saved(op, rule)}",
        f"    linear in grad   {'yes' if rule.is_linear_at(op.default_edge) else 'no: no forward mode'}",
        f"    source           {rule.source}",
    ]
    if rule.also_called:
        lines.append(f"    also called      {rule.also_called}")
    return "\n".join(lines)


def what_is_saved(op: Op, rule: Rule) -> str:
    """For a backward that x alone asks for, between the bounds that the op is drawn with."""
    saved = rule.inputs_read((True,) + (False,) * (len(op.inputs) - 1))
    if op.picture.of is not None:
        drawn = zip(op.inputs, op.picture.of(torch.zeros(1)), strict=True)
        return ", ".join(name for name, value in drawn if name in saved and isinstance(value, Tensor)) or "nothing"
    if "x" not in saved:
        return "nothing"
    if rule.steps is not None:
        steps = rule.steps(*op.picture.others, **rule.parameters)
        return "x" if steps is None else _bits(bits.code_of_slopes(steps.slopes).planes)
    call = Call(op, rule, dict(rule.parameters), op.default_edge, False)
    if not bits.suits(call):
        return "x"
    low, high = op.picture.others
    code = bits.code_of_sides(call, low is not None, high is not None)
    return "x" if code is None else _bits(code.planes)


def _bits(planes: int) -> str:
    return f"{planes} bit{'s' * (planes > 1)} or x"
