"""The pictures that a run ends with: each with what it is a picture of, its number, and the colour of its rule."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor

from pseudograd.comparison.variants import INSTALLED, PROJECT, eras
from pseudograd.look.palette import colour

from .. import World
from ..base import OURS, Subject, eras_in
from ..sentences import are_alike, best
from .results import Results, cell

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


def display_name(variant: str, era: str = "") -> str:
    """Calls an era of torch.clamp by its versions of torch; `era`: the rule of the installed one."""
    if variant in eras():
        return f"torch.clamp, {eras()[variant].name}{' (yours)' if variant == era else ''}"
    return "clip after each step (project)" if variant == PROJECT else variant


def remove_installed(rows: World) -> World:
    """Without the installed torch.clamp, which is one of the eras."""
    return {name: outcome for name, outcome in rows.items() if name != INSTALLED}


def tiles(subject: Subject, rows: World, first: Mapping[str, Tensor], era: str) -> list[Tile]:
    """Where it starts and where it should go, then the result of each rule."""
    return [*_first_tiles(first), *(_tile(subject, name, rows, era) for name in remove_installed(rows))]


def _first_tiles(first: Mapping[str, Tensor]) -> list[Tile]:
    return [Tile(title, "", picture, FRAME) for title, picture in first.items()]


def strip(results: Results) -> Strip | None:
    """Of the first subject that says its finding: start and goals, torch.clamp, our default, and the best if that is another."""
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
    key = subject.headline[0]
    values = {name: outcome.numbers[key] for name, outcome in remove_installed(rows).items()}
    compared = [_tile(subject, name, rows, era) for name in eras_in(rows)]
    if are_alike(*(values[name] for name in eras_in(rows))):
        compared = [compared[0]._replace(title="torch.clamp, on any torch")]
    compared.append(_tile(subject, OURS, rows, era))
    if (first := best(values)) != OURS:
        tile = _tile(subject, first, rows, era)
        compared.append(tile._replace(title=f"best here: {tile.title}"))
    return compared


def _tile(subject: Subject, name: str, rows: World, era: str) -> Tile:
    key, unit = subject.headline
    note = cell(rows[name].numbers[key], unit)
    return Tile(display_name(name, era), note, rows[name].arrays["picture"], colour(name))


def pixels(picture: Tensor) -> np.ndarray:
    """(height, width, 3) bytes; what is not a number is black."""
    return (picture.nan_to_num(0).clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()


def as_data(picture: Tensor) -> str:
    """A PNG in base64."""
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, pixels(picture), format="png")
    return base64.b64encode(buffer.getvalue()).decode("ascii")
