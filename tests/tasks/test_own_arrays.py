"""What a training of the user's returns beside its numbers is in its report."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import pseudograd as pg
from pseudograd_tasks.report.sources import load_results, own_results
from pseudograd_tasks.report.write import write


def test_curves_and_pictures_of_a_run_are_on_the_page_and_drawn_again(tmp_path: Path) -> None:
    def run(step: Any, seed: int) -> dict[str, Any]:
        return {"loss": step(seed), "curve": [1.0, 0.5, step(seed)], "picture": torch.rand(3, 4, 5)}

    found = pg.compare(run, variants={"a": abs, "b": lambda x: 2.0 + x}, seeds=2)
    write(own_results(found), tmp_path / "report")
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "Same training. Same seeds. One function changed." in page
    assert "run was run with each variant" in page
    assert "run: curve of every variant" in page
    assert "run: picture of every variant" in page
    again = load_results(tmp_path / "report")
    assert again.own is not None
    for name, by_variant in found.arrays.items():
        for variant, by_seed in by_variant.items():
            for seed, array in by_seed.items():
                assert torch.equal(again.own.arrays[name][variant][seed], array)
    write(again, tmp_path / "again")
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == sorted(
        path.name for path in (tmp_path / "report").iterdir()
    )


def test_runs_without_a_number_are_counted() -> None:
    def run(clamp: Callable[..., torch.Tensor], seed: int) -> float:
        return math.nan if seed == 1 else float(clamp(torch.tensor(2.0), 0, 1)) + seed

    (section,) = own_results(pg.compare(run, rules=["inward"], seeds=3)).sections.values()
    numbers = section.worlds["result"]["inward"].numbers
    assert (numbers["lost"], numbers["median"]) == (1, 3)  # of 1, 3 and what is worse than any number
