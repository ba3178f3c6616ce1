"""Blocks of settings are of their format, and name what is there."""

from __future__ import annotations

import json

import pytest

from .blocks import BLOCKS, ROOT, Block
from .checked import DATA

SETTINGS = [block for block in BLOCKS if block.language in DATA]


def parsed(block: Block) -> object:
    if block.language == "json":
        return json.loads(block.text)
    if block.language == "toml":
        return pytest.importorskip("tomllib").loads(block.text)  # of Python 3.11
    return pytest.importorskip("yaml").safe_load(block.text)


def test_settings_have_their_format() -> None:
    for block in SETTINGS:
        assert parsed(block), block


def test_the_hook_of_pre_commit_is_ours() -> None:
    yaml = pytest.importorskip("yaml")
    ours = {hook["id"] for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))}
    shown = [
        hook["id"] for block in SETTINGS if "hooks:" in block.text for repo in parsed(block) for hook in repo["hooks"]
    ]
    assert shown
    assert set(shown) <= ours


def test_what_is_of_another_format_fails() -> None:
    for language, text in (("json", "{'a': 1}"), ("yaml", "a: [1"), ("toml", "a = ")):
        with pytest.raises(Exception, match=r"."):
            parsed(Block("a page", 1, language, text, False))
