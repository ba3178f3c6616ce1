"""The pages of the ops: what the table says, links that lead somewhere, and a picture."""

import re
from pathlib import Path
from typing import Any

import pytest

from pseudograd.public_names import public_path
from pseudograd.rule import OPS

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "ops"


@pytest.fixture(scope="module")
def op_pages(script: Any) -> Any:
    return script("op_pages")


def test_pages_are_what_the_table_says_today(op_pages: Any, script: Any) -> None:
    docs = script("generate_docs")
    for path in op_pages.pages():
        text = path.read_text(encoding="utf-8")
        assert docs._fill(text) == text, f"run scripts/generate_docs.py: {path.name}"
    pictures = {*op_pages.pictures(), FOLDER / "vector_quantize.svg"}
    assert {*FOLDER.iterdir()} == {*op_pages.pages(), *pictures}


def test_a_page_has_every_op_rule_and_edge(op_pages: Any) -> None:
    for name, ops in op_pages.families().items():
        text = (FOLDER / f"{op_pages.page_of(name)}.md").read_text(encoding="utf-8")
        if name == "fake_quantize":
            text += (FOLDER / "clamp.md").read_text(encoding="utf-8")  # which has its rules and edges
            assert {rule.formula for rule in ops[0].rules.values()} == {
                rule.formula for rule in OPS["clamp"].rules.values()
            }
        rows = [line.replace("\\|", "|") for line in text.splitlines() if line.startswith("| ")]
        for rule in (rule for op in ops for rule in op.rules.values()):
            row = next(row for row in rows if rule.formula in row and re.search(rf"\| `{rule.name}[(`]", row))
            assert rule.source in row
            if rule.ignores_edge and "closed" in ops[0].edges and name != "policy_loss":
                assert re.search(rf"`{rule.name}`.* ignore the edge", text)
        assert all(f"`{edge}`" in text for op in ops for edge in op.edges)
        documented = re.findall(r"^\.\. auto\w+:: pseudograd\.(\S+)$", text, re.M)
        for path in (public_path(op.name) for op in ops):
            assert path in documented or path.partition(".")[0] in documented


def test_every_page_begins_with_a_picture_and_a_call_and_has_an_example_in_a_network(op_pages: Any) -> None:
    for page in op_pages.pages():
        head, *others = page.read_text(encoding="utf-8").split("\n## ")
        assert ">>>" in head
        assert "![" in head or page.name == "gradients.md"  # whose ops have a picture each
        assert re.search(r"torch\.nn\.|\]\(\.\./(tutorials/|policy_clips\.md#)", "".join(others)), page.name


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
