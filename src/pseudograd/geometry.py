"""What a rule's row says of its geometry: where x may stand, and what passes there. Data, which no formula hides.

Residuals, kernels, texts and audit read it, so that none of them names a rule. A test holds each row to its formula, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .record import Record

# --- a few slopes of x alone ------------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """Between two numbers, one of which may be infinite, each of them in it or not. NaN is in none."""

    low: float
    high: float
    has_low: bool
    has_high: bool

    def holds(self, x: Tensor) -> Tensor:
        """Where x is in it, as bools."""
        above = x >= self.low if self.has_low else x > self.low
        if self.has_high and self.high == math.inf:
            return above
        return above & (x <= self.high if self.has_high else x < self.high)


class Steps(Record):
    """A gradient that is grad times one of a few slopes: so a call need only keep which.

    slopes[code] is the slope of an element, 2**bits of them; where it is 0 the gradient is 0, whatever grad is. planes(x): the code of
    x as bool tensors, the lowest bit first. For kernels, one of: thresholds, where the code counts those that x is above (x that is NaN
    is above all); interval, where the code says whether x is in it, half precision compared as float32.
    """

    slopes: tuple[float, ...]
    planes: Callable[[Tensor], list[Tensor]]
    thresholds: tuple[float, ...] = ()
    interval: Interval | None = None


# --- a slope that falls with |x| --------------------------------------------------------------------------------------

Shape = Literal["box", "tent", "witch", "bump", "cusp", "normal"]


class Curve(NamedTuple):
    """A slope of x, from `height` where x is 0 down with u = |x| / scale.

    box: height where u <= 1. tent: height * max(0, 1 - u). witch: height / (1 + (pi * u)^2). bump: height * 4 * e / (1 + e)^2 with
    e = exp(-u). cusp: height / (1 + u)^2. normal: height * exp(-u^2 / 2).
    """

    shape: Shape
    scale: float
    height: float


# --- the two sides of a range -----------------------------------------------------------------------------------------


class Turned(NamedTuple):
    """In the place of a factor: -grad, as much of it as x is away from the range; all of it from width * (max - min) on."""

    width: float


class Asked(float):
    """A parameter in the place of its number, for whoever asks a row where it stands. What a row computes of it is a plain number."""

    name: str

    def __new__(cls, name: str) -> Asked:
        one = super().__new__(cls, 0.5)
        one.name = name
        return one


class Share(NamedTuple):
    """What x gets of grad at a place: grad times one factor where grad > 0, times the other where grad < 0.

    Where the factors are equal they are for every grad; else a grad that is 0 or NaN stays as it is. A factor of 0 gives 0, of an
    infinite grad too.
    """

    positive: float | Turned
    negative: float | Turned


Side = Share | float  # a number is what x gets, whatever grad is
Sides = tuple[Side, Side]  # below the range, and above it
ALL, NOTHING = Share(1.0, 1.0), Share(0.0, 0.0)
INWARD: Sides = Share(0.0, 1.0), Share(1.0, 0.0)  # what leads back
SHARES = {"closed": 1.0, "open": 0.0, "half": 0.5}  # of grad, for x exactly at the edge


def edge_reads_grad(edge: object) -> bool:
    """Does x at the edge get a share of grad that depends on the sign of grad? The other edges give a fixed share, or none."""
    return isinstance(edge, str) and edge not in SHARES


class Places(NamedTuple):
    """What x gets at each place that is not inside the range. Inside it gets all of grad, and so does x that is NaN."""

    below: Side
    above: Side
    at_min: Side
    at_max: Side


def places(sides: Sides, edge: object, maximize: bool = False) -> Places:
    """From what passes on both sides and what the edge says; under ascent as -rule(-grad)."""
    at = SHARES.get(edge) if isinstance(edge, str) else None
    ends = INWARD if at is None else (Share(at, at),) * 2
    found = Places(*sides, *ends)
    return Places(*map(_of_ascent, found)) if maximize else found


def _of_ascent(side: Side) -> Side:
    return Share(side.negative, side.positive) if isinstance(side, Share) else -side


def shared(side: Side, grad: Tensor) -> Tensor:
    """What x gets of grad where nothing is turned; in half precision rounded once."""
    return with_share(grad, grad, torch.ones_like(grad, dtype=torch.bool), side)


def with_share(found: Tensor, grad: Tensor, there: Tensor, side: Side) -> Tensor:
    """What is found, and there the share of grad. Where the signs of grad tell factors apart, a factor of 1 leaves what is found."""
    if not isinstance(side, Share):
        return torch.where(there, side, found)
    if side.positive == side.negative:
        return torch.where(there, _times(side.positive, grad), found)
    if side.positive != 1.0:
        found = torch.where(there & (grad > 0), _times(side.positive, grad), found)
    return found if side.negative == 1.0 else torch.where(there & (grad < 0), _times(side.negative, grad), found)


def _times(factor: float | Turned, grad: Tensor) -> Tensor | float:
    assert not isinstance(factor, Turned)
    if factor in (0.0, 1.0):
        return grad if factor else 0.0
    return (factor * (grad.float() if grad.dtype.itemsize == 2 else grad)).to(grad.dtype)


def as_sides(given: object) -> Sides:
    """What a user wrote: for each side a pair of factors, or a number. ValueError, where it is neither."""
    if not (isinstance(given, (tuple, list)) and len(given) == 2):
        raise ValueError(f"two sides, below and above, not {given!r}")
    return _as_side(given[0]), _as_side(given[1])


def _as_side(given: object) -> Side:
    numbers = given if isinstance(given, (tuple, list)) else (given,)
    if not all(isinstance(number, (int, float)) and math.isfinite(number) for number in numbers):
        raise ValueError(f"finite numbers, not {given!r}")
    if numbers is not given:
        return _number(numbers[0])
    if len(numbers) != 2:
        raise ValueError(f"a pair of factors, for grad > 0 and for grad < 0, not {given!r}")
    return Share(_number(numbers[0]), _number(numbers[1]))


def _number(given: float) -> float:
    return given if isinstance(given, Asked) else float(given)


# --- between two bounds, of which each may be a tensor ----------------------------------------------------------------


class Split(NamedTuple):
    """What x, its min and its max get of grad at a place, each as a factor. A factor of 0 gives 0, of an infinite grad too."""

    x: float = 0.0
    min: float = 0.0
    max: float = 0.0


class Standings(NamedTuple):
    """What each gets wherever x can stand between two bounds; an absent one stands as an infinity.

    below to above: where min < max. *_point: where they are equal. crossed: where min > max. *_nan: where one of them is NaN, and x is
    below the other one, above it, or neither, as x is that is NaN. nan, nan_crossed: of the rest, x that is NaN.
    """

    below: Split
    at_min: Split
    inside: Split
    at_max: Split
    above: Split
    below_point: Split
    at_point: Split
    above_point: Split
    crossed: Split
    below_nan: Split
    above_nan: Split
    with_nan: Split
    nan: Split
    nan_crossed: Split


class Beside(NamedTuple):
    """What x and its only bound get: x beyond it, at it, within it; x that is NaN; a bound that is NaN, whatever x is."""

    beyond: Split
    at: Split
    within: Split
    nan: Split
    bound_nan: Split


class Stands(NamedTuple):
    """A call as kernels read it: the bounds of x, None where there is none, and what passes."""

    low: Any
    high: Any
    standings: Standings


ALL_TO_X, ALL_TO_MIN, ALL_TO_MAX, TO_NOBODY = Split(x=1.0), Split(min=1.0), Split(max=1.0), Split()


def between_numbers(share: float, has_min: bool, has_max: bool) -> Standings:
    """All of grad inside, at a bound this share of it, else nothing; so x that is NaN gets nothing."""
    at = Split(x=share)
    return Standings(*[TO_NOBODY] * 14)._replace(
        at_min=at if has_min else ALL_TO_X, inside=ALL_TO_X, at_max=at if has_max else ALL_TO_X, at_point=at
    )


def above_min(row: Beside) -> Standings:
    """With a min alone, in whose place `row` has its bound. What cannot be is as within."""
    return Standings(*[row.within] * 14)._replace(
        below=row.beyond, at_min=row.at, below_point=row.beyond, at_point=row.at, nan=row.nan, with_nan=row.bound_nan
    )


def below_max(row: Beside) -> Standings:
    """With a max alone, which gets what the min of `row` does."""
    beyond, at, within, nan, bound_nan = (Split(split.x, 0.0, split.min) for split in row)
    return Standings(*[within] * 14)._replace(
        above=beyond, at_max=at, above_point=beyond, at_point=at, nan=nan, with_nan=bound_nan
    )


def with_edge(standings: Standings, share: float) -> Standings:
    """At a bound, where bounds are not crossed: x gets this share, and the bound the rest; of two that are one point, min."""
    rest = 1.0 - share
    return standings._replace(at_min=Split(share, rest), at_max=Split(share, 0.0, rest), at_point=Split(share, rest))
