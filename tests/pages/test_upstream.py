"""The reports of contributing/upstream.md: with the torch and the packages that are installed, programs print what the page says."""

import importlib.util
import re
import sys
from typing import Any

import pytest
import torch

from .blocks import ROOT

TITLES = re.findall(r"^## (.*)$", (ROOT / "contributing" / "upstream.md").read_text(encoding="utf-8"), re.M)


@pytest.mark.program
@pytest.mark.parametrize("title", TITLES)
def test_a_program_prints_what_its_report_says(title: str, script: Any) -> None:
    upstream = script("check_upstream")
    (report,) = (report for report in upstream.reports() if report.title == title)
    for package in ("snntorch", "torchmetrics", "x_transformers"):
        if package in report.program and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    version = torch.__version__.partition("+")[0]
    row = re.search(rf"^\| {re.escape(version)} \| (.*) \| (.*) \|$", report.section, re.M)
    if row is None:
        pytest.skip(f"the report says nothing of torch {version}")
    assert upstream.printed(sys.executable, report, mended=False) == row[1]
    assert upstream.printed(sys.executable, report, mended=True) == row[2]
