"""Does a clamp keep the right thing for its backward? In a network each clamp keeps x, or a code, or what it chooses by itself.

    python benchmarks/residual_policy.py [--check] [--write]      --write: the table into docs/memory.md

Counts bytes, which are the same on every machine. The bytes of parameters and inputs do not count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import pseudograd as pg
from harness import Limit, judge, parser_of
from pseudograd.kernels import bits
from suite.measure import saved_bytes

DOCS = Path(__file__).resolve().parents[1] / "docs" / "memory.md"
BEGIN, END = "<!-- residual policy: begin -->", "<!-- residual policy: end -->"
LAYERS, WIDTH, SIDE, BATCH = 6, 32, 64, 4
# Bytes that the default may keep beyond the better of the two: what another op keeps behind a clamp cannot be known when the clamp runs,
# and below 4,096 elements a code costs more time than it saves.
MORE_IN_GATES = LAYERS * BATCH * WIDTH * SIDE**2 // 4
MORE_IN_SMALL_ONES = LAYERS * 4096 * 4


@contextmanager
def keeping(policy: str) -> Iterator[None]:
    """ "x" or "a code" in every call that could keep either; "default": what pseudograd does."""
    least, is_kept_anyway = bits.least_elements, bits._is_kept_anyway
    if policy == "x":
        bits.least_elements = 1 << 62
    elif policy == "a code":
        bits.least_elements, bits._is_kept_anyway = 0, lambda x: False
    try:
        yield
    finally:
        bits.least_elements, bits._is_kept_anyway = least, is_kept_anyway


class Network(NamedTuple):
    """LAYERS times step(h, layer()), from a tensor of `shape` on. more: bytes that the default may keep beyond the better of the two."""

    name: str
    layer: Callable[[], nn.Module]
    step: Callable[[Tensor, nn.Module], Tensor]
    shape: tuple[int, ...] = (BATCH, WIDTH, SIDE, SIDE)
    more: int = 0


def _clamped(x: Tensor) -> Tensor:
    return pg.clamp(x, -1, 1)


def _conv(groups: int = 1) -> nn.Module:
    return nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=groups)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.narrow(pg.relu6(self.wide(x)))


NETWORKS = (
    Network("convolutions, each with `clamp`", _conv, lambda x, conv: _clamped(conv(x))),
    Network("residual blocks with `clamp`", _conv, lambda x, conv: x + conv(_clamped(x))),
    Network(
        "depthwise convolutions with batch norm and `relu6`",
        lambda: nn.Sequential(_conv(WIDTH), nn.BatchNorm2d(WIDTH)),
        lambda x, block: pg.relu6(block(x)),
    ),
    Network("a transformer with `relu6`", _Attention, lambda x, block: block(x), (BATCH, 256, WIDTH)),
    Network("binary convolutions, each with `sign`", _conv, lambda x, conv: pg.sign(conv(x))),
    Network("`clamp` behind a sigmoid", _conv, lambda x, conv: pg.clamp(torch.sigmoid(conv(x)), 0.1, 0.9)),
    Network("gates, `x * clamp(x)`", _conv, lambda x, conv: (x := conv(x)) * _clamped(x), more=MORE_IN_GATES),
    Network(
        "small layers with `clamp`", _conv, lambda x, conv: _clamped(conv(x)), (1, WIDTH, 8, 8), MORE_IN_SMALL_ONES
    ),
)
POLICIES = ("x", "a code", "default")


def measure(network: Network) -> dict[str, int]:
    torch.manual_seed(0)
    x, layers = torch.randn(network.shape), nn.ModuleList(network.layer() for _ in range(LAYERS))

    def forward() -> Tensor:
        h = x
        for layer in layers:
            h = network.step(h, layer)
        return h

    exists, sizes = (x, *layers.parameters(), *layers.buffers()), {}
    for policy in POLICIES:
        with keeping(policy):
            sizes[policy] = saved_bytes(forward, exists)
    return sizes


def write_table(results: dict[str, dict[str, int]]) -> str:
    heads = " | ".join(f"{policy} kept" for policy in POLICIES[:2])
    rows = [f"| {LAYERS} layers | {heads} | default |", "|---|---:|---:|---:|"]
    for name, sizes in results.items():
        rows.append(f"| {name} | {' | '.join(f'{sizes[policy] / 2**20:.2f}' for policy in POLICIES)} |")
    return "\n".join(rows)


def main() -> int:
    parser = parser_of(__doc__, rounds=1)
    parser.add_argument("--write", action="store_true", help="write the table into docs/memory.md")
    options = parser.parse_args()
    results = {network.name: measure(network) for network in NETWORKS}
    table = write_table(results)
    print("MiB kept for backward:", table, sep="\n")
    if options.write:
        before, rest = DOCS.read_text().split(BEGIN)
        DOCS.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}")
    limits = []
    for network in NETWORKS:
        sizes = results[network.name]
        limits.append(
            Limit(f"{network.name}, bytes of the default", sizes["default"], network.more + min(sizes.values()))
        )
    return judge(limits, options.check)


if __name__ == "__main__":
    sys.exit(main())
