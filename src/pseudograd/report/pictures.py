"""The pictures that a run ends with: each with what it is a picture of, its number, and the colour of its rule."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..analysis.palette import colour
from ..tasks import Task, World
from ..tasks.base import ERAS, INSTALLED, PROJECT
from ..tasks.words import OURS, are_alike, best
from ..torch_eras import ERAS as ERAS_OF_TORCH
from .results import Results
from .tables import cell

PICTURES = "pictures"  # the kind of figure that these are
FRAME = "#7a7a7a"  # of a picture that no rule made


class Tile(NamedTuple):
    """note: its number, if it has one. picture: (3, height, width), from 0 to 1."""

    title: str
    note: str
    picture: Tensor
    frame: str

    @property
    def text(self) -> str:
        """For who cannot see it."""
        return f"{self.title}, {self.note}" if self.note else self.title


class Strip(NamedTuple):
    """The pictures that a report opens with, and what is said above them."""

    sentence: str
    tiles: list[Tile]


def shown_name(variant: str, era: str = "") -> str:
    """An era of torch.clamp is called by what it is; `era`: the rule of the installed one."""
    for version, record in ERAS_OF_TORCH.items():
        if variant == record.rule:
            return f"torch.clamp, {version}{' (yours)' if variant == era else ''}"
    return "clip after each step (project)" if variant == PROJECT else variant


def drawn(rows: World) -> World:
    """Without the installed torch.clamp, which is one of the eras."""
    return {name: measured for name, measured in rows.items() if name != INSTALLED}


def tiles(task: Task, rows: World, first: Mapping[str, Tensor], era: str) -> list[Tile]:
    """Where it starts and where it should go, then what became of it under each rule."""
    given = [Tile(title, "", picture, FRAME) for title, picture in first.items()]
    return [*given, *(_tile(task, name, rows, era) for name in drawn(rows))]


def strip(results: Results) -> Strip | None:
    """Of the first task that says its finding: start and goals, torch.clamp, our default, and the best if that is another."""
    for name, worlds in results.tasks.items():
        task = results.records[name]
        if task.finding is None or task.figure is None:
            continue
        for world, rows in worlds.items():
            if OURS in rows:
                given = [Tile(title, "", picture, FRAME) for title, picture in results.first[name, world].items()]
                return Strip(task.finding(rows), [*reversed(given), *_compared(task, rows, results.era)])
    return None


def _compared(task: Task, rows: World, era: str) -> list[Tile]:
    key = task.headline[0]
    values = {name: measured.numbers[key] for name, measured in drawn(rows).items()}
    closed, opened = (_tile(task, name, rows, era) for name in ERAS)
    alike = are_alike(*(values[name] for name in ERAS))
    found = [closed._replace(title="torch.clamp, on any torch")] if alike else [closed, opened]
    found.append(_tile(task, OURS, rows, era))
    if (first := best(values)) != OURS:
        tile = _tile(task, first, rows, era)
        found.append(tile._replace(title=f"best here: {tile.title}"))
    return found


def _tile(task: Task, name: str, rows: World, era: str) -> Tile:
    key, unit = task.headline
    return Tile(shown_name(name, era), cell(rows[name].numbers[key], unit), rows[name].arrays["picture"], colour(name))


def pixels(picture: Tensor) -> np.ndarray:
    """(height, width, 3) bytes; what is not a number is black."""
    return (picture.nan_to_num(0).clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()


def as_data(picture: Tensor) -> str:
    """A PNG in base64."""
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, pixels(picture), format="png")
    return base64.b64encode(buffer.getvalue()).decode("ascii")
