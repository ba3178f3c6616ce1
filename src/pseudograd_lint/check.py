"""From the text of a module to what the rules say of it."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence

from pseudograd_notices.notice import Notice

from .rules import RULES, Rule
from .terms import key_of, written
from .walk import Spot, Walker

DELIBERATE = re.compile(r"#.*\bpseudograd:\s*deliberate\b")
_OF_TRAINING = re.compile(
    r"loss(?!less|y)|backward(?!s|.?compat)|gradient(?!.?(checkpoint|accum))|autograd|requires_grad|differentiab|Parameter\(",
    re.IGNORECASE,
)
_MARK = re.compile(r"noqa|deliberate", re.IGNORECASE)
_NOQA = re.compile(r"#\s*noqa\b(?P<codes>:\s*[A-Za-z]+\d+(?:[\s,]+[A-Za-z]+\d+)*)?(?!:)", re.IGNORECASE)


def parsed(text: str | bytes) -> ast.Module:
    """Raises SyntaxError, and ValueError, RecursionError or MemoryError for what is no module either."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes, which are the author's business
        return ast.parse(text)


def check(tree: ast.Module, lines: Sequence[str], path: str, numbers: Collection[str]) -> list[Notice]:
    """What the rules of these numbers find, in the order of the lines; nothing that a comment at its line says to leave."""
    text = "\n".join(lines)
    if "torch" not in text:
        return []
    rules = [rule for rule in RULES if rule.code.number in numbers and any(word in text for word in rule.words)]
    if not rules:
        return []
    found: list[Notice] = []

    def judge(spot: Spot) -> None:
        for rule in rules:
            if isinstance(spot.term.node, rule.kinds) and (message := rule.find(spot)) is not None:
                found.append(_notice(rule, spot.term.node, message, lines, path))

    walker = Walker(tree, tuple({kind for rule in rules for kind in rule.kinds}), judge, path)
    walker.module.speaks_of_gradients = _OF_TRAINING.search(text) is not None
    walker.run()
    told = _without_muted(dict.fromkeys(found), lines)
    return sorted(_without_opinions_on_the_same(told), key=lambda one: (one.line, one.column, one.code))


def _without_muted(found: Iterable[Notice], lines: Sequence[str]) -> list[Notice]:
    """Lines without a word of muting are not looked at again: one line may hold thousands of findings."""
    marked = {at for at, line in enumerate(lines, 1) if "#" in line and _MARK.search(line)}
    return [
        one for one in found if marked.isdisjoint(range(one.line - 1, one.end_line + 1)) or not is_muted(one, lines)
    ]


def _without_opinions_on_the_same(found: Sequence[Notice]) -> Iterator[Notice]:
    """What is said of a clamped parameter that starts on its bound says enough."""
    known = {(one.line, one.column, one.end_line, one.end_column) for one in found if one.code == "PG101"}
    for one in found:
        if one.code != "PG151" or (one.line, one.column, one.end_line, one.end_column) not in known:
            yield one


def _notice(rule: Rule, node: ast.AST, message: str, lines: Sequence[str], path: str) -> Notice:
    if isinstance(node, ast.ClassDef):
        column = node.col_offset + 1
        end = column + len(f"class {node.name}")
        return Notice(
            rule.code.number, rule.code.name, path, node.lineno, column, node.lineno, end, message, f"class {node.name}"
        )
    assert isinstance(node, ast.expr)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    column = _characters(lines, node.lineno, node.col_offset) + 1
    end = _characters(lines, node.end_lineno, node.end_col_offset) + 1
    return Notice(
        rule.code.number, rule.code.name, path, node.lineno, column, node.end_lineno, end, message, written(node)
    )


def _characters(lines: Sequence[str], line: int, offset: int) -> int:
    """ast counts bytes."""
    if line > len(lines) or lines[line - 1].isascii():
        return offset
    return len(lines[line - 1].encode("utf-8", "replace")[:offset].decode("utf-8", "replace"))


def is_muted(one: Notice, lines: Sequence[str]) -> bool:
    """By `# noqa`, `# noqa: PG101` or `# pseudograd: deliberate` at one of its lines; the last also alone on the line above."""
    own = lines[one.line - 1 : one.end_line]
    above = lines[one.line - 2 : one.line - 1] if one.line > 1 else []
    if any(map(DELIBERATE.search, own)) or any(
        line.lstrip().startswith("#") and DELIBERATE.search(line) for line in above
    ):
        return True
    for line in own:
        for mark in _NOQA.finditer(line):
            codes = re.findall(r"[A-Za-z]+\d+", mark["codes"] or "")
            if not codes or any(one.code.startswith(code.upper()) for code in codes):
                return True
    return False


__all__ = ["DELIBERATE", "check", "is_muted", "key_of", "parsed"]
