"""The rule table as text, for `pseudograd rules`."""

from __future__ import annotations

import torch
from torch import Tensor

from ..kernels import bits
from ..rule import Call, Op, Rule
from ..wording import counted


def rules_text(ops: list[Op]) -> str:
    """The table as text; ops that have the same rules share a block."""
    blocks: dict[tuple[str, ...], list[Op]] = {}
    for op in ops:
        blocks.setdefault((op.rule_set, *op.rules), []).append(op)
    texts = []
    for members in blocks.values():
        rows = [_rule_lines(members[0], rule) for rule in members[0].rules.values()]
        texts.append("\n".join([*map(_default_line, members), "", *rows]))
    return "\n\n".join(texts)


def _default_line(op: Op) -> str:
    others = ", ".join(str(edge) for edge in op.edges if edge != op.default_edge)
    edge = f", edge {op.default_edge} (or {others})" if op.edges else ""
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
    """The inputs or bits that a call saves for a backward to x alone, between the bounds that the op is drawn with."""
    saved = rule.inputs_read((True,) + (False,) * (len(op.inputs) - 1))
    if op.picture.inputs_of is not None:
        drawn = zip(op.inputs, op.picture.inputs_of(torch.zeros(1)), strict=True)
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
    return f"{counted(planes, 'bit')} or x"
