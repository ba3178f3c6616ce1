"""The README stays short, and what it shows exists. Its examples run with those of every page: tests/pages."""

import importlib
import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"


def test_it_is_short_and_its_figures_exist() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 90
    figures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(figures) >= 2
    linked = re.findall(r"(?<!!)\[[^\]]+\]\((docs/[^)]+)\)", text)
    assert {"docs/start/picture.md", "docs/start/upgrade.md", "docs/start/rules.md", "docs/limits.md"} <= set(linked)
    assert all((README.parent / name.partition("#")[0]).is_file() for name in [*figures, *linked])


def test_the_page_of_a_package_index_has_absolute_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(README.parent)
    pytest.importorskip("setuptools")  # brings distutils
    run_setup = importlib.import_module("distutils.core").run_setup
    text = run_setup("setup.py", stop_after="init").metadata.long_description
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) == len(re.findall(r"\]\(([^)\s]+)\)", README.read_text(encoding="utf-8")))
    assert all(link.startswith("https://") for link in links)
