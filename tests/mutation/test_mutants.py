"""Each explanation is of a mutant that exists."""

from pathlib import Path

import pytest

from ..choices import folded
from .mutants import EXPLAINED, mutants_of

SOURCE = Path(__file__).resolve().parents[2] / "src"


@folded
@pytest.mark.parametrize("file", sorted({file for file, _, _ in EXPLAINED}))
def test_every_explanation_is_of_a_mutant_that_exists(file: str) -> None:
    keys = {mutant.key for mutant in mutants_of(file, (SOURCE / file).read_text())}
    assert [key for key in EXPLAINED if key[0] == file and key not in keys] == []
