"""The pictures of what a run returns beside its numbers: curves over its steps, and images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..look.palette import colours
from ..wording import counted
from .compared import Compared
from .picture import WIDE, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ACROSS = 5  # tiles


def size_of(found: Compared, name: str) -> tuple[float, float]:
    """In inches."""
    by_variant = [list(by_seed.values()) for by_seed in found.arrays[name].values() if by_seed]
    if by_variant[0][0].dim() == 1:
        return 8.0, 4.2
    across, down = _places(len(by_variant))
    return 2.0 * across, 2.3 * down


def _places(count: int) -> tuple[int, int]:
    """Tiles across and down."""
    across = min(_ACROSS, count)
    return across, -(-count // across)


def draw(found: Compared, name: str, axes: Axes | None) -> Axes:
    by_variant = {variant: list(by_seed.values()) for variant, by_seed in found.arrays[name].items()}
    first = next(one for arrays in by_variant.values() for one in arrays)
    return _curves(found, name, by_variant, axes) if first.dim() == 1 else _tiles(found, name, by_variant, axes)


def _curves(found: Compared, name: str, by_variant: dict[str, list[Tensor]], axes: Axes | None) -> Axes:
    """Of each variant the median over the seeds, and the range of all of them."""
    axes = axes or new_axes(size_of(found, name))
    drawn = {variant: torch.stack(_of_one_length(arrays)) for variant, arrays in by_variant.items() if arrays}
    shades = colours(drawn)
    for place, (variant, every) in enumerate(drawn.items()):
        steps = range(1, every.shape[1] + 1)
        width = 4.0 - 2.6 * place / max(len(drawn) - 1, 1)  # thin over thick: lines that coincide are all seen
        axes.plot(steps, every.median(0).values, color=shades[variant], linewidth=width, label=variant)
        if len(every) > 1:
            low, high = every.amin(0), every.amax(0)
            axes.fill_between(steps, low, high, color=shades[variant], alpha=0.12, linewidth=0)
    values = torch.cat([every.flatten() for every in drawn.values()])
    values = values[values.isfinite()]
    if values.numel() and values.min() > 0 and values.max() > WIDE * values.min():
        axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel(name)
    axes.set_title(
        f"{found.run}: {name}, median and range of {counted(len(found.seeds), 'seed')}", loc="left", fontsize=11
    )
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return axes


def _of_one_length(arrays: Sequence[Tensor]) -> list[Tensor]:
    """A run that ended early has no values behind its end."""
    longest = max(len(one) for one in arrays)
    return [torch.cat([one, one.new_full((longest - len(one),), math.nan)]) for one in arrays]


def _tiles(found: Compared, name: str, by_variant: dict[str, list[Tensor]], axes: Axes | None) -> Axes:
    """The picture of the first seed that has one, for each variant, all with one range of grey."""
    shown = {variant: _rows_and_columns(arrays[0]) for variant, arrays in by_variant.items() if arrays}
    across, down = _places(len(shown))
    axes = axes or new_axes(size_of(found, name))
    axes.set_axis_off()
    axes.set_title(f"{found.run}: {name}, the first seed", loc="left", fontsize=11)
    low = min(float(one.min()) for one in shown.values())
    high = max(float(one.max()) for one in shown.values())
    shades = colours(shown)
    for place, (variant, picture) in enumerate(shown.items()):
        row, column = divmod(place, across)
        tile = axes.inset_axes((column / across + 0.01, 1 - (row + 1) / down, 1 / across - 0.02, 0.86 / down))
        if picture.dim() == 3:
            tile.imshow(picture.clamp(0, 1).numpy(), interpolation="nearest")
        else:
            tile.imshow(
                picture.numpy(), cmap="gray", vmin=low, vmax=high if high > low else low + 1, interpolation="nearest"
            )
        tile.set_xticks([])
        tile.set_yticks([])
        tile.set_title(variant, fontsize=9, color=shades[variant])
    return axes


def _rows_and_columns(picture: Tensor) -> Tensor:
    """Colours last, from 0 to 1; whole numbers up to 255 are bytes."""
    if picture.dim() == 3 and picture.shape[-1] != 3:
        picture = picture.permute(1, 2, 0)
    is_of_bytes = picture.dim() == 3 and float(picture.max()) > 1.5
    return picture / 255 if is_of_bytes else picture
