"""Products of parameters that take long: a choice of them in every run, the others with --slow."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def one_in(count: int, *axes: Iterable[Any]) -> list[Any]:
    """Every combination of the axes, all but one in `count` marked slow, along the diagonals: so that each value of each axis stays.

    That holds where the positions of the other axes add up to at least count - 1.
    """
    axes_of_values = [list(axis) for axis in axes]
    for axis in axes_of_values:
        others = sum(len(other) - 1 for other in axes_of_values) - (len(axis) - 1)
        assert others >= count - 1, f"one in {count} would leave out whole values of {axis}"
    return [
        pytest.param(
            *(value for _, value in combination),
            id="-".join(_name(value) for _, value in combination),
            marks=() if sum(position for position, _ in combination) % count == 0 else pytest.mark.slow,
        )
        for combination in itertools.product(*(enumerate(axis) for axis in axes_of_values))
    ]


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", value))
