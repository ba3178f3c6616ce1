"""From the text of a module to the notices of the rules."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection, Sequence

from pseudograd_notices.notice import Notice

from .learning import is_quiet_folder
from .names import Module, unparse
from .rules import CODES, RULES

_NAMES = {code.number: code.name for code in CODES}
_DELIBERATE = re.compile(r"#.*\bpseudograd:\s*deliberate\b")
_TRAINING = re.compile(
    r"loss(?!less|y)|backward(?!s|.?compat)|gradient(?!.?(checkpoint|accum))|autograd|requires_grad|differentiab|Parameter\(",
    re.IGNORECASE,
)
_NOQA = re.compile(r"#\s*noqa\b(?P<codes>:\s*[A-Za-z]+\d+(?:[\s,]+[A-Za-z]+\d+)*)?(?!:)", re.IGNORECASE)


def parse(text: str | bytes) -> ast.Module:
    """Parse a module. Raises SyntaxError; or ValueError, RecursionError or MemoryError for other texts that are no module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of wrong escapes, which are not our subject
        return ast.parse(text)


def check(tree: ast.Module, lines: Sequence[str], path: str, numbers: Collection[str]) -> list[Notice]:
    """The notices of the rules with these numbers, in the order of the lines. A comment at the line can mute a notice."""
    text = "\n".join(lines)
    rules = [rule for rule in RULES if rule.number in numbers and any(word in text for word in rule.words)]
    if "torch" not in text or not rules:
        return []
    module = Module(tree)
    module.speaks_of_gradients = _TRAINING.search(text) is not None
    module.is_recorded = not is_quiet_folder(path)
    notices = [
        _notice(rule.number, node, message, lines, path)
        for node in module.nodes
        for rule in rules
        if isinstance(node, (ast.expr, ast.ClassDef))
        and isinstance(node, rule.kinds)
        and (message := rule.find(module, node)) is not None
    ]
    notices = [notice for notice in notices if not _is_muted(notice, lines)]
    # Where PG101 says that a parameter starts on its bound, the opinion PG151 about this parameter is left out.
    on_bound = {(notice.line, notice.column) for notice in notices if notice.code == "PG101"}
    notices = [notice for notice in notices if notice.code != "PG151" or (notice.line, notice.column) not in on_bound]
    return sorted(notices, key=lambda notice: (notice.line, notice.column, notice.code))


def _notice(number: str, node: ast.expr | ast.ClassDef, message: str, lines: Sequence[str], path: str) -> Notice:
    line, end_line = node.lineno, node.end_lineno or node.lineno
    start = _characters(lines, line, node.col_offset) + 1
    end = _characters(lines, end_line, node.end_col_offset or 0) + 1
    text, source = unparse(node), lines[line - 1] if line <= len(lines) else ""
    if isinstance(node, ast.ClassDef):
        text = f"class {node.name}"
        end_line, end = line, start + len(text)
    return Notice(number, _NAMES[number], path, line, start, end_line, end, message, text, source=source)


def _characters(lines: Sequence[str], line: int, offset: int) -> int:
    """The column in characters; ast counts bytes."""
    text = lines[line - 1] if line <= len(lines) else ""
    return offset if text.isascii() else len(text.encode("utf-8", "replace")[:offset].decode("utf-8", "replace"))


def _is_muted(notice: Notice, lines: Sequence[str]) -> bool:
    """Does a comment at a line of the notice mute it? The comment `pseudograd: deliberate` may also be on the line above."""
    above = lines[notice.line - 2] if notice.line > 1 else ""
    if above.lstrip().startswith("#") and _DELIBERATE.search(above):
        return True
    return any(notice.code.startswith(_muted_codes(line)) for line in lines[notice.line - 1 : notice.end_line])


def _muted_codes(line: str) -> tuple[str, ...]:
    """The beginnings of the codes that a line mutes by `# noqa`, `# noqa: PG101` or `# pseudograd: deliberate`; "" is every code."""
    lists = [noqa["codes"] or "" for noqa in _NOQA.finditer(line)]  # "" for a noqa without codes
    lists += [""] if _DELIBERATE.search(line) else []
    return tuple(code.upper() for codes in lists for code in re.findall(r"[A-Za-z]+\d+", codes) or [""])
