"""Every test here has a folder of its own for the programs that it writes; they run in copies of this process."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_copies: None) -> None:
    monkeypatch.chdir(tmp_path)
