"""torch.set_flush_denormal(True) is for the whole process, so this runs in one of its own. Normal values stay right."""

import subprocess
import sys

import pytest
import torch

PROGRAM = """
import torch, pseudograd as pg
assert torch.set_flush_denormal(True)
for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
    tiny = torch.finfo(dtype).tiny
    for low, high in ((-1.0, 1.0), (0.0, 1.0), (-2.0, 0.0), (None, 0.0), (0.0, None)):
        x = torch.tensor([-3.0, -2.0, -1.0, -tiny, 0.0, tiny, 0.5, 1.0, 3.0] * 3, dtype=torch.float64).to(dtype)
        below = x < low if low is not None else x != x
        above = x > high if high is not None else x != x
        for value in (1.0, -1.0, float(tiny), -float(tiny), 4 * float(tiny)):
            grad = torch.full_like(x, value)
            def found(rule):
                leaf = x.clone().requires_grad_()
                pg.clamp(leaf, low, high, rule=rule).backward(grad)
                return leaf.grad
            outward = (below & (grad > 0)) | (above & (grad < 0))
            where = (dtype, low, high, value)
            assert torch.equal(found("zero"), torch.where(below | above, 0.0, grad)), ("zero", where)
            assert torch.equal(found("inward"), torch.where(outward, 0.0, grad)), ("inward", where)
            expected = torch.where(above, 1.0, torch.where(below, -1.0, grad))
            assert torch.equal(found("sign"), expected), ("sign", where, found("sign"), expected)
print("right")
"""


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot flush subnormals")
def test_normal_values_stay_right() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "right", done.stderr
