"""No block is without somebody who checks it, and settings have their format."""

import json

import pytest

from pseudograd_notices.settings import Settings

from .blocks import BLOCKS, ROOT
from .checked import DATA, ELSEWHERE, PYTHON, SHELL, SHOWN, checker


def test_every_block_has_somebody_who_checks_it() -> None:
    unchecked = [f"{block} ({block.language or 'no language'})" for block in BLOCKS if checker(block) is None]
    assert unchecked == [], "tests/pages/checked.py says who checks what"


def test_the_blocks_are_those_of_many_pages() -> None:
    assert len(BLOCKS) > 150
    assert len({block.page for block in BLOCKS}) > 25
    assert len(PYTHON) > 40
    assert len(SHELL) > 10


def test_every_exception_is_needed() -> None:
    shown = {(block.page, block.text.partition("\n")[0]) for block in BLOCKS if block.language == "text"}
    assert set(SHOWN) <= shown
    assert all((ROOT / file).is_file() for file in SHOWN.values())
    assert all(any(block.is_on(pattern) for block in BLOCKS) for pattern in ELSEWHERE)


def test_settings_have_their_format_and_what_they_name_of_ours_is_there() -> None:
    yaml = pytest.importorskip("yaml")
    parsers = {"json": json.loads, "toml": pytest.importorskip("tomllib").loads, "yaml": yaml.safe_load}  # Python 3.11
    settings = [(block, parsers[block.language](block.text)) for block in BLOCKS if block.language in DATA]
    assert all(parsed for _, parsed in settings)
    ours = {hook["id"] for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))}
    hooks = [repo["hooks"] for block, parsed in settings if "hooks:" in block.text for repo in parsed]
    assert hooks
    assert {hook["id"] for several in hooks for hook in several} <= ours
    inputs = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["inputs"]
    jobs = [job for block, parsed in settings if "jobs:" in block.text for job in parsed["jobs"].values()]
    steps = [step for job in jobs for step in job["steps"] if "/pseudograd@" in step.get("uses", "")]
    assert steps
    assert all({"to"} <= step["with"].keys() <= inputs.keys() for step in steps)
    (table,) = [parsed["tool"]["pseudograd"] for block, parsed in settings if "[tool.pseudograd]" in block.text]
    assert table.keys() == {field.replace("_", "-") for field in Settings._fields[1:]}
