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


@pytest.mark.program
@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot flush subnormals")
@pytest.mark.parametrize("native", ["1", pytest.param("0", marks=pytest.mark.slow)])
def test_normal_values_stay_right(native: str) -> None:
    environment = {**os.environ, "PSEUDOGRAD_NATIVE": native}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.strip() == "right", done.stderr


MEMORY = """
import sys, torch, pseudograd as pg
from pseudograd.kernels.portable import _just_outside

def everything():
    found = []
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        least = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
        bound = 3 * least
        few = [-2.0, -bound, -2 * least, -0.0, least, 2 * least, bound, 4 * least, 1.0, 2.0]
        numbers = torch.tensor(few, dtype=torch.float64).to(dtype)
        calls = [
            lambda x, rule=rule, edge=edge, bounds=bounds: pg.clamp(x, *bounds, rule=rule, edge=edge)
            for bounds in ((bound, 1.0), (-1.0, bound), (-bound, bound), (0.0, bound))
            for rule in ("zero", "inward", "sign", "leaky", "elastic", "inverting")
            for edge in ("closed", "open", "half")
        ]
        calls += [
            lambda x: pg.clip_grad(x, max(bound, 1e-300)),
            lambda x: pg.sign(x, rule=pg.rules.window(scale=max(bound, 1e-300))),
            lambda x: pg.fake_quantize(x, 1e-40, 0, -8, 7),
            lambda x: pg.fake_quantize(x, torch.tensor(1e-40), 0, -8, 7),
            lambda x: pg.clamp(x, -1.0, 1.0, rule=pg.rules.leaky(max(bound, 1e-300))),
            lambda x: pg.clamp(x, -1.0, 1.0, rule=pg.rules.leaky(max(bound, 1e-300)), edge="inward"),
            lambda x: pg.clamp(x, 0.75 * 2.0**-126, 1.0, rule="zero"),
            lambda x: pg.clamp(x, -1.0, 1.0, rule=pg.rules.leaky(0.75 * 2.0**-126)),
            lambda x: pg.clamp(x, 0.0, 2.0**-20, rule=pg.rules.elastic(0.75 * 2.0**-106)),
            lambda x: pg.clamp(x, 2.0**-126, 1.5 * 2.0**-126, rule=pg.rules.elastic(4.0)),
        ]
        for call in calls:
            for sign in (1.0, -1.0):
                x = numbers.clone().requires_grad_()
                y = call(x)
                y.backward(torch.full_like(y, sign))
                found += [y.detach(), x.grad]
        found.append(torch.tensor([_just_outside(bound, 1.0, dtype)], dtype=torch.float64))
    return found

def crossed():
    try:
        pg.clamp(torch.ones(1), 2e-310, 1e-310)
    except ValueError as error:
        return str(error)
    return "admitted"

for state in sys.argv[1:]:
    assert torch.set_flush_denormal(state == "on")
    found, said = everything(), crossed()
    torch.set_flush_denormal(False)
    print(state, said, *[values.double().view(torch.int64).tolist() for values in found], sep=";")
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot flush subnormals")
def test_nothing_is_remembered_from_the_other_state() -> None:
    """Bounds, their neighbours, slopes, widths, limits, scales, and which bounds were admitted: as in the process that began so."""
    ran = [
        subprocess.Popen([sys.executable, "-c", MEMORY, *states], stdout=subprocess.PIPE, text=True)
        for states in (("on", "off"), ("off", "on"))
    ]
    by_order = [dict(line.split(";", 1) for line in process.communicate()[0].splitlines()) for process in ran]
    for state in ("on", "off"):
        assert by_order[0][state].count(";") > 500
        assert by_order[0][state] == by_order[1][state]
    assert by_order[0]["on"] != by_order[0]["off"]
