"""The harness of benchmarks/speed.py and report.py: it measures what it says, judges rightly, and draws without measuring."""

from __future__ import annotations

import importlib
import importlib.util
import json
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import pseudograd as pg

from .benchmark_results import invented
from .kernels.ways import needs_native

ROOT = Path(__file__).resolve().parents[1]
TINY = ("--rounds", "2", "--seconds", "0")


@pytest.fixture(scope="module")
def suite() -> Iterator[Any]:
    """The modules of benchmarks, as its scripts see them."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    names = (
        "cases",
        "routes",
        "promises",
        "measure",
        "network",
        "machine",
        "results",
        "figures",
        "page",
        "names_and_colours",
    )
    found = {name: importlib.import_module(f"suite.{name}") for name in names}
    yield SimpleNamespace(**found, **{name: importlib.import_module(name) for name in ("speed", "report", "options")})
    sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture
def results(suite: Any, tmp_path: Path) -> Path:
    """A file with invented numbers for a full run."""
    questions, promised = suite.cases.QUESTIONS.values(), suite.promises.promises(native_kernels=True)
    path = tmp_path / "results.json"
    path.write_text(json.dumps(invented(suite.cases.plan, suite.promises.judge, questions, promised)))
    return path


# --- a run ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_tiny_run_writes_what_it_found(suite: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "speed.json"
    chosen = "--questions", "size,data,bounds per channel,bounds of full size,lower bound,relu,in place,gelu"
    assert suite.speed.main([*chosen, "--sizes", "10,1e3", "--threads", "1", *TINY, "--json", str(file)]) == 0
    stored = json.loads(file.read_text())
    assert set(stored) == {
        *("when", "selection", "rounds", "machine", "peers", "missing", "cases", "promises"),
    }
    assert (stored["selection"], stored["rounds"]) == ("some", 2)
    run = suite.results.read(file)
    assert len(run.cases) == 18
    assert {case.size for case in run.cases} == {10, 1000}
    native = run.cases[suite.cases.Case("clamp", 1000)]["native"]
    assert set(native) == {"microseconds", "quartiles", "over", "saved_bytes"}
    assert native["saved_bytes"] == 4000
    assert set(native["over"]) == {"floor", "snippet"}
    shown = capsys.readouterr().out
    assert "clamp, 1,000 elements, sorted\n" in shown
    assert all(f"  left out      {name} ({why})" in shown for name, why in run.missing.items())


@pytest.mark.slow
def test_dtype_and_threads_replace_those_of_the_questions(suite: Any, tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    options = "--questions", "layout", "--sizes", "100", "--dtype", "bfloat16", "--threads", "2"
    before = torch.get_num_threads()
    suite.speed.main([*options, *TINY, "--json", str(file)])
    assert torch.get_num_threads() == before
    cases = suite.results.read(file).cases
    assert {(case.dtype, case.threads, case.size) for case in cases} == {("bfloat16", 2, 100)}
    assert {case.layout for case in cases} == {"channels_last", "transposed", "every second column"}
    assert all(routes["native"]["saved_bytes"] <= 400 for routes in cases.values())


def test_a_broken_promise_is_status_1_with_check_alone(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = suite.cases.Case("clamp", 10)
    options = ["--questions", "size", "--sizes", "10", "--threads", "1", *TINY]
    for limit, status in ((1e-9, 1), (1e9, 0)):
        broken = suite.promises.Promise(case, "inward", "native", limit)
        monkeypatch.setattr(suite.speed, "promises", lambda broken=broken, **_: (broken,))
        assert suite.speed.main([*options, "--check"]) == status
        assert suite.speed.main(options) == 0


def test_quick_measures_what_promises_name_and_nothing_else(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[Any, tuple[str, ...]] = {}

    def measured(case: Any, routes: tuple[str, ...], _: Any) -> tuple[Any, dict[str, str]]:
        asked[case] = routes
        return {}, {}

    monkeypatch.setattr(suite.speed, "_of_case", measured)
    assert suite.speed.main(["--quick", "--check"]) == 0
    promised = suite.promises.promises(native_kernels=False)
    assert set(asked) == {promise.case for promise in promised}
    assert asked[suite.cases.Case("clamp", 1_000_000)] == (
        *("inward", "floor", "native", "snippet"),
        *("inward, compiled", "formula, compiled", "snippet, compiled"),
    )


def test_a_full_run_is_kept_where_the_page_looks_for_it(
    suite: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(suite.speed, "_of_case", lambda *_: ({}, {}))
    monkeypatch.setattr(suite.speed, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(suite.results, "FOLDER", tmp_path / "results")
    suite.speed.main([])
    kept = suite.results.newest()
    assert kept is not None
    assert suite.results.read(kept).selection == "full"
    assert suite.speed.RESULTS.parent == tmp_path


# --- what is measured -------------------------------------------------------------------------------------------------


def test_every_route_of_a_clamp_computes_a_clamp(suite: Any) -> None:
    """And those of the one-sided rule its gradient; the floor copies."""
    work = suite.cases.workload(suite.cases.Case("clamp", 200))
    ours = torch.autograd.grad(pg.clamp(work.x, -1, 1), work.x, work.grad)[0]
    forwards, _ = suite.measure._ready(
        work, ("floor", "native", "hardtanh", "snippet", "inward", "zero/open", "brevitas")
    )
    for name, forward in forwards.items():
        expected = work.x if name == "floor" else torch.clamp(work.x, -1, 1)
        assert torch.equal(forward(), expected), name
        if name in ("snippet", "inward"):
            assert torch.equal(torch.autograd.grad(forward(), work.x, work.grad)[0], ours)
    formula = torch.autograd.grad(suite.routes._Formula.apply(work.x, -1.0, 1.0), work.x, work.grad)[0]
    assert torch.equal(formula, ours)
    assert 0.4 < float((work.x.abs() > 1).float().mean()) < 0.6


@pytest.mark.parametrize(
    "op", ["lower_bound", "relu", "clamp_", "clamp, bounds per channel", "clamp, bounds of full size"]
)
def test_routes_of_an_op_agree(suite: Any, op: str) -> None:
    work = suite.cases.workload(suite.cases.Case(op, 640))
    names = tuple(name for name in suite.routes.ROUTES[op] if name != "floor")
    forwards, _ = suite.measure._ready(work, names)
    assert {"native", "inward"} <= set(forwards)
    for name, forward in forwards.items():
        assert torch.equal(forward(), forwards["native"]()), name


@pytest.mark.parametrize("data", ["random", "sorted", "unclipped"])
def test_data(suite: Any, data: str) -> None:
    x = suite.cases.workload(suite.cases.Case("clamp", 1000, data=data)).x.detach()
    assert bool((x.diff() >= 0).all()) == (data == "sorted")
    assert bool((x.abs() <= 1).all()) == (data == "unclipped")


@pytest.mark.parametrize("size", [1, 10, 1000])
def test_layouts(suite: Any, size: int) -> None:
    """A leaf that lies in memory as it says, and a gradient that lies there as the output does."""
    strided: dict[str, Tensor] = {}
    for layout in ("contiguous", "channels_last", "transposed", "every second column"):
        work = suite.cases.workload(suite.cases.Case("clamp", size, layout=layout))
        strided[layout] = work.x
        assert work.x.is_leaf
        assert work.x.requires_grad
        assert size / 2 < work.x.numel() <= size or size == 1
        assert work.grad.stride() == torch.clamp(work.x, -1, 1).stride()
    assert strided["channels_last"].is_contiguous(memory_format=torch.channels_last)
    if size == 1000:
        assert not strided["transposed"].is_contiguous()
        assert strided["transposed"].t().is_contiguous()
        assert strided["every second column"].stride(1) == 2


def test_what_is_kept_is_counted_once(suite: Any) -> None:
    x = torch.ones(100, requires_grad=True)
    weight = torch.ones(100, requires_grad=True)
    assert suite.measure.saved_bytes(lambda: x * weight * weight) == 1200  # x, weight twice, and their product
    assert suite.measure.saved_bytes(lambda: x * weight * weight, exists=(x, weight)) == 400
    assert suite.measure.saved_bytes(lambda: x + weight) == 0


def test_a_network_keeps_what_its_activations_need(suite: Any) -> None:
    names = ("no activation", "relu", "native", "inward")
    found = suite.network.measure_network(names, side=8, layers=3)
    activation = 4 * 32 * 8 * 8 * 4
    kept = {name: of["saved_bytes"] / activation for name, of in found.items()}
    assert (kept["no activation"], kept["relu"], kept["native"]) == (2, 3, 5)
    assert kept["inward"] <= 5


def test_allocations_are_counted_for_each_call(suite: Any) -> None:
    x = torch.ones(1000)
    found = suite.measure.allocations({"two": lambda: (x + 1) * 2, "none": lambda: x.add_(1), "one": lambda: x.clone()})
    assert found == {"two": (2, 8000), "none": (0, 0), "one": (1, 4000)}


def test_a_library_that_is_not_installed_is_left_out_and_named(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    monkeypatch.setitem(sys.modules, "brevitas.function.ops", None)
    routes = suite.routes
    _, missing = suite.measure._ready(suite.cases.workload(suite.cases.Case("lower_bound", 10)), ("compressai",))
    assert missing == {"compressai": "compressai is not installed"}
    _, missing = suite.measure._ready(suite.cases.workload(suite.cases.Case("clamp", 10)), ("brevitas",))
    assert missing["brevitas"].startswith("brevitas: ")
    assert routes.peers() == {}


def test_without_a_few_bit_gelu_its_row_is_left_out(suite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    work = suite.cases.workload(suite.cases.Case("gelu, backward", 10))
    monkeypatch.delattr(pg, "gelu", raising=False)
    assert suite.measure._ready(work, ("fewbit",))[1] == {"fewbit": "this pseudograd has no gelu"}
    monkeypatch.setattr(pg, "gelu", lambda x, rule: x * 2.0, raising=False)
    assert set(suite.measure._ready(work, ("fewbit",))[0]) == {"fewbit"}

    def without_rule(x: Tensor, rule: str) -> Tensor:
        raise ValueError("gelu: rule must be one of none")

    monkeypatch.setattr(pg, "gelu", without_rule)
    assert "no rule fewbit" in suite.measure._ready(work, ("fewbit",))[1]["fewbit"]


@pytest.mark.slow
def test_compiled_routes_have_the_eager_gradient(suite: Any) -> None:
    work = suite.cases.workload(suite.cases.Case("clamp", 100))
    names = tuple(name for name in suite.routes.ROUTES["clamp"] if name.endswith("compiled"))
    forwards, missing = suite.measure._ready(work, names)
    assert set(forwards) | set(missing) == set(names)
    for name, forward in forwards.items():
        function = torch.clamp if name.startswith("native") else pg.clamp
        expected = torch.autograd.grad(function(work.x, -1, 1), work.x, work.grad)[0]
        assert torch.equal(torch.autograd.grad(forward(), work.x, work.grad)[0], expected), name


def test_the_machine_is_described_without_names_of_its_own(suite: Any) -> None:
    machine = suite.machine.describe()
    assert machine["torch"] == torch.__version__
    assert machine["cpu"]
    assert "native" in machine["kernels"]
    assert platform.node() not in json.dumps(machine)
    assert len(suite.machine.in_words(machine)) == 3


# --- promises ---------------------------------------------------------------------------------------------------------


def test_every_promise_names_a_case_and_routes_that_a_full_run_measures(suite: Any) -> None:
    everything = suite.cases.plan(suite.cases.QUESTIONS.values())
    promised = suite.promises.promises(native_kernels=True)
    for case, routes in suite.promises.needed(promised).items():
        assert set(routes) <= set(everything[case]), case
    assert len({(one.case, one.route, one.against, one.quantity) for one in promised}) == len(promised)


def test_every_route_of_a_question_is_there(suite: Any) -> None:
    for question in suite.cases.QUESTIONS.values():
        known = {
            "network": suite.network.ACTIVATIONS,
            "import": {"pseudograd"},
            **suite.routes.ROUTES,
        }[question.op]
        assert set(question.routes) <= set(known), question.name


def test_promises_are_judged(suite: Any) -> None:
    case = suite.cases.Case("clamp", 100)
    found = {case: {"inward": {"microseconds": 5.0, "over": {"native": 0.4}, "saved_bytes": 25}}}
    found[suite.cases.Case("network")] = {"inward": {"saved_bytes": 3 * 2**20}}

    def holds(*what: Any, of: Any = case) -> bool | None:
        (verdict,) = suite.promises.judge(found, [suite.promises.Promise(of, *what)])
        return verdict.holds

    assert holds("inward", "native", 0.4) is True
    assert holds("inward", "native", 0.39) is False
    assert holds("inward", "snippet", 0.4) is None
    assert holds("sign", "native", 0.4) is None
    assert holds("inward", None, 0.25, "bytes per element") is True
    assert holds("inward", None, 0.24, "bytes per element") is False
    assert holds("inward", None, 3, "MiB", of=suite.cases.Case("network")) is True
    assert holds("inward", None, 2.9, "MiB", of=suite.cases.Case("network")) is False
    assert holds("inward", None, 2.9, "MiB", of=suite.cases.Case("import")) is None


def test_a_verdict_says_its_case_and_what_was_found(suite: Any) -> None:
    promise = suite.promises.Promise(suite.cases.Case("clamp", 1000, threads=2), "inward", "native", 1.3)
    says = "clamp, 1,000 elements, 2 threads: inward at most 1.3 x native"
    assert str(suite.promises.Verdict(promise, 1.4)).split(maxsplit=1) == ["FAILS", f"{says}: 1.400"]
    assert str(suite.promises.Verdict(promise, 1.3)).split(maxsplit=1) == ["holds", f"{says}: 1.300"]
    assert str(suite.promises.Verdict(promise, None)).strip() == f"not measured  {says}"


# --- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.program
def test_a_results_file_is_drawn_without_measuring(
    suite: Any, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(suite.measure, "_times", None)
    readme = (ROOT / "README.md").read_bytes()
    assert suite.report.main([str(results), "--folder", str(tmp_path / "drawn")]) == 0
    assert {path.name for path in (tmp_path / "drawn").iterdir()} == {"speed.md", *suite.figures.FIGURES}
    page = (tmp_path / "drawn" / "speed.md").read_text(encoding="utf-8")
    assert page == suite.page.text(suite.results.read(results))
    assert (ROOT / "README.md").read_bytes() == readme


def test_the_page_says_what_the_file_says(suite: Any, results: Path) -> None:
    run = suite.results.read(results)
    text = suite.page.text(run)
    assert "| sorted | 1,000,000 | 919 | 2,423 (2.64) |" in text
    assert "- Invented CPU, 2 cores (AVX512), 24 GiB, Invented OS" in text
    assert "| MiB kept for backward | 198.0 | 216.0 | 414.0 | 414.0 | 414.0 | 211.5 | 414.0 |" in text
    (row,) = [line for line in text.splitlines() if "0.38 x torch.clamp" in line]
    assert row == "| pg.clamp, inward | 0.38 x torch.clamp | 1e7 elements | 0.412, 1e7 elements | **FAILS** |"
    assert all(f"]({name})" in text for name in suite.figures.FIGURES)
    assert "\n\n\n" not in text


def test_the_docs_are_held_against_the_newest_results(
    suite: Any, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As generate_docs.py does it: what is kept decides, and another page differs."""
    monkeypatch.setattr(suite.results, "FOLDER", tmp_path / "kept")
    assert suite.report.pages() == {}
    assert suite.report.part() == suite.page.NOT_MEASURED
    (tmp_path / "kept").mkdir()
    older = json.loads(results.read_text()) | {"when": "2020-01-01T00:00:00+00:00", "rounds": 7}
    (tmp_path / "kept" / "a.json").write_text(results.read_text())
    (tmp_path / "kept" / "b.json").write_text(json.dumps(older))
    ((path, text),) = suite.report.pages().items()
    assert path == ROOT / "docs" / "speed.md"
    assert "31 rounds" in text
    assert {path.name for path in suite.report.pictures()} == set(suite.figures.FIGURES)
    image, sentence = suite.report.part().splitlines()
    assert image.endswith("(docs/speed.png)")
    assert "0.17 × the time of torch.clamp" in sentence
    assert (
        "keeps 212 MiB for backward with it, 414 with torch.clamp. Of 85 measured cases that have a promised"
        in sentence
    )


def test_the_part_of_the_readme_is_replaced(suite: Any) -> None:
    text = "a\n<!-- speed: generated -->\nold\nold\n<!-- end -->\nb\n<!-- other: generated -->\nc\n<!-- end -->\n"
    assert suite.report._with_part(text, "new") == text.replace("old\nold", "new")


def test_the_readme_has_the_part(suite: Any) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert suite.report._with_part(readme, suite.report.part()) == readme
    assert suite.report._with_part(readme, "other") != readme


def test_a_quick_run_gives_a_page_with_what_it_has(suite: Any, results: Path) -> None:
    stored = json.loads(results.read_text())
    few = [one for one in stored["cases"] if one["case"]["op"] == "clamp" and one["case"]["size"] == 10]
    stored |= {"selection": "quick", "cases": few, "promises": stored["promises"][:1]}
    results.write_text(json.dumps(stored))
    run = suite.results.read(results)
    assert suite.figures.names(run) == []
    assert "speed.png" not in suite.page.text(run)
    assert suite.page.for_readme(run) == suite.page.NOT_MEASURED


def test_the_bars_of_the_questions_are_the_times_of_the_file(suite: Any, results: Path) -> None:
    pytest.importorskip("matplotlib")
    run = suite.results.read(results)
    figure = suite.figures._questions(run)
    assert "One million elements" in figure.get_suptitle()
    for panel, (title, routes, case) in zip(figure.axes, suite.figures._PANELS, strict=True):
        assert (panel.get_title(loc="left"), panel.get_xlabel()) == (title, "milliseconds")
        assert panel.get_xlim()[0] == 0
        drawn = {
            label.get_text(): (bar.get_width(), label.get_fontweight(), bar.get_facecolor())
            for label, bar in zip(panel.get_yticklabels(), panel.patches, strict=True)
        }
        assert set(drawn) == {suite.names_and_colours.shown(route, case.op) for route in routes}
        for route in routes:
            width, weight, colour = drawn[suite.names_and_colours.shown(route, case.op)]
            assert width == pytest.approx(run.cases[case][route]["microseconds"] / 1000)
            is_grey = colour[0] == colour[1] == colour[2]
            assert (weight, is_grey) == (("bold", False) if route.startswith(suite.figures._OURS) else ("normal", True))


def test_labels_are_pushed_apart_no_further_than_needed(suite: Any) -> None:
    spread = suite.figures.spread
    assert spread([0.1, 0.5, 0.9], 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])
    assert spread([0.5, 0.51, 0.52, 0.9], 0.1) == pytest.approx([0.41, 0.51, 0.61, 0.9])


# --- wrong arguments --------------------------------------------------------------------------------------------------

WRONG = [
    (["--sizes", "ten"], "argument --sizes: must be numbers of elements such as 10,1e5, got 'ten'"),
    (["--sizes", "0"], "argument --sizes: must be numbers of elements such as 10,1e5, got '0'"),
    (["--sizes", "inf"], "argument --sizes: must be numbers"),
    (["--dtype", "float8"], "argument --dtype: invalid choice: 'float8'"),
    (["--threads", "0"], "argument --threads: must be a number of at least 1, got '0'"),
    (["--rounds", "many"], "argument --rounds: must be a number of at least 1, got 'many'"),
    (["--seconds", "nan"], "argument --seconds: must be a number of at least 0, got 'nan'"),
    (["--questions", "size,speed"], "--questions must be some of size, dtype,"),
    (["--quick", "--sizes", "10"], "--quick has a selection of its own"),
    (["--json", "no/such/folder/x.json"], "argument --json: must be a file in an existing folder"),
    (["--bounds", "0,1"], "unrecognized arguments: --bounds 0,1"),
]


@pytest.mark.parametrize(
    ("arguments", "says"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_wrong_arguments_of_speed(
    suite: Any, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _is_told_in_one_line(suite.speed.main, arguments, says, capsys)


def test_wrong_arguments_of_report(
    suite: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.json"
    for text in ("{", "[]", "{}", '{"cases": [{"case": {"colour": 1}, "routes": {}}]}'):
        other.write_text(text)
        _is_told_in_one_line(suite.report.main, [str(other)], "is not a results file of benchmarks/speed.py", capsys)
    _is_told_in_one_line(suite.report.main, [str(tmp_path / "none.json")], "cannot be read", capsys)
    monkeypatch.setattr(suite.results, "FOLDER", tmp_path / "empty")
    _is_told_in_one_line(suite.report.main, [], "there are no results in benchmarks/results yet", capsys)


def _is_told_in_one_line(
    main: Callable[[list[str]], int], arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert says in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.program
@needs_native
@pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="torch's own ops keep other tensors in other versions"
)
def test_what_networks_keep_is_what_the_docs_say(
    suite: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    policy = importlib.import_module("residual_policy")
    monkeypatch.setattr(sys, "argv", ["residual_policy.py", "--check"])
    assert policy.main() == 0
    written = policy.DOCS.read_text().split(policy.BEGIN)[1].split(policy.END)[0].strip()
    assert written in capsys.readouterr().out
    monkeypatch.setattr(policy.bits, "least", 1 << 62)
    assert policy.main() == 1  # who keeps x everywhere breaks the promise
    assert "would do" in capsys.readouterr().out
