"""The figures of a report: the strip of pictures at its top, tiles (pictures with a title and a number), and a chart for each world."""

from __future__ import annotations

import base64
import io
import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imsave
from torch import Tensor

from pseudograd.comparison.picture import Seeds, draw_seeds, seeds_picture
from pseudograd.comparison.variants import INSTALLED, PROJECT, eras
from pseudograd.look.palette import colour

from .. import World
from ..base import OURS, Subject, eras_in
from ..sentences import Section, are_alike, best
from .results import Results, cell, own_worlds

DPI = 110
PICTURES = "pictures"  # the kind of figure that tiles show
FRAME = "#7a7a7a"  # the colour around a picture that no rule made


class Tile(NamedTuple):
    """A picture of a report."""

    title: str
    note: str  # its number as text, or ""
    picture: Tensor  # of shape (3, height, width), from 0 to 1
    frame: str  # the colour around the picture

    @property
    def text(self) -> str:
        """The text for a reader who cannot see the picture."""
        return f"{self.title}, {self.note}" if self.note else self.title

    @property
    def data(self) -> str:
        """A PNG in base64."""
        buffer = io.BytesIO()
        imsave(buffer, pixels(self.picture), format="png")
        return base64.b64encode(buffer.getvalue()).decode("ascii")


class Strip(NamedTuple):
    """The pictures at the top of a report, and the sentence above them."""

    sentence: str
    tiles: list[Tile]


def display_name(variant: str, era: str = "") -> str:
    """The name of a variant in the report. An era of torch.clamp has versions of torch in its name. era: the era of the installed torch."""
    if variant in eras():
        return f"torch.clamp, {eras()[variant].name}{' (yours)' if variant == era else ''}"
    return "clip after each step (project)" if variant == PROJECT else variant


def remove_installed(rows: World) -> World:
    """The rows without the installed torch.clamp, which is one of the eras."""
    return {name: outcome for name, outcome in rows.items() if name != INSTALLED}


def tiles(subject: Subject, rows: World, first: Mapping[str, Tensor], era: str) -> list[Tile]:
    """The start and the target, then the result of each variant."""
    return [*_first_tiles(first), *(_tile(subject, name, rows, era) for name in remove_installed(rows))]


def _first_tiles(first: Mapping[str, Tensor]) -> list[Tile]:
    return [Tile(title, "", picture, FRAME) for title, picture in first.items()]


def strip(results: Results) -> Strip | None:
    """The strip of the first subject with a finding: target, start, torch.clamp, our default, and the best variant if it is another one."""
    for section in results.sections.values():
        subject = section.subject
        if subject.finding is None or subject.figure is None:
            continue
        for world, rows in section.worlds.items():
            if OURS in rows:
                first = _first_tiles(section.first[world])[::-1]
                return Strip(subject.finding(rows), [*first, *_compared_tiles(subject, rows, results.era)])
    return None


def _compared_tiles(subject: Subject, rows: World, era: str) -> list[Tile]:
    """The tiles of torch.clamp, of our default, and of the best variant. Numbers are rounded, because tenths depend on the processor."""
    key, unit = subject.headline
    values = {name: outcome.numbers[key] for name, outcome in remove_installed(rows).items()}

    def tile(name: str) -> Tile:
        return _tile(subject, name, rows, era)._replace(note=f"{values[name]:.0f} {unit}")

    compared = [tile(name) for name in eras_in(rows)]
    if are_alike(*(values[name] for name in eras_in(rows))):
        compared = [compared[0]._replace(title="torch.clamp, on any torch")]
    compared.append(tile(OURS))
    if (first := best(values)) != OURS:
        compared.append(tile(first)._replace(title=f"best here: {display_name(first, era)}"))
    return compared


def _tile(subject: Subject, name: str, rows: World, era: str) -> Tile:
    key, unit = subject.headline
    note = cell(rows[name].numbers[key], unit)
    return Tile(display_name(name, era), note, rows[name].arrays["picture"], colour(name))


def pixels(picture: Tensor) -> np.ndarray:
    """(height, width, 3): the picture as bytes. NaN is black."""
    return (picture.nan_to_num(0).clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()


def figures(results: Results) -> Iterator[tuple[str, str, str, Figure]]:
    """The charts, as (section, file stem, caption, figure). A world has one if its subject has a kind of chart, or if it has seeds."""
    for name, section in results.sections.items():
        subject, kind = section.subject, section.subject.figure
        for number, (world, rows) in enumerate(section.worlds.items(), start=1):
            stem = name if len(section.worlds) == 1 else f"{name}-{number}"
            if kind is None and (seeds := _seeds(results, section, world)) is not None:
                yield name, stem, seeds.caption, _seeds_figure(seeds)
            elif kind is not None and kind.kind != PICTURES:  # the page shows pictures one by one
                figure = _paths(subject, kind.title.format(world=world), remove_installed(rows), results.era)
                yield name, stem, f"{subject.title}: {world}", figure


def _gallery(count: int, width: float, height: float, columns: int = 4) -> tuple[Figure, list[Axes]]:
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained", dpi=DPI)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels[count:]:
        panel.set_visible(False)
    return figure, panels[:count]


def strip_figure(strip: Strip) -> Figure:
    """The pictures of the strip, side by side."""
    figure, panels = _gallery(len(strip.tiles), 3.2, 2.85, columns=len(strip.tiles))
    for panel, tile in zip(panels, strip.tiles, strict=True):
        panel.imshow(pixels(tile.picture), interpolation="nearest")
        panel.set_title("\n".join([*textwrap.wrap(tile.title, 26), *filter(None, [tile.note])]), fontsize=16)
        panel.set_xticks([])
        panel.set_yticks([])
        for side in panel.spines.values():
            side.set(color=tile.frame, linewidth=3)
    return figure


def _seeds(results: Results, section: Section, world: str) -> Seeds | None:
    """The picture of the seeds of a world, if it has any. For a task it shows the score of every seed, with the best variant at the top."""
    if results.own is not None:
        return seeds_picture(results.own, own_worlds(results.own)[world])
    subject, rows = section.subject, remove_installed(section.worlds[world])
    if subject.score is None or not rows or not all(outcome.seeds for outcome in rows.values()):
        return None
    means = {name: outcome.numbers[subject.headline[0]] for name, outcome in rows.items()}
    ranked = sorted(means, key=means.__getitem__, reverse=subject.score.better == "higher")
    return Seeds(
        rows={name: rows[name].seeds for name in ranked},
        line=means,
        title=f"{subject.title}: {world}",
        label=f"{subject.headline[1]} ({subject.score.better} is better)",
        caption=f"{subject.title}: {world}; a dot for each seed, a line at the mean",
        names={name: display_name(name, results.era) for name in ranked},
    )


def _seeds_figure(seeds: Seeds) -> Figure:
    figure = Figure(figsize=seeds.size, layout="constrained", dpi=DPI)
    draw_seeds(seeds, figure.subplots())
    return figure


def _paths(subject: Subject, title: str, rows: World, era: str) -> Figure:
    figure, panels = _gallery(len(rows), 3.2, 2.5)
    for panel, (name, outcome) in zip(panels, rows.items(), strict=True):
        path = outcome.arrays["path"]
        low, high = outcome.arrays["range"].tolist()
        panel.axhspan(low, high, color="#f2f2f2", zorder=0)
        panel.plot(path[:, ::8].numpy(), color=colour(name), linewidth=0.7, alpha=0.7)
        panel.set_ylim(low - 1.1 * (high - low), high + 1.1 * (high - low))
        count = f"{outcome.numbers[subject.headline[0]]:.0f} of {path.shape[1]}"
        panel.set_title(f"{display_name(name, era)}: {count}", fontsize=10)
        panel.set_xlabel("step")
        panel.set_ylabel("x")
    figure.suptitle(f"{title}; every eighth path drawn, the range shaded")
    return figure
