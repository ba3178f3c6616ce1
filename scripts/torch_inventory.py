"""Write docs/torch.inv: where torch's documentation has the names that our docstrings mention, in the form of Sphinx's inventories.

The site is built without a network, so it cannot ask torch's own inventory. torch documents a function on a page of its name, under
`generated/`; the exceptions stand below.
"""

from __future__ import annotations

import inspect
import re
import zlib
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

import pseudograd as pg

FILE = Path(__file__).resolve().parent.parent / "docs" / "torch.inv"
ELSEWHERE = {
    "torch.Tensor": "tensors.html",
    "torch.optim.Optimizer": "optim.html",
    "torch.no_grad": "generated/torch.autograd.grad_mode.no_grad.html",
}
HEAD = "# Sphinx inventory version 2\n# Project: torch\n# Version: stable\n# The remainder of this file is compressed using zlib.\n"


def public() -> Iterator[Any]:
    """Everything with a docstring on the reference pages."""
    for name in pg.__all__:
        found = getattr(pg, name)
        if inspect.ismodule(found):
            yield from (getattr(found, one) for one in dir(found) if not one.startswith("_"))
        else:
            yield found


def names() -> list[str]:
    """Of torch, as they stand in our docstrings, where they are functions or classes."""
    texts = " ".join(inspect.getdoc(one) or "" for one in public())
    mentioned = {one.rstrip(".") for one in re.findall(r"\btorch(?:\.\w+)+", texts)}
    return sorted(one for one in mentioned | {*ELSEWHERE} if _is_callable(one))


def _is_callable(name: str) -> bool:
    try:
        found = attrgetter(name.removeprefix("torch."))(torch)
    except AttributeError:
        return False
    return callable(found) and not isinstance(found, torch.dtype)


def content() -> bytes:
    lines = []
    for name in names():
        role = "py:class" if inspect.isclass(attrgetter(name.removeprefix("torch."))(torch)) else "py:function"
        lines.append(f"{name} {role} 1 {ELSEWHERE.get(name, f'generated/{name}.html')}#$ -\n")
    return HEAD.encode() + zlib.compress("".join(lines).encode(), 9)


if __name__ == "__main__":
    FILE.write_bytes(content())
    print("\n".join(names()))
