"""`pseudograd upgrade --routes`: which routes there are, and what differs between eager mode and compilers on small programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from pseudograd.torch_table.eras import installed_version
from pseudograd_upgrade.routes.interpreters import CPU, ENVIRONMENTS

from ..commands import answer

TRAINING = """\
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
        nn.init.zeros_(self.b.weight), nn.init.zeros_(self.b.bias)
    def forward(self, x, y):
        h = F.dropout(F.gelu(self.a(x)), 0.2)
        scores = self.b(h)
        return {loss}

net = Net()
run = {compiled}
optimiser = torch.optim.Adam(net.parameters(), 1e-2)
for _ in range(3):
    x = torch.randn(16, 8)
    loss = run(x, x[:, :4].argmax(1))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
# Both are in the table of kinks, in its table of routes.
KINK = "F.multi_margin_loss(scores, y, margin=0.0)" if installed_version() < (2, 14) else "scores.quantile(0.5)"


def ask(
    capfd: pytest.CaptureFixture[str], routes: str, loss: str, compiled: str = "torch.compile(net)"
) -> tuple[int, str, str]:
    Path("train.py").write_text(TRAINING.format(loss=loss, compiled=compiled), encoding="utf-8")
    return answer(capfd, "upgrade", "--routes", routes, "train.py")


@pytest.mark.program
@pytest.mark.parametrize("compiled", ["torch.compile(net)", "net"])
def test_a_kink_that_a_decomposition_takes_otherwise_is_named_at_its_line(
    capfd: pytest.CaptureFixture[str], compiled: str
) -> None:
    status, out, err = ask(capfd, "eager,aot_eager", KINK, compiled)
    assert status == 1, out + err
    assert ": a kink's convention; " in out.splitlines()[0], out
    assert "train.py:13  step 1, backward of " + ("multi_margin_loss" if "margin" in KINK else "quantile") in out
    assert "this line left out of what is compiled, the losses are equal" in out
    assert "moved off the point" in out
    assert ("the program compiles nothing" in out) == (compiled == "net")


@pytest.mark.program
def test_a_wrong_value_of_a_compiler_is_no_convention(capfd: pytest.CaptureFixture[str]) -> None:
    """exp(200) is infinite: eager mode has inf/inf in the backward, Inductor has not."""
    loss = "F.soft_margin_loss(scores - 200.0, torch.ones_like(scores))"
    status, out, err = ask(capfd, "eager,inductor", loss)
    assert status == 1, out + err
    assert ": another op; " in out.splitlines()[0], out
    assert "train.py:13  step 1, backward of " in out
    assert "this line left out of what is compiled, the losses are equal" in out
    assert "report it upstream: " in out


@pytest.mark.program
def test_inductor_rounds_otherwise_and_draws_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = ask(capfd, "eager,inductor", "F.cross_entropy(torch.tanh(scores + h[:, :4]), y)")
    assert status == 0, out + err
    assert out.splitlines()[0].split(": ")[-1].split(";")[0] in ("nothing differs", "rounding only")


@pytest.mark.program
@pytest.mark.skipif(installed_version() >= (2, 14), reason="there no module of torch has such a kink")
def test_modules_of_torch_and_losses_are_compiled_too(capfd: pytest.CaptureFixture[str]) -> None:
    """No line of the program is in what is compiled: the one that calls it is named."""
    text = """\
import torch
from torch import nn
net = nn.Sequential(nn.Linear(8, 4), nn.Tanh())
nn.init.zeros_(net[0].weight), nn.init.zeros_(net[0].bias)
criterion = nn.MultiMarginLoss(margin=0.0)
optimiser = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(2):
    x = torch.randn(16, 8)
    criterion(net(x), x.argmax(1) % 4).backward()
    optimiser.step()
"""
    Path("own.py").write_text(text, encoding="utf-8")
    status, out, err = answer(capfd, "upgrade", "--routes", "eager,aot_eager", "own.py")
    assert status == 1, out + err
    assert "own.py:9  step 1, backward of multi_margin_loss" in out, out
    assert "this line left out of what is compiled, the losses are equal" in out


def test_a_program_with_nothing_to_compile(capfd: pytest.CaptureFixture[str]) -> None:
    Path("plain.py").write_text(
        "import torch\nx = torch.ones(3, requires_grad=True)\n(x * x).sum().backward()\n", encoding="utf-8"
    )
    status, out, err = answer(capfd, "upgrade", "--routes", "eager,aot_eager", "plain.py")
    assert status == 0, out + err
    assert "nothing of the program was compiled" in out


def test_the_route_cpu_hides_the_accelerators() -> None:
    assert ENVIRONMENTS[CPU]["CUDA_VISIBLE_DEVICES"] == ENVIRONMENTS[CPU]["HIP_VISIBLE_DEVICES"] == "-1"


@pytest.mark.program
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_a_device_that_is_not_there(capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = ask(capfd, "cpu,cuda", KINK)
    assert (status, out) == (2, "")
    assert "upgrade: --routes must name a device that is there, got 'cuda'. Torch 2." in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--routes", "eager,inducter"], "--routes must be one of aot_eager, cpu, cuda, eager, inductor, got 'inducter'."),
        (["--routes", "eager"], "--routes must be two routes that differ, got 'eager'. Write eager,inductor."),
        (["--routes", "eager,eager"], "--routes must be two routes that differ, got 'eager,eager'."),
        (["--routes", ""], "--routes must be two routes that differ, got ''."),
        (["--routes", "eager,cuda"], "--routes must name two devices or two compilers, got 'eager,cuda'."),
        (["--routes", "eager,inductor", "--to", "python"], "--routes must not come with --to, got both."),
        (["--routes", "eager,inductor", "--against", "file"], "--routes must not come with --against, got both."),
        (["--routes", "eager,inductor", "--keep", "file"], "--routes must not come with --keep, got both."),
        (["--routes", "eager,inductor", "--from", "nowhere"], "--from must be an interpreter that can be run, got 'nowhere'."),
    ],
)  # fmt: skip
def test_calls_that_cannot_be_answered(capfd: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    Path("train.py").write_text("pass", encoding="utf-8")
    status, out, err = answer(capfd, "upgrade", *arguments, "train.py")
    assert (status, out) == (2, "")
    assert f"pseudograd: upgrade: {said}" in err
    assert os.listdir() == ["train.py"]


AUTOCAST = """\
import torch
torch.set_num_threads(1)
from torch import nn

net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
run = torch.compile(net)
optimiser = torch.optim.AdamW(net.parameters(), 1e-3)
for _ in range(8):
    with torch.autocast("cpu", torch.bfloat16):
        out = run(torch.randn(64, 32))
    optimiser.zero_grad()
    out.float().square().mean().backward()
    optimiser.step()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("own_process")
def test_a_difference_that_a_compiler_rounds_to_16_bits_is_no_other_op(capfd: pytest.CaptureFixture[str]) -> None:
    """Nor a kink's convention, where one line that is left out rounds as eager mode does: with one thread it is layer_norm."""
    Path("train.py").write_text(AUTOCAST, encoding="utf-8")
    status, out, err = answer(capfd, "upgrade", "--routes", "eager,inductor", "train.py")
    assert status == 1, out + err
    assert ": not known, it computes in 16 bits; " in out
    assert "next: ask again in float32, with autocast off" in out
