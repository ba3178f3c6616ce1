"""Thresholds that learn through a window, and how many of them never had a value of x in it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...engine import inputs_kept_by
from ...ops.jump import JUMPRELU
from ...ops.steps import SLOPES
from ...torch_table.private import physical

NODE = "PseudogradBackward"
NARROW = 0.5  # of the thresholds, without a gradient in any backward: from here on it is a finding
_ENOUGH = 0.9  # of the thresholds: what the bandwidth that is advised would have reached


class Windows:
    """The thresholds of one jumprelu, over all recorded backward passes; on their device until they are read."""

    def __init__(self) -> None:
        self.calls = 0
        self.bandwidth = 0.0
        self._moved: Any = None
        self._nearest: Any = None

    def add(self, x: Tensor, threshold: Tensor, bandwidth: float, to_threshold: Tensor) -> None:
        moved, nearest = to_threshold != 0, _nearest(x, threshold)
        self.calls += 1
        self.bandwidth = bandwidth
        self._moved = moved if self._moved is None else self._moved | moved
        self._nearest = nearest if self._nearest is None else torch.minimum(self._nearest, nearest)

    @property
    def thresholds(self) -> int:
        return int(self._moved.numel())

    @property
    def starving(self) -> int:
        """How many got a gradient of 0 every time, and no x nearer than half the bandwidth."""
        return int(torch.count_nonzero(self._starve))

    @property
    def is_narrow(self) -> bool:
        return self.thresholds > 0 and self.starving / self.thresholds >= NARROW

    @property
    def _starve(self) -> Any:
        return ~self._moved & (self._nearest > self.bandwidth / 2)

    @property
    def distance(self) -> float:
        """From those that starve to the x that came nearest: in the middle."""
        return float(self._nearest[self._starve].double().median())

    @property
    def wider(self) -> float:
        """The bandwidth whose rectangle would have reached nine of ten."""
        return 2 * float(torch.quantile(self._nearest.double().reshape(-1)[: 2**24], _ENOUGH))


def _nearest(x: Tensor, threshold: Tensor) -> Tensor:
    """For each threshold the least distance of an x."""
    gap = torch.nan_to_num((x - threshold).abs(), torch.inf, torch.inf)
    behind = gap.dim() - threshold.dim()
    dims = [d for d in range(gap.dim()) if d < behind or threshold.shape[d - behind] == 1]
    return (gap.amin(dims, keepdim=True) if dims else gap).reshape(threshold.shape)


def of_node(node: object, leaving: tuple[Any, ...]) -> tuple[Tensor, Tensor, float, Tensor] | None:
    """What `Windows.add` takes, of a node whose threshold learns through a window; None for another."""
    found = inputs_kept_by(node, JUMPRELU)
    if found is None or found[0].rule.name not in SLOPES or len(leaving) != 2 or leaving[1] is None:
        return None
    x, threshold, bandwidth, _ = found[1]
    if not x.numel():
        return None
    return physical(x).detach(), physical(threshold).detach(), bandwidth, physical(leaving[1]).detach()
