"""No block is without somebody who checks it, and blocks are found as Markdown has them."""

from __future__ import annotations

import pytest

from pseudograd.rule import OPS

from .blocks import BLOCKS, ROOT, blocks_of
from .checked import ELSEWHERE, PYTHON, SHELL, SHOWN, checker, is_run_elsewhere


def test_every_block_has_somebody_who_checks_it() -> None:
    unchecked = [f"{block} ({block.language or 'no language'})" for block in BLOCKS if checker(block) is None]
    assert unchecked == [], "tests/pages/checked.py says who checks what"


def test_the_blocks_are_those_of_many_pages() -> None:
    assert len(BLOCKS) > 250
    assert len({block.page for block in BLOCKS}) > 60
    assert len(PYTHON) > 60
    assert len(SHELL) > 15


def test_every_op_has_an_example() -> None:
    examples = [block for block in PYTHON if block.page == "docs/ops/examples.md"]
    assert len(examples) == len(OPS) + 1  # vector_quantize is no row of the table
    assert all(example.text.count(">>>") >= 5 for example in examples)


def test_every_exception_is_needed() -> None:
    shown = {(block.page, block.text.partition("\n")[0]) for block in BLOCKS if block.language == "text"}
    assert set(SHOWN) <= shown
    for pattern in ELSEWHERE:
        assert any(block.is_on(pattern) and is_run_elsewhere(block) for block in BLOCKS), pattern
    for place in SHOWN.values():
        assert (ROOT / place).is_file()


def test_blocks_of_a_text() -> None:
    text = "a\n```python\nx = 1\n\ny = 2\n```\n<!-- n: generated -->\n````sh\n```\n````\n<!-- end -->\n::::{grid} 2\n~~~\n~~~\n::::\n"
    found = [(block.line, block.language, block.text, block.is_generated) for block in blocks_of("a page", text)]
    assert found == [
        (2, "python", "x = 1\n\ny = 2\n", False),
        (8, "sh", "```\n", True),
        (12, "{grid} 2", "", False),
        (13, "", "\n", False),
    ]


def test_a_block_that_nobody_checks_is_told() -> None:
    for opening in ("", "bash", "console", "text", "{code-block} python"):
        (block,) = blocks_of("README.md", f"```{opening}\nx\n```\n")
        assert checker(block) is None, opening


def test_a_block_that_never_ends_is_told() -> None:
    with pytest.raises(AssertionError, match="a page:2: the block never ends"):
        list(blocks_of("a page", "a\n```python\nx\n"))


def test_a_line_changed_in_a_page_that_other_tests_run_is_seen() -> None:
    """A block counts as run elsewhere by its text: one line more than the program that runs, and it does not."""
    for block in BLOCKS:
        if is_run_elsewhere(block) and block.is_on("docs/codes.md", "docs/tutorials/*.md", "docs/upstream/*.md"):
            assert not is_run_elsewhere(block._replace(text=block.text + "x = 1\n"))
