"""Eight threads, and a forked child, agree with a single thread: what is remembered between calls is shared, so a race would show here."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import pseudograd as pg
from pseudograd.rule import OPS

RULES = list(OPS["clamp"].rules)


def _gradients(seed: int, steps: int) -> list[Tensor]:
    """Many calls whose rule, edge, bounds and dtype change all the time."""
    generator = torch.Generator().manual_seed(seed)
    gradients = []
    for step in range(steps):
        x = torch.randn(50, generator=generator).mul(2).to([torch.float32, torch.float16, torch.float64][step % 3])
        x.requires_grad_()
        how = {"rule": RULES[step % len(RULES)], "edge": OPS["clamp"].edges[step % 4], "maximize": step % 5 == 0}
        y = pg.clamp(x, -1 - step % 60 / 100, 1 + seed, **how)
        gradients += torch.autograd.grad(y, x, torch.linspace(-1, 1, 50, dtype=x.dtype))
    return gradients


def test_eight_threads_agree_with_one() -> None:
    expected = [_gradients(seed, 60) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for ours, theirs in zip(pool.map(_gradients, range(8), [60] * 8), expected, strict=True):
            assert all(map(torch.equal, ours, theirs))


FORKS = """
import os, torch
torch.set_num_threads(1)
import pseudograd as pg

def gradients():
    x = torch.linspace(-2, 2, 100_000).requires_grad_()
    ys = [pg.clamp(x, -1, 1, rule=rule) for rule in ("zero", "inward", "sign", "elastic")]
    return torch.stack([torch.autograd.grad(y, x, torch.full_like(y, grad), True)[0] for y in ys for grad in (1.0, -1.0)])

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
    """Its process has a single thread, as a fork needs it."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
