"""The formulas of the rule table as LaTeX, for the pages of the ops: `|x| <= scale` as well as `grad * (max - x) / (max - min)`.

A formula is a Python expression, but for ^ and |x|, within a few fixed phrases: "A, or B where C", "A where C, B where D, else E",
"A with e = B". What is none of these stands there as text.
"""

from __future__ import annotations

import ast
import re

NAMES = {"grad": "g", "pi": r"\pi", "min": r"x_{\min}", "max": r"x_{\max}"}
FUNCTIONS = {"min": r"\min", "max": r"\max", "exp": r"\exp", "cos": r"\cos", "erf": r"\operatorname{erf}"}
COMPARISONS = {ast.Lt: "<", ast.LtE: r"\leq", ast.Gt: ">", ast.GtE: r"\geq", ast.Eq: "="}


def of_rule(formula: str) -> str:
    """dL/dx of a rule, as LaTeX."""
    try:
        if formula.startswith("everywhere: "):
            return _of_sentence(formula.removeprefix("everywhere: ")) + r"\quad\text{everywhere}"
        return _of_sentence(formula)
    except (SyntaxError, KeyError):
        return _text(formula)


def _of_sentence(text: str) -> str:
    text, _, where = text.partition(" with e = ")
    text = text.replace("limit with the sign of grad", "limit * sign(grad)")
    text, _, apart = text.partition(", slope being")
    text, _, fitted = text.partition(", s being the slope of the interval of x")
    if found := re.fullmatch(r"0 to x_forward, (?P<rest>.+) to x_backward", text):
        return rf"{_expression(found['rest'])} \quad\text{{to x\_backward, 0 to x\_forward}}"
    if found := re.fullmatch(r"(.+), or (.+) where (.+)", text):
        return _cases([(found[2], found[3]), (found[1], "else")])
    parts = re.split(r", (?![^()]*\))", text)
    if " where " in text or " if " in text:
        cases = [tuple(re.split(" where | if ", part)) for part in parts if not part.startswith("else ")]
        cases += [(part.removeprefix("else "), "else") for part in parts if part.startswith("else ")]
        return _cases(cases)
    tail = rf",\quad e = {_expression(where)}" if where else r"\quad\text{with your slope}" if apart else ""
    tail = tail or (r",\quad s \text{ of the interval of } x" if fitted else "")
    return _expression(text) + tail


def _cases(cases: list[tuple[str, ...]]) -> str:
    rows = [rf"{_expression(value)} & {_condition(condition)}" for value, condition in cases]
    return r"\begin{cases} " + r" \\ ".join(rows) + r" \end{cases}"


def _condition(text: str) -> str:
    if text == "else":
        return r"\text{else}"
    if text.startswith("grad points "):
        return rf"g \text{{ {text.removeprefix('grad ')}}}"
    if text.startswith("the clip is blocked") or text == "r is outside the bounds":
        return rf"\text{{{text}}}"
    return _expression(text.replace(" is ", " == "))


def _expression(text: str) -> str:
    text = re.sub(r"\|([^|]+)\|", r"abs(\1)", text).replace("^", "**")
    return _node(ast.parse(text, mode="eval").body)


def _node(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return NAMES.get(node.id) or (node.id if len(node.id) == 1 else rf"\mathrm{{{node.id}}}")
    if isinstance(node, ast.UnaryOp):
        return f"-{_node(node.operand)}"
    if isinstance(node, ast.Compare):
        return f"{_node(node.left)} {COMPARISONS[type(node.ops[0])]} {_node(node.comparators[0])}"
    if isinstance(node, ast.Call):
        return _call(node)
    assert isinstance(node, ast.BinOp)
    if isinstance(node.op, (ast.Add, ast.Sub)):
        return f"{_node(node.left)} {'+' if isinstance(node.op, ast.Add) else '-'} {_node(node.right)}"
    if isinstance(node.op, ast.Pow):
        base = _node(node.left) if isinstance(node.left, ast.Name) else rf"\left( {_node(node.left)} \right)"
        return f"{base}^{{{_node(node.right)}}}"
    above, below = _factors(node)
    product = _product(above)
    return rf"\frac{{{product}}}{{{_product(below)}}}" if below else product


def _call(node: ast.Call) -> str:
    assert isinstance(node.func, ast.Name)
    name, inner = node.func.id, ", ".join(map(_node, node.args))
    if name == "abs":
        return rf"\left| {inner} \right|"
    if name == "sqrt":
        return rf"\sqrt{{{inner}}}"
    called = FUNCTIONS.get(name) or rf"\operatorname{{{name}}}"
    return rf"{called}\left( {inner} \right)"


def _factors(node: ast.expr) -> tuple[list[ast.expr], list[ast.expr]]:
    """What stands above and below the line of a chain of products and quotients."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        above, below = _factors(node.left)
        more, less = _factors(node.right) if isinstance(node.op, ast.Mult) else _factors(node.right)[::-1]
        return above + more, below + less
    return [node], []


def _product(factors: list[ast.expr]) -> str:
    return r" \, ".join(_node(one) if len(factors) == 1 else _factor(one) for one in factors)


def _factor(node: ast.expr) -> str:
    """In parentheses where it is a sum."""
    is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub))
    return rf"\left( {_node(node)} \right)" if is_sum else _node(node)


def _text(text: str) -> str:
    return rf"\text{{{text}}}"
