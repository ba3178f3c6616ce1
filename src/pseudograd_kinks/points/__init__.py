"""The points, one file for each family. A file is found by itself: it has a tuple POINTS."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from ..point import Point

__all__ = ["defined"]


def defined() -> dict[str, Point]:
    """Every point by its id, family by family."""
    found: dict[str, Point] = {}
    for file in sorted(pkgutil.iter_modules(__path__), key=lambda file: file.name):
        for point in import_module(f".{file.name}", __package__).POINTS:
            if point.id in found:
                raise ValueError(f"kinks: {point.id} must be one point, got two. Rename one of them.")
            found[point.id] = point
    return found
