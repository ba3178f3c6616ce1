"""The reports of docs/upstream/: with the torch and the packages that are installed, programs print what the pages say."""

from __future__ import annotations

import importlib.util
import re
import sys
from typing import Any

import pytest

from .blocks import ROOT

FOLDER = ROOT / "docs" / "upstream"
PAGES = [page.stem for page in sorted(FOLDER.glob("*.md")) if page.stem != "README"]


@pytest.mark.program
@pytest.mark.parametrize("page", PAGES)
def test_a_program_prints_what_its_page_says(page: str, script: Any) -> None:
    upstream = script("check_upstream")
    report = upstream.read_report(FOLDER / f"{page}.md")
    for package in ("snntorch", "torchmetrics", "x_transformers"):
        if package in report.program and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    version = upstream.torch_of(sys.executable)
    row = re.search(rf"^\| {re.escape(version)} \| (.*) \| (.*) \|$", report.page.read_text(encoding="utf-8"), re.M)
    if row is None:
        pytest.skip(f"the page says nothing of torch {version}")
    assert upstream.printed(sys.executable, report, mended=False) == row[1]
    assert upstream.printed(sys.executable, report, mended=True) == row[2]
