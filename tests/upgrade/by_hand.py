"""Runs of a program, written by hand."""

from __future__ import annotations

from typing import Any

from pseudograd_upgrade.recording import Recording, read_content

SITES = [
    ["forward", "linear", "train.py:1", "train.py:1", "linear(x)"],
    ["forward", "gelu", "train.py:2", "train.py:2", "gelu(x)"],
    ["backward", "GeluBackward0", "train.py:2", "train.py:2", "gelu(x)"],
    ["leaf", "torch::autograd::AccumulateGrad", "?", "?", ""],
    ["forward", "silu", "train.py:3", "train.py:3", "silu(x)"],
]


def run(
    *events: tuple[int, float] | tuple[int, float, str],
    losses: tuple[float, ...] = (1.0,),
    dtype: str = "float32",
    step: int = 1,
    status: int = 0,
    **raw: Any,
) -> Recording:
    """A run of which one step was kept. Of an event its site, a number that its tensor holds, and the other arguments of the op."""
    rows = [(site, "".join(options), [(1, f"{dtype} [4]", (x, abs(x), x / 2, 4.0))]) for site, x, *options in events]
    content = {"torch": "2.13.0", "sites": SITES, "steps": {step: rows}, "losses": [[loss] for loss in losses], **raw}
    return read_content(content, status)
