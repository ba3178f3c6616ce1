"""The command line: exact text for what is asked wrongly, and a small run of each command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pseudograd.cli import main, rules_text
from pseudograd.rule import OPS

RELU = """\
relu: default rule zero, edge open (or closed, half, projected)

  zero
    grad_x outside   0
    saves            x
    linear in grad   yes
    source           the true gradient; torch.clamp
    also called      true gradient, tfc disconnected, clipped straight-through
  identity
    grad_x outside   grad
    saves            nothing
    linear in grad   yes
    source           straight-through estimator (Bengio, Léonard & Courville, 2013)
    also called      straight-through, clamp_ste, preserve-gradient
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_rules_of_one_op(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "rules", "relu")
    assert (code, err) == (0, "")
    assert out.startswith(RELU)
    assert "elastic" not in out


def test_ops_with_one_bound_have_a_block_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """elastic and inverting need two."""
    _, out, _ = run(capsys, "rules")
    heads = [block.split("\n\n")[0] for block in re.split(r"\n\n(?=\w)", out)]
    names = [re.findall(r"^(\w+):", head, re.MULTILINE) for head in heads]
    assert ["clamp", "relu6", "hardtanh"] in names
    assert ["lower_bound", "upper_bound", "relu"] in names
    assert sorted(name for block in names for name in block) == sorted(OPS)


def test_rules_lists_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "rules")
    for op in OPS.values():
        assert re.search(rf"^{op.name}: (default )?rule {op.default_rule}\b", out, re.MULTILINE)
        for rule in op.rules.values():
            assert rule.formula in out
            assert rule.source in out
    assert out == rules_text(list(OPS.values())) + "\n"


WRONG = {
    ("rules", "clmp"): (
        "pseudograd: rules: op must be one of abs, ceil, clamp, clip_grad, fake_quantize, floor, hardtanh, heaviside, lower_bound, relu, "
        "relu6, replace_grad, reverse_grad, round, scale_grad, sign, trunc, upper_bound, "
        "got 'clmp'. Did you mean 'clamp'?\n"
    ),
    ("compare", "--tasks", "canvass"): (
        "pseudograd: compare: task must be one of basin, canvas, curve, retarget, got 'canvass'. Did you mean 'canvas'?\n"
    ),
    ("compare", "--rules", "inward,ste"): (
        "pseudograd: clamp: rule must be one of elastic, identity, inverting, inward, leaky, sign, zero, got 'ste'. "
        "'ste' is 'identity' here.\n"
    ),
    ("compare", "--rules", "zero/opened"): (
        "pseudograd: clamp: edge must be one of closed, half, open, projected, got 'opened'. Did you mean 'open'?\n"
    ),
    (
        "compare",
        "--min",
        "2",
    ): "pseudograd: compare: --min and --max must be finite, --min below --max, got (2.0, 1.0).\n",
    (
        "compare",
        "--max",
        "nan",
    ): "pseudograd: compare: --min and --max must be finite, --min below --max, got (-1.0, nan).\n",
    ("compare", "--loss", "torch"): "pseudograd: compare: --loss must be MODULE:FUNCTION, got 'torch'.\n",
    ("compare", "--loss", "torch:nothing"): (
        "pseudograd: compare: --loss must name a function that can be imported, got 'torch:nothing'. "
        "module 'torch' has no attribute 'nothing'.\n"
    ),
    ("compare", "--loss", "torch:sum"): (
        "pseudograd: compare: --loss must return one number with a gradient for each element, "
        "got a Tensor of torch.float64 and shape ().\n"
    ),
    ("compare", "--out", "/dev/null/report"): (
        "pseudograd: compare: --out must lie where files can be written, got '/dev/null/report'. "
        "Not a directory: choose another folder.\n"
    ),
    ("compare", "--tusks", "canvas"): ("pseudograd: unrecognized arguments: --tusks canvas. See pseudograd --help.\n"),
    ("compare", "--min", "low"): (
        "pseudograd: argument --min: invalid float value: 'low'. See pseudograd compare --help.\n"
    ),
    (): "pseudograd: the following arguments are required: COMMAND. See pseudograd --help.\n",
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_a_wrong_call_gets_one_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *arguments) == (2, "", WRONG[arguments])
    assert list(tmp_path.iterdir()) == []


def test_compare_with_a_loss_of_ones_own(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def cost(y):\n    return (y - 3) ** 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ("--tasks", "basin,curve", "--loss", "mine:cost", "--min", "0", "--max", "4", "--rules", "inward")
    code, out, err = run(capsys, "compare", *arguments)
    assert (code, err) == (0, "")
    assert out.endswith("The report: pseudograd-report/index.html\n")
    stored = json.loads((tmp_path / "pseudograd-report" / "results.json").read_text(encoding="utf-8"))
    basin = stored["tasks"]["basin"]["worlds"]["mine:cost"]
    assert set(basin) == {"zero/closed", "zero/open", "inward", "torch.clamp", "no clamp", "project"}
    assert basin["inward"]["reached"] == 400
    assert stored["tasks"]["basin"]["settings"]["best"] == pytest.approx(3, abs=1e-3)
