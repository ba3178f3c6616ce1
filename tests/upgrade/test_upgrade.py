"""`pseudograd upgrade` on small programs: one interpreter twice, with planted differences, and two real torches where there is another.

PSEUDOGRAD_OTHER_PYTHON names an interpreter with a torch of the other era.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pseudograd.torch_table.eras import era_of, installed_era
from pseudograd_upgrade.following import _plain_arguments

from ..commands import answer

PY = sys.executable
OTHER = os.environ.get("PSEUDOGRAD_OTHER_PYTHON", "")
needs_other = pytest.mark.skipif(not OTHER, reason="PSEUDOGRAD_OTHER_PYTHON names no interpreter with another torch")

TRAINING = """\
import os
import torch
from torch import nn
from torch.nn import functional as F

NEW = os.environ.get("ATEN_CPU_CAPABILITY") is None and os.path.exists("ran")
open("ran", "a").close()
model, head = nn.Linear(8, 16), nn.Linear(16, 4)
parameters = [*model.parameters(), *head.parameters()]  # and no optimiser, whose import takes as long as all else
for _ in range(4):
    x = torch.randn(16, 8)
    h = model(x)
    {middle}
    loss = F.cross_entropy(head(h), x[:, :4].argmax(1))
    loss.backward()
    with torch.no_grad():
        for one in parameters:
            one -= 0.1 * one.grad
            one.grad = None
"""


def program(middle: str) -> str:
    Path("train.py").write_text(TRAINING.format(middle=middle), encoding="utf-8")
    return "train.py"


def upgrade(capfd: pytest.CaptureFixture[str], *arguments: str, new: str = sys.executable) -> tuple[int, str, str]:
    return answer(capfd, "upgrade", "--from", sys.executable, "--to", new, *arguments)


def test_the_same_torch_twice_differs_in_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = upgrade(capfd, "--json", "answer.json", program("h = F.gelu(h)"))
    assert status == 0, out + err
    assert ": nothing differs; 2 runs, 4 backward passes each" in out.splitlines()[0]
    document = json.loads(Path("answer.json").read_text(encoding="utf-8"))
    assert document["survives"]
    assert document["answer"] == "nothing differs"
    assert document["losses"]["old"] == document["losses"]["new"]
    assert len(document["losses"]["old"]) == 4


@pytest.mark.parametrize(
    ("middle", "text"),
    [
        ('h = F.gelu(h, approximate="tanh" if NEW else "none")', "forward of gelu"),
        pytest.param("h = F.gelu(h * (0.5 if NEW else 0.6))", "forward of mul", marks=pytest.mark.program),
    ],
)
def test_planted_differences_are_found_at_their_line(capfd: pytest.CaptureFixture[str], middle: str, text: str) -> None:
    status, out, err = upgrade(capfd, program(middle))
    assert status == 1, out + err
    assert ": another op; " in out.splitlines()[0], out
    assert f"train.py:13  step 1, {text}" in out, out


SCALED = """\
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        return grad * (0.5 if NEW else 0.6)
model, head"""


@pytest.mark.program
@pytest.mark.parametrize(
    "call",
    ["Scaled.apply(h)", *(f"checkpoint(Scaled.apply, h, use_reentrant={on})" for on in (True, False))],
)
def test_what_a_backward_calls_is_heard_in_a_checkpoint_of_either_kind(
    capfd: pytest.CaptureFixture[str], call: str
) -> None:
    name = program(f"h = {call}")
    text = Path(name).read_text(encoding="utf-8").replace("model, head", SCALED, 1)
    Path(name).write_text("from torch.utils.checkpoint import checkpoint\n" + text, encoding="utf-8")
    status, out, err = upgrade(capfd, name)
    assert status == 1, out + err
    assert "train.py:15  step 1, forward of mul" in out, out
    assert "called with 0.6 and with 0.5" in out, out


@pytest.mark.program
def test_a_difference_between_the_steps_that_are_kept_whole(capfd: pytest.CaptureFixture[str]) -> None:
    """Only the losses of step 9 are kept at first; the steps around it are run again."""
    name = program('h = F.gelu(h, approximate="tanh" if os.environ["WHICH"] == "new" and at == 8 else "none")')
    text = Path(name).read_text(encoding="utf-8")
    Path(name).write_text(text.replace("for _ in range(4)", "for at in range(12)"), encoding="utf-8")
    for which in ("old", "new"):
        script = f'#!/bin/sh\nWHICH={which} exec {sys.executable} "$@"\n'
        Path(which).write_text(script, encoding="utf-8")
        Path(which).chmod(0o755)
    status, out, err = answer(capfd, "upgrade", "--from", "./old", "--to", "./new", name)
    assert status == 1, out + err
    assert "steps 8 to 9" in err
    assert "train.py:13  step 9, forward of gelu" in out
    assert "called with approximate='none' and with approximate='tanh'" in out


def test_a_program_that_does_not_repeat(capfd: pytest.CaptureFixture[str]) -> None:
    text = "h = F.gelu(h) * (int.from_bytes(os.urandom(2), 'big') / 65536)"
    status, out, err = upgrade(capfd, program(text))
    assert status == 1, out + err
    assert ": the program's own; " in out.splitlines()[0]
    assert "train.py:13" in out


def test_one_that_fails_in_one_alone_is_answered_with_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = upgrade(capfd, program("assert not NEW, 'no longer there'"))
    assert status == 1, out + err
    assert ": fails in one of them; " in out.splitlines()[0]
    assert "AssertionError: no longer there" in out


def test_one_that_fails_in_both_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = upgrade(capfd, program("raise OSError('no data')"))
    assert (status, out) == (2, "")
    assert "upgrade: the program must end well in one of them, got 1 and 1." in err
    assert "OSError: no data" in err


@pytest.mark.program
def test_digests_kept_for_another_day(capfd: pytest.CaptureFixture[str]) -> None:
    name = program("h = F.gelu(h * (0.5 if os.path.exists('later') else 0.6))")
    assert answer(capfd, "upgrade", "--from", sys.executable, "--keep", "old.digests", name)[:2] == (
        0,
        "upgrade: digests kept in old.digests\n",
    )
    status, out, err = answer(capfd, "upgrade", "--against", "old.digests", "--to", sys.executable, name)
    assert (status, ": nothing differs; 1 run, " in out) == (0, True), out + err
    Path("later").touch()
    status, out, err = answer(capfd, "upgrade", "--against", "old.digests", "--to", sys.executable, name)
    assert status == 1, out + err
    assert "called with 0.6 and with 0.5" in out


def test_a_program_without_a_backward_is_compared_too(capfd: pytest.CaptureFixture[str]) -> None:
    Path("infer.py").write_text("import torch\nprint(torch.randn(3).exp().sum())\n", encoding="utf-8")
    status, out, err = upgrade(capfd, "infer.py")
    assert status == 0, out + err
    assert ": nothing differs; 2 runs, 0 backward passes each" in out


# --- what cannot be asked ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train.py"], "one of --from and --against must be given, got both or neither."),
        (["--from", "nowhere", "--to", PY, "train.py"], "--from must be an interpreter that can be run, got 'nowhere'."),
        (["--from", PY, "--to", "true", "train.py"], "--to must be a python that can be run, got 'true'."),
        (["--from", PY, "train.py"], "--to must be given, got none."),
        (["--from", PY, "--to", PY, "gone.py"], "the script must be a file, got 'gone.py'."),
        (["--against", "none", "--to", PY, "train.py"], "--against must be a file that --keep wrote, got 'none'."),
        (["--against", "train.py", "--to", PY, "train.py"], "--against must be a file that --keep wrote, got 'train.py'."),
    ],
)  # fmt: skip
def test_calls_that_cannot_be_answered(capfd: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    program("pass")
    status, out, err = answer(capfd, "upgrade", *arguments)
    assert (status, out) == (2, "")
    assert f"pseudograd: upgrade: {said}" in err


def test_an_interpreter_without_torch(capfd: pytest.CaptureFixture[str]) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "bare"], check=True)
    bare = str(Path("bare", "Scripts" if os.name == "nt" else "bin", "python"))
    status, _, err = upgrade(capfd, program("pass"), new=bare)
    assert status == 2
    assert f"upgrade: --to must have torch, got {bare!r}." in err


@pytest.mark.usefixtures("own_process")
def test_a_program_that_never_calls_torch(capfd: pytest.CaptureFixture[str]) -> None:
    Path("plain.py").write_text("print(1)\n", encoding="utf-8")
    status, _, err = upgrade(capfd, "plain.py")
    assert status == 2
    assert "upgrade: the program must call torch under --from, got nothing." in err


# --- two torches ------------------------------------------------------------------------------------------------------

RANKING = """\
import torch
from torch import nn

scorer = nn.Linear(8, 1)
nn.init.zeros_(scorer.weight), nn.init.zeros_(scorer.bias)
optimiser = torch.optim.Adam(scorer.parameters(), 1e-2)
for _ in range(5):
    a, b = torch.randn(2, 64, 8)
    y = torch.sign(a.sum(1) - b.sum(1))
    loss = nn.functional.margin_ranking_loss(scorer(a)[:, 0], scorer(b)[:, 0], y)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""


@pytest.mark.program
def test_a_step_of_a_hundred_layers_takes_less_than_a_mebibyte(capfd: pytest.CaptureFixture[str]) -> None:
    text = """\
import torch
from torch import nn
model = nn.Sequential(*(one for _ in range(100) for one in (nn.Linear(4, 4), nn.GELU())))
optimiser = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(3, 4)).sum().backward()
    optimiser.step()
"""
    Path("deep.py").write_text(text, encoding="utf-8")
    assert answer(capfd, "upgrade", "--from", sys.executable, "--keep", "deep.digests", "deep.py")[0] == 0
    steps = json.loads(gzip.decompress(Path("deep.digests").read_bytes()))["runs"]["as it is"]["steps"]
    assert len(steps["2"]) > 600  # an update, 202 calls, 201 nodes that are no views, 200 gradients
    assert len(pickle.dumps(steps["2"])) < 2**20


@needs_other
def test_margin_ranking_loss_between_two_eras(capfd: pytest.CaptureFixture[str]) -> None:
    said = subprocess.run(
        [OTHER, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True
    )
    assert era_of(said.stdout) != installed_era()
    Path("rank.py").write_text(RANKING, encoding="utf-8")
    status, out, err = upgrade(capfd, "rank.py", new=OTHER)
    assert status == 1, out + err
    assert ": a kink's convention; " in out.splitlines()[0], out
    assert "rank.py:10  step 1, backward of ClampMinBackward0" in out
    assert "this line pinned, the losses are equal" in out
    assert f"pseudograd run --pin '{installed_era()}' rank.py" in out


@needs_other
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_clamp_in_a_checkpoint_between_two_eras(capfd: pytest.CaptureFixture[str], reentrant: bool) -> None:
    name = program(f"h = checkpoint(lambda z: z * scale.clamp(0, 1), h, use_reentrant={reentrant})")
    text = Path(name).read_text(encoding="utf-8").replace("[*model", "[scale, *model")
    text = text.replace("model, head", "scale = nn.Parameter(torch.ones(1))\nmodel, head", 1)
    Path(name).write_text("from torch.utils.checkpoint import checkpoint\n" + text, encoding="utf-8")
    status, out, err = upgrade(capfd, name, new=OTHER)
    assert status == 1, out + err
    assert "train.py:15  step 1, backward of Clamp" in out, out
    assert "this line pinned, the losses are equal" in out


@needs_other
def test_a_training_that_does_not_change_between_two_torches(capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = upgrade(capfd, program("h = F.gelu(h)"), new=OTHER)
    assert status == 0, out + err
    assert out.splitlines()[0].split(": ")[-1].split(";")[0] in ("nothing differs", "rounding only")


def test_arguments_are_said_where_they_are_short_and_hold_no_tensor() -> None:
    x = torch.ones(2)
    assert (
        _plain_arguments((x, 0.5, [1, x], (1,) * 8, (1,) * 9), {"dim": (0, 1), "out": x})
        == "0.5, (1, 1, 1, 1, 1, 1, 1, 1), dim=(0, 1)"
    )
