"""How much of the library one call walks through: Python calls of ours, and files of ours that it enters."""

import json
import subprocess
import sys

import pytest

_COUNT = """
import json, os, sys
import torch, pseudograd as pg
calls, files = 0, set()
mark = os.sep + "src" + os.sep + "pseudograd"
def note(frame, event, _):
    global calls
    if event == "call" and mark in frame.f_code.co_filename:
        calls += 1
        files.add(frame.f_code.co_filename)
def walk(function):
    global calls
    calls = 0
    files.clear()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
x = torch.randn(8, requires_grad=True)
x.clamp(0, 1).sum().backward()  # torch's own first call
"""
_WALKS = {
    "the first clamp": ("walk(lambda: pg.clamp(x, 0, 1))", "calls", 200),
    "the first backward between tensors": (
        "low, high = (torch.tensor(n, requires_grad=True) for n in (0.0, 1.0))\n"
        "y = pg.clamp(x, low, high).sum()\nwalk(y.backward)",
        "calls",
        40,
    ),
    "override around one call": (
        "pg.override\nwith pg.override(clamp='inward'):\n    torch.clamp(x, 0, 1)\n"
        "def call():\n    with pg.override(clamp='inward'):\n        torch.clamp(x, 0, 1)\nwalk(call)",
        "calls",
        60,
    ),
    "diagnose around two steps": (
        "model = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "def steps():\n    with pg.diagnose(model):\n        for _ in range(2):\n            optimizer.zero_grad()\n"
        "            model(torch.ones(3, 2)).sum().backward()\n            optimizer.step()\nwalk(steps)",
        "files",
        40,
    ),
}


def _walk(program: str) -> dict[str, int]:
    ending = "\nprint(json.dumps({'calls': calls, 'files': len(files)}))"
    done = subprocess.run([sys.executable, "-c", _COUNT + program + ending], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.program
@pytest.mark.parametrize("name", _WALKS)
def test_a_walk_is_short(name: str) -> None:
    program, measure, limit = _WALKS[name]
    assert _walk(program)[measure] <= limit


@pytest.mark.program
def test_lint_reads_few_files() -> None:
    program = (
        "import json, sys\nfiles = set()\n"
        "sys.setprofile(lambda frame, event, _: files.add(frame.f_code.co_filename) if event == 'call' else None)\n"
        "from pseudograd_notices.command_line import main\n"
        "import io\nsys.stdin = io.TextIOWrapper(io.BytesIO(b'import torch\\nx = torch.ones(3)\\ny = x.clamp(0, 1)\\n'))\n"
        "main(['lint', '-'])\nsys.setprofile(None)\n"
        "print(json.dumps(len([file for file in files if '/pseudograd' in file and '/src/' in file])))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) <= 25
