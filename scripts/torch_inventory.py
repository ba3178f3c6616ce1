"""Write docs/torch.inv, an inventory of Sphinx: the pages of torch's documentation for the names that our docstrings mention.

The site is built without a network, so it cannot fetch torch's own inventory. torch has a page for each function, under `generated/`;
ELSEWHERE has the exceptions.
"""

from __future__ import annotations

import inspect
import re
import zlib
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import torch

import pseudograd as pg

FILE = Path(__file__).resolve().parent.parent / "docs" / "torch.inv"
ELSEWHERE = {
    "torch.Tensor": "tensors.html",
    "torch.optim.Optimizer": "optim.html",
    "torch.no_grad": "generated/torch.autograd.grad_mode.no_grad.html",
}
HEAD = "# Sphinx inventory version 2\n# Project: torch\n# Version: stable\n# The remainder of this file is compressed using zlib.\n"


def public() -> Iterator[object]:
    """The objects whose docstrings are on the reference pages."""
    for value in (getattr(pg, name) for name in pg.__all__):
        names = [name for name in dir(value) if not name.startswith("_")] if inspect.ismodule(value) else []
        yield from (getattr(value, name) for name in names) if names else [value]


def names() -> list[str]:
    """The functions and classes of torch that our docstrings name."""
    texts = " ".join(inspect.getdoc(value) or "" for value in public())
    mentioned = {name.rstrip(".") for name in re.findall(r"\btorch(?:\.\w+)+", texts)}
    return sorted(name for name in mentioned | {*ELSEWHERE} if _is_callable(name))


def _is_callable(name: str) -> bool:
    try:
        value = attrgetter(name.removeprefix("torch."))(torch)
    except AttributeError:
        return False
    return callable(value) and not isinstance(value, torch.dtype)


def content() -> bytes:
    lines = []
    for name in names():
        role = "py:class" if inspect.isclass(attrgetter(name.removeprefix("torch."))(torch)) else "py:function"
        lines.append(f"{name} {role} 1 {ELSEWHERE.get(name, f'generated/{name}.html')}#$ -\n")
    return HEAD.encode() + zlib.compress("".join(lines).encode(), 9)


if __name__ == "__main__":
    FILE.write_bytes(content())
    print("\n".join(names()))
