"""The README and the pages beside it: examples print what they say; the README stays short, and what it shows exists."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
ADDING_UP = README.parent / "docs" / "gradients_that_do_not_add_up.md"
OWN_RULE = README.parent / "docs" / "your_own_rule.md"


@pytest.mark.usefixtures("table_as_it_was")
@pytest.mark.parametrize(
    ("page", "examples"), [(README, 3), (ADDING_UP, 15), (OWN_RULE, 9)], ids=lambda value: getattr(value, "name", "")
)
def test_the_examples_print_what_they_say(page: Path, examples: int) -> None:
    found = doctest.testfile(str(page), module_relative=False)
    assert found.attempted >= examples
    assert found.failed == 0


@pytest.mark.parametrize(
    ("name", "examples"), [("override", 6), ("diagnose", 8), ("audit", 6), ("in_your_tools", 7), ("compare", 11)]
)
def test_the_pages_of_docs_print_what_they_say(name: str, examples: int) -> None:
    found = doctest.testfile(str(README.parent / "docs" / f"{name}.md"), module_relative=False)
    assert found.attempted >= examples
    assert found.failed == 0


def test_it_is_short_and_its_figures_exist() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 90
    figures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(figures) >= 2
    linked = re.findall(r"(?<!!)\[[^\]]+\]\((docs/[^)]+)\)", text)
    assert {"docs/start/picture.md", "docs/start/upgrade.md", "docs/start/rules.md", "docs/limits.md"} <= set(linked)
    assert all((README.parent / name).is_file() for name in [*figures, *linked])
