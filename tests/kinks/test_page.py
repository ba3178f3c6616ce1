"""docs/kinks_table.html as a browser shows it, and the texts that the docs make of the table."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pseudograd_kinks.table import load

from ..browser import needs_browser, shown, title_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kinks_table.html"
_COUNT = "document.querySelectorAll('tbody tr:not([hidden])').length"
_WIDEST = "Math.max(...[...document.querySelectorAll('body, body *')].map(e => e.getBoundingClientRect().right))"


@needs_browser
@pytest.mark.program
def test_the_page_filters_and_fits_a_telephone(tmp_path: Path) -> None:
    script = f"""
    const asked = (text, kind, only) => {{
      filter.value = text; family.value = kind; differs.checked = only;
      filter.dispatchEvent(new Event('input')); return {_COUNT};
    }};
    const found = [{_COUNT}, asked('abs@0', '', false), asked('RELU nan', '', false), asked('', 'clamp', false), asked('', '', true),
                   asked('nothing like it', '', false), asked('clamp 2.14', '', true)];
    const hash = location.hash;
    asked('', '', false);
    document.title = JSON.stringify({{found, hash, widest: {_WIDEST}, room: document.documentElement.clientWidth}});
    """
    title = title_of(shown(PAGE, script, tmp_path, "--window-size=400,900"))
    page: dict[str, Any] = json.loads(title)
    points = load().points
    assert page["found"][0] == len(points)
    assert page["found"][1] == 1 + sum("abs@0" in id and id != "abs@0" for id in points)
    assert page["found"][2] == sum("relu" in id and "nan" in id for id in points)
    assert page["found"][3] == sum(point.family == "clamp" for point in points.values())
    assert 100 < page["found"][4] < len(points)
    assert page["found"][5] == 0
    assert 0 < page["found"][6] <= sum(len(point.spans["torch"]) > 1 for point in points.values())
    assert page["hash"] == "#q=clamp+2.14&amp;differs="
    assert page["widest"] <= page["room"] + 1


def test_the_picture_shows_the_tables_numbers(script: Callable[[str], Any]) -> None:
    page = script("kinks_page")
    drawn = page.PICTURE.read_text(encoding="utf-8")
    for id, words in page.COMMON.items():
        assert id in load().points
        assert words in drawn.replace("&gt;", ">").replace("&lt;", "<")


def test_the_page_of_docs_names_what_differs() -> None:
    text = PAGE.with_name("kinks.md").read_text(encoding="utf-8")
    assert "`clamp(round)`. **torch 2.14**: the gradient at a bound that is a number is 0" in text
