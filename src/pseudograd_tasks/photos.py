"""The photos that ship with scikit-learn, and how two pictures are compared."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

HEIGHT, WIDTH = 96, 144


@cache
def photo(name: str) -> Tensor:
    """(1, 3, 96, 144), values in [0, 1]: the scikit-learn photo `name`, area-averaged. Do not change it in place."""
    from sklearn.datasets import load_sample_image

    pixels = torch.from_numpy(load_sample_image(f"{name}.jpg").copy()).permute(2, 0, 1).float() / 255
    return functional.interpolate(pixels[None], size=(HEIGHT, WIDTH), mode="area")


def displayed(x: Tensor) -> Tensor:
    """The picture as a screen shows it: values clipped to [0, 1]. NaN stays NaN."""
    return x.detach().clamp(0, 1)


def psnr(x: Tensor, target: Tensor) -> float:
    """Peak signal-to-noise ratio of the displayed picture, in dB; higher is closer."""
    return float(-10 * torch.log10((displayed(x) - target).pow(2).mean()))
