"""`pseudograd kinks`: the table in a terminal, and what is new in the installed torch."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pseudograd.listen.program.signals import Stopped
from pseudograd_kinks import check as checking
from pseudograd_kinks import collect, table
from pseudograd_kinks.measure import measure
from pseudograd_kinks.outcome import Outcome
from pseudograd_kinks.table import FILE

from ..commands import answer as run

TABLE = table.load()


def _planted(id: str, gradient: list[Any]) -> table.Table:
    """The table with another gradient at one point."""
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    (row,) = (row for row in stored["points"] if row["id"] == id)
    for span in row["gradients"]["torch"]:
        span["gradient"] = gradient
    row.pop("exceptions", None)
    return table.parse_table(stored)


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.program)])
def test_the_installed_torch_has_nothing_new(step: int) -> None:
    points = list(TABLE.points.values())[::step]
    checked = checking.check(TABLE, points)
    assert not checked.new, checked
    assert checked.points + len(checked.skipped) == len(points)
    assert str(checked).endswith("nothing new")


def test_a_planted_change_is_found_and_named_and_makes_the_command_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(table, "load", lambda: _planted("abs@0", [[1.0]]))
    file = tmp_path / "found.json"
    status, out, err = run(capsys, "kinks", "abs@0", "relu@0", "--check", "--json", str(file))
    assert (status, err) == (1, "")
    assert "NEW abs@0  eager: 0, in the table 1" in out
    new = json.loads(file.read_text())["new"]
    expected, measured = {"gradient": [[1.0]]}, {"gradient": [[0.0]]}
    assert new[0] == {"id": "abs@0", "route": "eager", "expected": expected, "found": measured}
    assert {row["id"] for row in new} == {"abs@0"}
    assert {row["route"] for row in new} >= {"eager", "vector", "forward", "float64"}


def test_a_check_that_is_stopped_says_what_it_has_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(point: table.Point, route: str, device: str) -> Outcome | None:
        if point.id != "abs@0":
            raise Stopped(signal.SIGTERM)
        return measure(point, route, device)

    monkeypatch.setattr(checking, "measure", stopped)
    status, out, err = run(capsys, "kinks", "abs@0", "abs@nan", "--check")
    assert (status, err) == (143, "pseudograd: stopped by SIGTERM; nothing is left half-written\n")
    assert out.startswith("kinks: stopped after 1 of 2 points\n")
    assert ": 1 points; cpu" in out


def test_a_check_of_one_op_passes(capsys: pytest.CaptureFixture[str]) -> None:
    here = table.dotted(table.parse_version(torch.__version__))
    text = (
        f"torch {torch.__version__} against the table's torch {here}: 3 points; "
        "cpu, eager, vector, forward, float16, bfloat16, float64\nnothing new\n"
    )
    assert run(capsys, "kinks", "relu", "--check") == (0, text, "")


def test_the_table_in_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "kinks", "maximum(x,0)@0", "hardtanh@1")
    assert (status, err) == (0, "")
    assert [line.split() for line in out.splitlines()[1:3]] == [
        ["hardtanh@1", "0", "1", "1"],
        ["maximum(x,0)@0", "0.5", "0.5", "1"],
    ]
    _, out, _ = run(capsys, "kinks", "clamp", "--changed")
    assert "clamp(0,1)@0" in out
    assert "pytorch#191142" in out
    assert "clamp(1,0)@0.5" not in out


WRONG = {
    "abss": "op must be one of ",
    "--family norms": "--family must be one of ",
    "relu --check --device nowhere": "--device must be one that is there, got 'nowhere'. torch says: ",
    "relu --check --backend inductr": "--backend must be one of ",
    "relu --device cpu": "--device must stand with --check, got it alone. Add --check.",
    "relu --check --json /no/such/folder/f": "--json must lie where files can be written",
}


@pytest.mark.parametrize("arguments", WRONG)
def test_what_cannot_be_answered_is_one_line(capsys: pytest.CaptureFixture[str], arguments: str) -> None:
    status, out, err = run(capsys, "kinks", *arguments.split())
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith(f"pseudograd: kinks: {WRONG[arguments]}"), err
    assert len(err) < 600, "a long list of names is cut, so that the hint can be seen"


def _fails(graph: Any, inputs: Any) -> Any:
    raise RuntimeError("this backend compiles nothing\nand says more")


def test_a_backend_that_compiles_nothing_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"^kinks: --backend must compile at least one point, got .* It fails: .*compiles nothing"
    ):
        checking.check(TABLE, [TABLE.points["relu@0"], TABLE.points["abs@0"]], backend=_fails)


def _wrong_at_zero(graph: Any, inputs: Any) -> Any:
    """A backend whose relu passes at 0, and which refuses abs. Two functions with the backward of hardtanh are wrong together."""
    from torch._dynamo.backends.common import aot_autograd

    def compiled(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        aten, targets = torch.ops.aten, [node.target for node in graph.graph.nodes]
        if aten.abs.default in targets:
            raise NotImplementedError("abs is not there")
        wrong = [
            aten.threshold_backward.default,
            *[aten.hardtanh_backward.default] * (targets.count(aten.hardtanh_backward.default) > 1),
        ]
        for node in graph.graph.nodes:
            if node.target in wrong:
                node.target, node.args = aten.mul.Tensor, (node.args[0], 1.0)
        graph.recompile()
        return graph

    return aot_autograd(fw_compiler=compiled, bw_compiler=compiled)(graph, inputs)


def test_a_backend_of_ones_own_is_measured_and_what_it_refuses_is_said() -> None:
    points = [TABLE.points[id] for id in ("relu@0", "relu6@0", "abs@0", "hardtanh@1")]
    checked = checking.check(TABLE, points, backend=_wrong_at_zero)
    assert [(new.id, new.outcome.gradient) for new in checked.new] == [("relu@0", ((1.0,),))]
    assert list(checked.not_compiled) == ["abs@0"]
    assert "abs is not there" in str(checked)
    assert checked.points == 3


def test_a_collection_keeps_the_outcomes_of_other_routes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    points = {id: TABLE.points[id] for id in ("abs@0", "amax@tie")}
    monkeypatch.setattr(collect, "load", lambda: TABLE._replace(points=points))
    file = tmp_path / "result.json"
    for routes in (["float16"], ["vector", "eager"]):
        monkeypatch.setattr(sys, "argv", ["collect", str(file), "--routes", *routes])
        assert collect.main() == 0
    result = json.loads(file.read_text())
    zero, tie = {"gradient": [[0.0]]}, {"gradient": [[0.5, 0.5, 0.0]]}
    outcomes = {"abs@0": {"float16": zero, "vector": zero, "eager": zero}, "amax@tie": {"float16": tie, "eager": tie}}
    here = {"version": torch.__version__, "processor": torch.backends.cpu.get_cpu_capability()}
    assert result == {"routes": ["eager", "vector", "float16"], "outcomes": outcomes, **here}
    file.write_text(json.dumps({**result, "version": "1.0"}))
    assert collect._load_result(file) == {"routes": [], "outcomes": {}, **here}


def test_a_point_that_the_installed_torch_does_not_have_is_skipped_and_said() -> None:
    point = TABLE.points["relu@0"].replaced(id="new@0", expressions={"torch": "torch.no_such_function(x)"})
    checked = checking.check(TABLE, [point])
    assert (checked.points, checked.skipped, checked.new) == (0, ["new@0"], [])
    assert "do not have them: new@0" in str(checked).replace("does not", "do not")


def test_a_kernel_that_treats_equal_entries_unequally_is_an_outcome() -> None:
    point = TABLE.points["relu@0"].replaced(expressions={"torch": "x * torch.arange(x.numel(), device=x.device)"})
    outcome = measure(point, "vector")
    assert outcome == Outcome(error="ArithmeticError: equal entries get 64 gradients in one tensor")
