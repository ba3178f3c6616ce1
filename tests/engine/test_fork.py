"""A forked child of a one-thread process computes what its parent does, with the calls and kernels the parent remembered."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, torch
torch.set_num_threads(1)
import pseudograd as pg

def gradients():
    x = torch.linspace(-2, 2, 100_000).requires_grad_()
    found = []
    for rule in ("zero", "inward", "sign", "elastic"):
        for grad in (1.0, -1.0):
            y = pg.clamp(x, -1, 1, rule=rule)
            found += torch.autograd.grad(y, x, torch.full_like(y, grad))
    return torch.stack(found)

expected = gradients()
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(gradients(), expected) else 3)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert torch.equal(gradients(), expected)
"""


@pytest.mark.program
def test_a_forked_child_agrees() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
