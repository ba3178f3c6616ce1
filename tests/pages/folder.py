"""The folder in which the commands of the pages are run: the files that they name, as a reader would have them."""

import shutil
import sys
from pathlib import Path

from .blocks import ROOT

# Equal scores at the start: what trains until torch 2.13, and does not since. One more clamp, so that there is something to choose from.
TRAIN = """\
import sys

import torch
from torch.nn import functional

torch.manual_seed(0)
scorer = torch.nn.Linear(4, 1)
torch.nn.init.zeros_(scorer.weight)
torch.nn.init.zeros_(scorer.bias)
first, second = torch.randn(32, 4), torch.randn(32, 4)
better = torch.sign(first.sum(1) - second.sum(1))
optimizer = torch.optim.SGD(scorer.parameters(), 0.1)
for _ in range(25):
    optimizer.zero_grad()
    x, y = scorer(first).clamp(-5, 5)[:, 0], scorer(second)[:, 0].relu()
    functional.margin_ranking_loss(x, scorer(second)[:, 0], better).backward()
    optimizer.step()
trained = bool(scorer.weight.any())
with open("trained.txt", "w") as file:
    file.write(str(trained))
sys.exit(0 if trained else 1)
"""
EVALUATE = """\
import sys

with open("trained.txt") as file:
    sys.exit(0 if file.read() == "True" else 1)
"""
MINE = """\
import torch


def run(clamp, seed):
    torch.manual_seed(seed)
    x = (2 * torch.rand(8) + 0.5).requires_grad_()
    for _ in range(20):
        loss = (clamp(x, 0, 1) - 0.25).square().sum()
        (grad,) = torch.autograd.grad(loss, x)
        x = (x - 0.1 * grad).detach().requires_grad_()
    return loss.item()


def train(seed):
    return run(torch.clamp, seed)


def arctan(x):
    return torch.atan(x)


def no_slope(x):
    return torch.sign(x)


STEPS = {"arctan": arctan, "no slope": no_slope}


def spikes(step, seed):
    torch.manual_seed(seed)
    return float(step(torch.randn(8)).sum())


def loss(y):
    return (y - 3).square()
"""
RULES = """\
import pseudograd as pg


@pg.register_rule("clamp", formula="grad / 2", source="a page", is_linear=True)
def my_rule(grad, x, y, min, max):
    return grad / 2
"""
LOSSES = """\
def distance_loss(x, y):
    return (x - y).pow(2).sum(-1).clamp(min=0).sqrt().mean()
"""
FILES = {
    "train.py": TRAIN, "package/train.py": TRAIN, "package/__init__.py": "", "evaluate.py": EVALUATE, "mine.py": MINE, "my_rules.py": RULES,
    "script.py": LOSSES,
    "src/losses.py": "import torch\n\n\n" + LOSSES,
    "tests/test_gate.py": "import torch\n\n\ndef test_gate():\n    assert torch.clamp(torch.ones(2), 0, 1).sum() == 2\n",
    "package/module.py": "import torch\n\n\ndef function(x):\n    return torch.clamp(x, -1, 1)\n",
}  # fmt: skip
OTHER_NAME = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
INTERPRETERS = ("old/bin/python", "new/bin/python")


def filled(folder: Path) -> Path:
    for name, text in FILES.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for name in INTERPRETERS:
        file = folder / name
        file.parent.mkdir(parents=True)
        file.write_text(OTHER_NAME, encoding="utf-8")
        file.chmod(0o755)
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=lambda _, names: set(names) - {"margin_ranking.py"})
    return folder
