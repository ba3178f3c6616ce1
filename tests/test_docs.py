"""The pages of the ops: one for each, with what the table says, links that lead somewhere, and a picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pseudograd.rule import OPS

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "ops"


@pytest.fixture(scope="module")
def op_pages(script: Any) -> Any:
    return script("op_pages")


def test_pages_are_what_the_table_says_today(op_pages: Any) -> None:
    pages = op_pages.pages()
    assert {path.stem for path in pages} == {*OPS, "vector_quantize", "README"}
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"run scripts/generate_docs.py: {path.name}"
    assert {path.name for path in FOLDER.iterdir()} == {path.name for path in [*pages, *op_pages.pictures()]}


@pytest.mark.parametrize("name", OPS)
def test_a_page_has_every_rule_edge_and_link(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    op = OPS[name]
    rows = [re.sub(r"\\\|", "|", line) for line in text.splitlines() if line.startswith("| ")]
    for rule in op.rules.values():
        (row,) = [row for row in rows if re.match(rf"\| `{rule.name}[(`]", row)]
        assert rule.formula in row
        assert rule.source in row
    if name != "abs":  # whose edge is a number
        assert sum(row.startswith(tuple(f"| `{edge}`" for edge in op.edges)) for row in rows if op.edges) == len(
            op.edges
        )
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == 3
    assert all((FOLDER / link).is_file() for link in links)
    assert f"pytest -k {name}" in text


def test_a_picture_is_the_same_every_time(op_pages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    drawn = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        monkeypatch.setattr(op_pages, "FOLDER", folder)
        monkeypatch.setattr(op_pages, "OPS", {"abs": OPS["abs"]})
        op_pages.draw()
        drawn.append((folder / "abs.svg").read_bytes())
    assert drawn[0] == drawn[1]
