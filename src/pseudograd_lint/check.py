"""From the text of a module to the notices of the rules."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Iterator, Sequence

from pseudograd_notices.notice import Notice

from .rules import RULES
from .terms import unparse
from .walk import Rule, Spot, Walker

_DELIBERATE = re.compile(r"#.*\bpseudograd:\s*deliberate\b")
_TRAINING = re.compile(
    r"loss(?!less|y)|backward(?!s|.?compat)|gradient(?!.?(checkpoint|accum))|autograd|requires_grad|differentiab|Parameter\(",
    re.IGNORECASE,
)
_NOQA = re.compile(r"#\s*noqa\b(?P<codes>:\s*[A-Za-z]+\d+(?:[\s,]+[A-Za-z]+\d+)*)?(?!:)", re.IGNORECASE)


def parse(text: str | bytes) -> ast.Module:
    """Raises SyntaxError, and ValueError, RecursionError or MemoryError for what is no module either."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes, which are the author's business
        return ast.parse(text)


def check(tree: ast.Module, lines: Sequence[str], path: str, numbers: Collection[str]) -> list[Notice]:
    """The notices of the rules of these numbers, in the order of the lines, without those that a comment at the line mutes."""
    text = "\n".join(lines)
    if "torch" not in text:
        return []
    rules = [rule for rule in RULES if rule.code.number in numbers and any(word in text for word in rule.words)]
    if not rules:
        return []
    notices: list[Notice] = []

    def judge(spot: Spot) -> None:
        for rule in rules:
            if isinstance(spot.term.node, rule.kinds) and (message := rule.find(spot)) is not None:
                notices.append(_notice(rule, spot.term.node, message, lines, path))

    walker = Walker(tree, tuple({kind for rule in rules for kind in rule.kinds}), judge, path)
    walker.module.speaks_of_gradients = _TRAINING.search(text) is not None
    walker.run()
    muted = {number: codes for number, line in enumerate(lines, 1) if "#" in line for codes in _muted_codes(line)}
    loud = [notice for notice in dict.fromkeys(notices) if not _is_muted(notice, muted, lines)]
    # A clamped parameter that starts on its bound needs no opinion besides.
    born = {notice[3:7] for notice in loud if notice.code == "PG101"}
    loud = [notice for notice in loud if notice.code != "PG151" or notice[3:7] not in born]
    return sorted(loud, key=lambda notice: (notice.line, notice.column, notice.code))


def _notice(rule: Rule, node: ast.AST, message: str, lines: Sequence[str], path: str) -> Notice:
    code = rule.code
    if isinstance(node, ast.ClassDef):
        text, start = f"class {node.name}", node.col_offset + 1
        line = end_line = node.lineno
        end = start + len(text)
    else:
        assert isinstance(node, ast.expr)
        text, line, end_line = unparse(node), node.lineno, node.end_lineno or node.lineno
        start = _characters(lines, line, node.col_offset) + 1
        end = _characters(lines, end_line, node.end_col_offset or 0) + 1
    return Notice(code.number, code.name, path, line, start, end_line, end, message, text)


def _characters(lines: Sequence[str], line: int, offset: int) -> int:
    """ast counts bytes."""
    if line > len(lines) or lines[line - 1].isascii():
        return offset
    return len(lines[line - 1].encode("utf-8", "replace")[:offset].decode("utf-8", "replace"))


def _muted_codes(line: str) -> Iterator[tuple[str, ...]]:
    """The beginnings of the codes that a line mutes by `# noqa`, `# noqa: PG101` or `# pseudograd: deliberate`; "" is every code."""
    codes = [re.findall(r"[A-Za-z]+\d+", mark["codes"] or "") or [""] for mark in _NOQA.finditer(line)]
    codes += [[""]] if _DELIBERATE.search(line) else []
    if codes:
        yield tuple(code.upper() for mark in codes for code in mark)


def _is_muted(notice: Notice, muted: dict[int, tuple[str, ...]], lines: Sequence[str]) -> bool:
    """At one of its lines; `deliberate` also alone on the line above."""
    above = notice.line - 1
    if above in muted and _DELIBERATE.search(lines[above - 1]) and lines[above - 1].lstrip().startswith("#"):
        return True
    own = muted.keys() & range(notice.line, notice.end_line + 1)
    return any(notice.code.startswith(muted[number]) for number in own)
