"""A mutant is one change that parses, and each explanation is of a mutant that exists."""

import ast
from pathlib import Path

import pytest

from ..choices import folded
from .mutants import EXPLAINED, changed_source, mutants_of

SOURCE = Path(__file__).resolve().parents[2] / "src"


def test_every_mutant_changes_one_thing() -> None:
    source = "def f(x, width=1.0):\n    if x > 2 and not x.is_empty:\n        return torch.where(x == 0, x + 1, -x)\n"
    mutants = list(mutants_of("f.py", source))
    assert {f"{mutant.before} -> {mutant.after}" for mutant in mutants} >= {
        "x > 2 -> x >= 2",
        "x == 0 -> x != 0",
        "x + 1 -> x - 1",
        "-x -> x",
        "torch.where(x == 0, x + 1, -x) -> torch.where(x == 0, -x, x + 1)",
        "x > 2 and (not x.is_empty) -> x > 2 or not x.is_empty",
        "2 -> 3",
    }
    for mutant in mutants:
        changed = changed_source(mutant, source)
        assert changed != ast.unparse(ast.parse(source))
        compile(changed, "f.py", "exec")


@folded
@pytest.mark.parametrize("file", sorted({file for file, _, _ in EXPLAINED}))
def test_every_explanation_is_of_a_mutant_that_exists(file: str) -> None:
    keys = {mutant.key for mutant in mutants_of(file, (SOURCE / file).read_text())}
    assert [key for key in EXPLAINED if key[0] == file and key not in keys] == []
