"""Check a package that was installed from a wheel, with torch alone: every op, `doctor`, `pin_edge`, `diagnose`, `lint`.

python scripts/try_wheel.py [--native]       --native: the kernels in C must run, too, and their library must not be too large
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zlib

import torch

import pseudograd as pg
from pseudograd.kernels import native
from pseudograd.rule import OPS

LARGEST = 649_000  # bytes of the library as a wheel compresses it: 100 KB more than before there were kernels for CUDA
OF_EXTRAS = ("matplotlib", "sklearn", "scipy", "pandas")


def main() -> int:
    for op in OPS.values():
        x = torch.linspace(op.picture.low, op.picture.high, 9, requires_grad=True)
        for rule in op.rules:
            if rule == "custom":
                continue
            chosen = {"rule": rule} if len(op.rules) > 1 else {}
            y = op.public(*(op.picture.inputs_of(x) if op.picture.inputs_of else (x, *op.picture.others)), **chosen)
            if y.requires_grad:
                torch.autograd.grad(y.sum(), x)
    x = torch.tensor([0.0, 0.5, 1.0], requires_grad=True)
    for era, wanted in (("torch<=2.13", [1.0, 1.0, 1.0]), ("torch>=2.14", [0.0, 1.0, 0.0])):
        with pg.pin_edge(era):
            (gradient,) = torch.autograd.grad(x.clamp(0, 1).sum(), x)
        assert gradient.tolist() == wanted, (era, gradient)
    with pg.diagnose() as d:
        (torch.nn.Parameter(torch.tensor([5.0, 0.5])).clamp(0, 1) * 3).sum().backward()
    assert d.sites[-1].cut == 1
    for command in (["doctor"], ["rules", "clamp"], ["kinks", "abs"], ["lint", pg.__file__], ["explain", "PG204"]):
        subprocess.run([sys.executable, "-m", "pseudograd", *command], check=True, stdout=subprocess.DEVNULL)
    if "--native" in sys.argv:
        assert native.status()["state"] == "active", native.status()["why"]
        size = len(zlib.compress(native.LIBRARY.read_bytes(), 9))
        assert size <= LARGEST, f"the library takes {size:,} bytes of the wheel, and {LARGEST:,} are allowed"
    missing = [name for name in OF_EXTRAS if importlib.util.find_spec(name) is None]
    if "matplotlib" in missing:
        assert "[report]" in _refusal(), _refusal()
    print(
        f"pseudograd {pg.__version__} works with torch {torch.__version__}; without {', '.join(missing) or 'nothing'}"
    )
    return 0


def _refusal() -> str:
    """The error about an extra that is not installed."""
    try:
        pg.plot("inward")
    except ImportError as error:
        return str(error)
    return "nothing"


if __name__ == "__main__":
    sys.exit(main())
