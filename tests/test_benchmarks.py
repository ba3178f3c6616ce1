"""benchmarks/: what is measured is what its page says, promises are judged rightly, and a page is drawn without measuring."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pseudograd as pg

from .kernels.ways import needs_native

ROOT = Path(__file__).resolve().parents[1]
KEPT = sorted((ROOT / "benchmarks" / "results").glob("*.json"))[-1]


@pytest.fixture(scope="module")
def suite() -> Iterator[Any]:
    """The modules of benchmarks, as its scripts see them."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    names = ("cases", "routes", "promises", "measure", "results", "figures", "page", "names")
    modules = {name: importlib.import_module(f"suite.{name}") for name in names}
    scripts = {name: importlib.import_module(name) for name in ("speed", "report", "harness", "residual_policy")}
    yield SimpleNamespace(**modules, **scripts)
    sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture
def newest_run(suite: Any) -> Any:
    """The run that the page of the docs is made of."""
    return suite.results.load_run(KEPT)


@pytest.mark.parametrize(
    "op", ["clamp", "lower_bound", "relu", "clamp_", "clamp, bounds per channel", "clamp, bounds of full size"]
)
def test_routes_of_an_op_agree(suite: Any, op: str) -> None:
    work = suite.cases.workload(suite.cases.Case(op, 640))
    names = tuple(name for name in suite.routes.ROUTES[op] if not name.endswith("compiled") and name != "floor")
    forwards, _ = suite.measure.prepare(work, names)
    assert {"native", "inward"} <= set(forwards)
    for name, forward in forwards.items():
        assert torch.equal(forward(), forwards["native"]()), name
    if op == "clamp":
        ours = torch.autograd.grad(pg.clamp(work.x, -1, 1), work.x, work.grad)[0]
        for f in (forwards["inward"], forwards["snippet"], lambda: suite.routes._Formula.apply(work.x, -1.0, 1.0)):
            assert torch.equal(torch.autograd.grad(f(), work.x, work.grad)[0], ours)
        assert 0.4 < float((work.x.abs() > 1).float().mean()) < 0.6


def test_the_page_and_the_readme_say_what_the_newest_results_say(suite: Any, newest_run: Any, monkeypatch: Any) -> None:
    text = suite.page.text(newest_run)
    assert (ROOT / "docs" / "speed.md").read_text(encoding="utf-8") == text
    million = newest_run.cases[suite.cases.Case("relu", 1_000_000)]["inward"]
    assert f"{million['microseconds']:,.0f} ({million['over']['floor']:.2f})" in text
    assert all(f"]({name})" in text for name in suite.figures.ALT_TEXTS)
    assert "\n\n\n" not in text
    assert text.count("**FAILS**") == len(
        {record["limit"] for record in newest_run.promises if record["holds"] is False}
    )
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert suite.report.replace_part(readme, suite.report.part()) == readme
    assert suite.report.replace_part(readme, "other") != readme
    assert {path.name for path in suite.report.pictures()} == set(suite.figures.ALT_TEXTS)
    few = {case: routes for case, routes in newest_run.cases.items() if case.size == 10}
    quick = replace(newest_run, selection="quick", cases=few)
    assert suite.figures.names(quick) == []
    assert "speed.png" not in suite.page.text(quick)
    assert suite.page.readme_part(quick) == suite.page.NOT_MEASURED


@pytest.mark.program
@needs_native
@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="torch's own ops keep other tensors elsewhere")
def test_what_networks_keep_is_what_the_docs_say(suite: Any, capsys: Any, monkeypatch: Any) -> None:
    policy = suite.residual_policy
    monkeypatch.setattr(sys, "argv", ["residual_policy.py", "--check"])
    assert policy.main() == 0
    written = policy.DOCS.read_text().split(policy.BEGIN)[1].split(policy.END)[0].strip()
    assert written in capsys.readouterr().out
    monkeypatch.setattr(policy.bits, "least_elements", 1 << 62)
    assert policy.main() == 1  # who keeps x everywhere breaks the promise
