"""The README stays short, and what it shows exists. Its examples run with those of every page: tests/pages."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def test_it_is_short_and_its_figures_exist() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 90
    figures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(figures) >= 2
    linked = re.findall(r"(?<!!)\[[^\]]+\]\((docs/[^)]+)\)", text)
    assert {"docs/start/picture.md", "docs/start/upgrade.md", "docs/start/rules.md", "docs/limits.md"} <= set(linked)
    assert all((README.parent / name).is_file() for name in [*figures, *linked])
