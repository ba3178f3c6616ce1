"""The pages of the ops: what the table says, links that lead somewhere, and a picture."""

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
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"run scripts/generate_docs.py: {path.name}"
    names = {path.name for path in [*pages, *op_pages.pictures()]}
    assert {path.name for path in FOLDER.iterdir()} == names | {*op_pages.BY_HAND}
    assert [op for ops in op_pages.families().values() for op in ops] == sorted(OPS.values(), key=[*OPS.values()].index)


def test_a_page_has_every_op_rule_edge_and_link(op_pages: Any) -> None:
    for name, ops in op_pages.families().items():
        text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
        rows = [line.replace("\\|", "|") for line in text.splitlines() if line.startswith("| ")]
        for rule in (rule for op in ops for rule in op.rules.values()):
            row = next(
                row for row in rows if re.match(rf"\| `{rule.name}[(`]", row)
            )  # an edge may have its name, below
            assert rule.formula in row
            assert rule.source in row
        if name not in ("abs", "policy_loss"):  # whose edges stand in a sentence
            assert all(any(row.startswith(f"| `{edge}`") for row in rows) for op in ops for edge in op.edges)
        links = re.findall(r"\]\(([^)#]+)(?:#(\w+))?\)", text)
        assert all((FOLDER / link).is_file() for link, _ in links)
        assert {anchor for _, anchor in links if anchor} == {op.name for op in ops}


def test_every_op_has_an_example_inside_a_network() -> None:
    headings = re.findall(r"^## (\w+)$", (FOLDER / "examples.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(headings) == {*OPS, "vector_quantize"}


@pytest.mark.program
def test_a_picture_is_the_same_every_time(op_pages: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(op_pages, "OPS", {"abs": OPS["abs"]})
    drawn = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(op_pages, "FOLDER", tmp_path / name)
        op_pages.draw()
        drawn.append((tmp_path / name / "abs.svg").read_bytes())
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    "call", ["clip_grad(x, limit=0.5)", "scale_grad(x, scale=0.25)", "leaky_relu(x, negative_slope=0.1)"]
)
def test_a_picture_of_one_rule_says_what_it_is_drawn_with(call: str) -> None:
    name = call.partition("(")[0]
    assert f">{call}</text>" in (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert f"Above: `{call}`" in (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def test_the_picture_of_the_policies_has_a_title_and_each_line_once_in_its_legend(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure_module = pytest.importorskip("matplotlib.figure")
    page = script("policy_page")
    saved: list[Any] = []
    monkeypatch.setattr(figure_module.Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    page.draw()
    (figure,) = saved
    assert "gradient" in figure.get_suptitle()
    (legend,) = figure.legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown == ["without a clip", "advantage up, A = 1", "advantage down, A = -1", "bounds of the clip"]
