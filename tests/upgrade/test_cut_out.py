"""`pseudograd upgrade` cuts the call that differs out of a program: between this torch and a changed one, and two real ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pseudograd.torch_table.eras import installed_era

from ..commands import answer
from .planted import planted
from .test_upgrade import OTHER, needs_other, upgrade

SOFTPLUS = """
import torch.nn.functional as F

@replaced(F, "softplus")
def softplus(known, x, *args, **kwargs):
    y = known(x, *args, **kwargs)
    if y.requires_grad:
        y.register_hook(lambda grad: torch.where(x.detach() > 1, grad * 0.5, grad))
    return y
"""
TRAINING = """\
import sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.Softplus(), nn.Linear(32, 4))
optimiser = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(4):
    x = torch.randn(64, 16)
    y = checkpoint(net, x, use_reentrant=False) if "checkpoint" in sys.argv else net(x)
    loss = (y - 1).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""


@pytest.fixture(autouse=True)
def _train(_folder: None) -> None:
    Path("train.py").write_text(TRAINING, encoding="utf-8")


def printed(python: str, program: str) -> str:
    Path("alone.py").write_text(program, encoding="utf-8")
    return subprocess.run([python, "alone.py"], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.program
def test_a_changed_gradient_is_cut_out(capfd: pytest.CaptureFixture[str]) -> None:
    """Through a checkpoint, which calls the function twice."""
    new = planted(SOFTPLUS)
    arguments = ("--cut-out", "alone.txt", "--json", "answer.json", "train.py", "checkpoint")
    status, out, err = upgrade(capfd, *arguments, new=new)
    assert status == 1, out + err
    assert "next: report it upstream, with the program below: SoftplusBackward0 of torch" in out
    cut = json.loads(Path("answer.json").read_text(encoding="utf-8"))["cut"]
    lines = cut["program"].splitlines()
    assert lines[0] == "import torch"
    assert lines[2].startswith("x = torch.tensor(")
    assert lines[3:] == ["y = torch.nn.functional.softplus(x)", "y.backward()", "print(x.grad)"]
    assert [printed(python, cut["program"]) for python in (sys.executable, new)] == cut["prints"]
    old, changed = (float(text.removeprefix("tensor(").removesuffix(")")) for text in cut["prints"])
    assert changed == pytest.approx(old / 2, rel=1e-3)
    assert Path("alone.txt").read_text(encoding="utf-8").startswith(cut["program"])
    for line in lines:
        assert f"  {line}".rstrip() in out


@pytest.mark.program
def test_what_comes_with_the_arguments_is_not_blamed_on_the_op(capfd: pytest.CaptureFixture[str]) -> None:
    """Code of the program that no mode hears changes what the op gets."""
    is_new = 'os.environ.get("ATEN_CPU_CAPABILITY") is None and os.path.exists("ran")'
    head = f'import os\nNEW = {is_new}\nopen("ran", "a").close()\n'
    middle = "h = net[0](x)\n    h.detach().numpy()[:] *= 0.5 if NEW else 0.6\n    y = net[2](torch.exp(h))"
    line = next(line for line in TRAINING.splitlines() if "y = " in line).strip()
    Path("train.py").write_text(head + TRAINING.replace(line, middle), encoding="utf-8")
    status, out, err = upgrade(capfd, "--cut-out", "alone.txt", "train.py")
    assert status == 1, out + err
    assert "not cut out: with the same arguments, the call alone gives the same under both" in out
    assert "next: look at what reaches train.py:" in out
    assert "report it upstream" not in out
    assert not Path("alone.txt").exists()


def test_between_routes_nothing_is_cut_out(capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = answer(capfd, "upgrade", "--routes", "eager,inductor", "--cut-out", "alone.txt", "train.py")
    assert (status, out) == (2, "")
    assert "--routes must not come with --cut-out" in err


@needs_other
def test_two_real_torches(capfd: pytest.CaptureFixture[str]) -> None:
    lines = TRAINING.replace("net(x)\n", "net(x).clamp(0, 6)\n")
    zeros = "for one in net[2].parameters(): torch.nn.init.zeros_(one)"
    Path("train.py").write_text(lines.replace("for _ in", f"{zeros}\nfor _ in"), encoding="utf-8")
    status, out, err = upgrade(capfd, "--json", "answer.json", "train.py", new=OTHER)
    assert status == 1, out + err
    cut = json.loads(Path("answer.json").read_text(encoding="utf-8"))["cut"]
    old, new = ("tensor(1.)", "tensor(0.)") if installed_era() == "torch<=2.13" else ("tensor(0.)", "tensor(1.)")
    assert cut["prints"] == [old, new]
