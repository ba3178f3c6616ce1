"""The README: its example prints what it says, it stays short, and every figure it shows exists."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_example_prints_what_it_says() -> None:
    found = doctest.testfile(str(README), module_relative=False)
    assert found.attempted >= 6
    assert found.failed == 0


def test_it_is_short_and_its_figures_exist() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    figures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(figures) >= 2
    assert all((README.parent / figure).is_file() for figure in figures)
