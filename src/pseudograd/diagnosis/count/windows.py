"""Thresholds of a jumprelu, which learn from the x in a window around them: how many never had an x in their window?"""

from __future__ import annotations

import torch
from torch import Tensor

_NARROW_SHARE = 0.5  # of the thresholds: if so many never got a gradient, the window is too narrow
_MOST_OF_QUANTILE = 2**24  # torch.quantile takes no more elements
_REACHED_SHARE = 0.9  # the advised bandwidth would have reached this share of the thresholds


class Windows:
    """The thresholds of one jumprelu, over all recorded backward passes. The tensors stay on their device until they are read."""

    def __init__(self, threshold: Tensor) -> None:
        self.calls = 0
        self.bandwidth = 0.0
        # Did the threshold ever get a gradient other than 0?
        self._had_gradient = torch.zeros_like(threshold, dtype=torch.bool)
        self._distances = torch.full_like(threshold, torch.inf)  # to the x that came nearest

    def add(self, x: Tensor, threshold: Tensor, bandwidth: float, grad: Tensor) -> None:
        """grad: the gradient of the threshold."""
        self.calls += 1
        self.bandwidth = bandwidth
        self._had_gradient |= grad != 0
        self._distances = torch.minimum(self._distances, _nearest(x, threshold))

    @property
    def _are_starving(self) -> Tensor:
        """The mask of the thresholds without any gradient, and with no x nearer than half the bandwidth."""
        return ~self._had_gradient & (self._distances > self.bandwidth / 2)

    @property
    def thresholds(self) -> int:
        return self._distances.numel()

    @property
    def starving(self) -> int:
        """The number of thresholds that starve."""
        return int(torch.count_nonzero(self._are_starving))

    @property
    def is_narrow(self) -> bool:
        return self.thresholds > 0 and self.starving / self.thresholds >= _NARROW_SHARE

    @property
    def distance(self) -> float:
        """The median distance from a threshold that starves to the x that came nearest."""
        return float(self._distances[self._are_starving].double().median())

    @property
    def wider(self) -> float:
        """The bandwidth whose rectangle would have reached nine of ten thresholds."""
        return 2 * float(torch.quantile(self._distances.double().reshape(-1)[:_MOST_OF_QUANTILE], _REACHED_SHARE))


def _nearest(x: Tensor, threshold: Tensor) -> Tensor:
    """The smallest distance of an x from each threshold."""
    gap = torch.nan_to_num((x - threshold).abs(), torch.inf, torch.inf)
    behind = gap.dim() - threshold.dim()
    dims = [d for d in range(gap.dim()) if d < behind or threshold.shape[d - behind] == 1]
    return (gap.amin(dims, keepdim=True) if dims else gap).reshape(threshold.shape)
