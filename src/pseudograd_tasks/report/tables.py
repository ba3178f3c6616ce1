"""Results as table cells, for the page, the terminal and the titles of pictures."""

from __future__ import annotations

import math
from typing import Any

from pseudograd.look.palette import colour

from .. import World
from ..base import Subject


def table(subject: Subject, world: str, by_variant: World) -> dict[str, Any]:
    """One world as a table: a row for each variant, in the order they ran."""
    return {
        "world": world,
        "columns": list(subject.columns.values()),
        "rows": [
            {"name": name, "colour": colour(name), "cells": [cell(outcome.numbers[key]) for key in subject.columns]}
            for name, outcome in by_variant.items()
        ],
    }


def cell(value: float, unit: str = "") -> str:
    """A number as a reader wants it: one decimal where it is large, three digits where it is small."""
    if value != value:
        return "not a number"
    text = f"{value:.1f}" if abs(value) >= 1 else f"{value:.3g}"
    if math.isfinite(value) and value == int(value) and not unit:
        text = f"{value:.0f}"
    return f"{text} {unit}" if unit else text
