"""The site: what its pages take from the code, and that nothing public is missing. `make docs` builds it with warnings as errors."""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import pseudograd as pg
from pseudograd.rule import OPS

DOCS = Path(__file__).resolve().parents[1] / "docs"
REFERENCE = "\n".join(
    page.read_text(encoding="utf-8") for page in (DOCS / "reference.md", *(DOCS / "ops").glob("*.md"))
)


def test_every_public_name_has_its_place_in_the_reference() -> None:
    shown = set(re.findall(r"^\.\. auto(?:function|class|module):: pseudograd\.(\S+)$", REFERENCE, flags=re.M))
    assert {name for name in pg.__all__ if not name.startswith("__")} <= shown
    assert "testing" in shown


@pytest.fixture(scope="module")
def docstrings() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        return importlib.import_module("docstrings")


def test_seven_parts_become_seven_fields(docstrings: Any) -> None:
    lines = inspect.cleandoc(pg.clamp.__doc__ or "").split("\n")
    text = "\n".join(docstrings.as_rst(lines))
    assert text.startswith("Clamp ``x``. Outside the bounds")
    assert re.findall(r"^:(\w+):", text, flags=re.M) == [
        "Forward",
        "Backward",
        "Arguments",
        "Returns",
        "Raises",
        "Example",
        "Source",
    ]
    assert "    * **min, max** – in the unit of x; number, tensor" in text
    assert "        tensor([0., 1., 1.])" in text
    assert ":py:obj:`torch.clamp`\\ (x, min, max), bit for bit." in text
    assert "(:doc:`/memory`)" in text


def test_a_notebook_is_a_page_with_its_text_code_and_output(docstrings: Any) -> None:
    pages = {name: docstrings._read_root(file) for name, file in docstrings._OF_THE_ROOT.items() if "/" in name}
    assert {page.stem for page in (DOCS.parent / "examples").glob("*.ipynb")} == {
        name.rpartition("/")[2] for name in pages
    }
    for name, text in pages.items():
        assert text.startswith("# ")
        assert "\n```python\n" in text
        assert "\n```text\n" in text
        assert f"](../../examples/{name.rpartition('/')[2]}.ipynb)" in (DOCS / f"{name}.md").read_text(encoding="utf-8")
        assert f"\n{name}\n" in (DOCS / "index.md").read_text(encoding="utf-8")
        assert f"]({name}.md)" in docstrings._read_root("README.md")
    assert "](data:image/png;base64," in pages["notebooks/analysis_of_clamp_with_grad"]


def test_the_gallery_shows_every_op_with_a_field_and_a_picture(script: Any) -> None:
    page = script("gallery_page")
    text = page.text()
    assert page.PAGE.read_text(encoding="utf-8") == text, "run scripts/generate_docs.py"
    cards_of_page = re.findall(r":::\{grid-item-card\} ([\w, ]+)\n.*?:class-item: ([^\n]*)\n", text, flags=re.S)
    assert {op for names, _ in cards_of_page for op in names.split(", ")} == {*OPS, "vector_quantize"}
    cards = {names.partition(",")[0]: classes for names, classes in cards_of_page}
    fields = {f"is-{name}" for name in page.FIELDS}
    for name, classes in cards.items():
        assert fields & set(classes.split()), f"{name} belongs to no field"
        assert (DOCS / "ops" / f"{name}.svg").is_file()
    assert all((DOCS / f"{page}.md").is_file() for page in re.findall(r"^:link: (.*)$", text, flags=re.M))
    assert "is-linear" not in cards["clamp"]
    assert "is-linear" in cards["round"]
    assert "is-bits" in cards["clamp"]
    assert "is-bits" not in cards["replace_grad"]


@pytest.mark.parametrize("name", ["playground.html", "kinks_table.html"])
def test_a_page_without_the_theme_leads_back_to_the_site(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    pages = {*re.findall(r'href="([\w/]+)\.html"', text), *re.findall(r'"page":"([\w/]+)\.html"', text)}
    assert "index" in pages
    assert [page for page in pages if not (DOCS / f"{page}.md").is_file()] == []


def test_the_inventory_knows_what_docstrings_name(script: Any, docstrings: Any) -> None:
    inventory = script("torch_inventory")
    assert inventory.FILE.read_bytes() == inventory.content(), "run scripts/torch_inventory.py"
    assert {"torch.clamp", "torch.Tensor", "torch.nn.functional.hardtanh"} <= docstrings.TORCHS
    assert "torch.float32" not in docstrings.TORCHS
