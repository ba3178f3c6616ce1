"""Every Python block of a page is run, in the order of the page and in one namespace, as a reader would paste them one below the other."""

from __future__ import annotations

import ast
import doctest
import gc
import importlib
import linecache
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..importing import can_import
from . import prepared
from .blocks import Block
from .checked import PYTHON

PAGES = sorted({block.page for block in PYTHON})
_PARSER = doctest.DocTestParser()
_OF_SLOW = (pytest.mark.program, pytest.mark.filterwarnings("default"))


def _blocks_of(page: str) -> list[Block]:
    return [block for block in PYTHON if block.page == page]


def run(block: Block, names: dict[str, Any]) -> None:
    """With >>> it must print what it says; without, it must not raise. An error tells the line of the page."""
    for code in (prepared.entry_of(block, prepared.BEFORE), None, prepared.entry_of(block, prepared.AFTER)):
        if code is None and ">>>" in block.text:
            _run_doctest(block, names)
        else:
            exec(_compiled(block, code), names)


def _run_doctest(block: Block, names: dict[str, Any]) -> None:
    test = _PARSER.get_doctest(block.text, {}, str(block), block.page, block.line)
    test.globs = names  # itself, not a copy: the next block goes on with what this one defines
    said: list[str] = []
    result = doctest.DocTestRunner().run(test, out=said.append, clear_globs=False)
    assert result.attempted > 0
    assert result.failed == 0, "".join(said)


def _compiled(block: Block, code: str | None) -> Any:
    """As if it stood in a file: torch.compile and inspect ask for its source."""
    text = block.text if code is None else code
    file = f"<{block}>" if code is None else f"<prepared for {block}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return compile(text, file, "exec")


def names_of_pseudograd(text: str) -> Iterator[str]:
    """The dotted names that a program takes from the package: `pseudograd.compare` for `pg.compare`, and its imports."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pseudograd"):
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            if dotted.startswith(("pg.", "pseudograd.")):
                yield "pseudograd." + dotted.partition(".")[2]


def look_up(name: str) -> Any:
    dotted, *parts = name.split(".")
    value: Any = importlib.import_module(dotted)
    for part in parts:
        dotted = f"{dotted}.{part}"
        value = getattr(value, part) if hasattr(value, part) else importlib.import_module(dotted)
    return value


def only_looked_up(block: Block) -> bool:
    return bool(prepared.entry_of(block, prepared.NOT_RUN)) or lacks_a_module(block)


def lacks_a_module(block: Block) -> bool:
    used = prepared.entry_of(block, prepared.BEFORE) + block.text
    return any(line in used and not can_import(name) for name, line in prepared.NEEDS.items())


@pytest.mark.usefixtures("table_as_it_was")
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=_OF_SLOW if page in prepared.SLOW else ()) for page in PAGES]
)
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in _blocks_of(page):
        if only_looked_up(block):
            if not lacks_a_module(block):
                exec(prepared.entry_of(block, prepared.BEFORE), names)
            for name in names_of_pseudograd(block.text):
                look_up(name)
        else:
            run(block, names)
    names.clear()
    gc.collect()  # what warns when it is forgotten does it here, not in the next test


def test_every_exception_is_of_one_block() -> None:
    for table in (prepared.BEFORE, prepared.AFTER, prepared.NOT_RUN):
        for page, line in table:
            assert len([block for block in PYTHON if block.page == page and line in block.text]) == 1, (page, line)
    assert set(prepared.SLOW) <= set(PAGES)
