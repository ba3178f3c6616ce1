"""torch.set_flush_denormal(True) is for the whole process, so this runs in one of its own. Normal values stay right."""

import os
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
            def gradient(rule):
                leaf = x.clone().requires_grad_()
                pg.clamp(leaf, low, high, rule=rule).backward(grad)
                return leaf.grad
            outward = (below & (grad > 0)) | (above & (grad < 0))
            where = (dtype, low, high, value)
            assert torch.equal(gradient("zero"), torch.where(below | above, 0.0, grad)), ("zero", where)
            assert torch.equal(gradient("inward"), torch.where(outward, 0.0, grad)), ("inward", where)
            expected = torch.where(above, 1.0, torch.where(below, -1.0, grad))
            assert torch.equal(gradient("sign"), expected), ("sign", where, gradient("sign"), expected)
print("right")
"""


@pytest.mark.program
@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot flush subnormals")
@pytest.mark.parametrize("native", ["1", pytest.param("0", marks=pytest.mark.slow)])
def test_normal_values_stay_right(native: str) -> None:
    environment = {**os.environ, "PSEUDOGRAD_NATIVE": native}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.strip() == "right", done.stderr


MEMORY = """
import sys, torch, pseudograd as pg

def results():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        least = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
        bound = 3 * least
        numbers = torch.tensor([-2.0, -bound, -0.0, least, 2 * least, bound, 4 * least, 2.0], dtype=torch.float64).to(dtype)
        for call in [
            *(lambda x, rule=rule: pg.clamp(x, -bound, bound, rule=rule) for rule in ("zero", "leaky", "elastic", "inverting")),
            lambda x: pg.clip_grad(x, max(bound, 1e-300)),
            lambda x: pg.sign(x, rule=pg.rules.window(scale=max(bound, 1e-300))),
            lambda x: pg.fake_quantize(x, 1e-40, 0, -8, 7),
            lambda x: pg.clamp(x, -1.0, 1.0, rule=pg.rules.leaky(0.75 * 2.0**-126)),
        ]:
            x = numbers.clone().requires_grad_()
            y = call(x)
            y.sum().backward()
            yield y.detach()
            yield x.grad
    try:
        yield pg.clamp(torch.ones(1), 2e-310, 1e-310)
    except ValueError as error:
        yield torch.tensor([0.25])

for state in sys.argv[1:]:
    torch.set_flush_denormal(state == "on")
    tensors = list(results())
    torch.set_flush_denormal(False)
    print(state, *[tensor.double().view(torch.int64).tolist() for tensor in tensors], sep=";")
"""


@pytest.mark.program
@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot flush subnormals")
def test_nothing_is_remembered_from_the_other_state() -> None:
    """Bounds, slopes, widths, limits, scales, and which bounds were admitted: as in the process that began so."""
    processes = [
        subprocess.Popen([sys.executable, "-c", MEMORY, *states], stdout=subprocess.PIPE, text=True)
        for states in (("on", "off"), ("off", "on"))
    ]
    first, second = (
        dict(line.split(";", 1) for line in process.communicate()[0].splitlines()) for process in processes
    )
    assert first == second
    assert first["on"] != first["off"]
    assert first["on"].count(";") > 50
