"""The README and the pages beside it: examples print what they say; the README stays short, and what it shows exists."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
ADDING_UP = README.parent / "docs" / "gradients_that_do_not_add_up.md"


@pytest.mark.parametrize(
    ("page", "examples"), [(README, 6), (ADDING_UP, 15)], ids=lambda value: getattr(value, "name", "")
)
def test_the_examples_print_what_they_say(page: Path, examples: int) -> None:
    found = doctest.testfile(str(page), module_relative=False)
    assert found.attempted >= examples
    assert found.failed == 0


def test_it_is_short_and_its_figures_exist() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    figures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(figures) >= 2
    linked = re.findall(r"(?<!!)\[[^\]]+\]\((docs/[^)]+)\)", text)
    assert ADDING_UP.relative_to(README.parent).as_posix() in linked
    assert all((README.parent / name).is_file() for name in [*figures, *linked])
