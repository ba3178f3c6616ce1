"""The geometry of a rule as data: in which region x can be, and what x and its bounds get of grad there.

A *region* is the position of x, such as below its min. A `Slope` is what a tensor gets of grad in a region. `Pieces` say for every region
what x, min and max get. Residuals, kernels, texts and audit read them, so no kernel names a rule. A test compares each row with its
formula, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .record import Record

# --- slopes of x alone ------------------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """The numbers from low to high, one of which may be infinite. has_low, has_high: does the interval contain this end? NaN is in none."""

    low: float
    high: float
    has_low: bool
    has_high: bool

    def holds(self, x: Tensor) -> Tensor:
        """A mask of the elements that the interval contains."""
        above = x >= self.low if self.has_low else x > self.low
        if self.has_high and self.high == math.inf:
            return above
        return above & (x <= self.high if self.has_high else x < self.high)


class Steps(Record):
    """The gradient is grad times one of a few slopes, so a call need only save the code of each element.

    slopes: the slope of each code, 2**bits in all. Where the slope is 0 the gradient is 0, whatever grad is.
    planes(x): the codes as bool tensors, the lowest bit first.
    Kernels read one of these two instead of `planes`:
        thresholds: the code is the number of thresholds that x is above (NaN is above all).
        interval: the code says whether x is in the interval; half precision is compared as float32.
    """

    slopes: tuple[float, ...]
    planes: Callable[[Tensor], list[Tensor]]
    thresholds: tuple[float, ...] = ()
    interval: Interval | None = None


Shape = Literal["box", "tent", "witch", "bump", "cusp", "normal"]


class Curve(NamedTuple):
    """A slope that falls with u = |x| / scale, from `height` where x is 0.

    box: height where u <= 1. tent: height * max(0, 1 - u). witch: height / (1 + (pi * u)^2). bump: height * 4 * e / (1 + e)^2 with
    e = exp(-u). cusp: height / (1 + u)^2. normal: height * exp(-u^2 / 2).
    """

    shape: Shape
    scale: float
    height: float


class Formula(NamedTuple):
    """A formula that the C code has for an op whose rule is more than a slope for each region: `formula_block` in native/blocks.h.

    The formula reads x and the tensors behind x.
    low, high: the range that the `sides` of the row speak of.
    numbers: as rules.h names them; for most formulas the number in place of an absent tensor.
    """

    name: Literal["loss", "grid", "jump", "jump and back", "surrogate", "room"]
    low: float | None = None
    high: float | None = None
    numbers: tuple[float, ...] = ()
    curve: Curve | None = None  # the slope of a step
    of_x: Callable[[Tensor], Tensor] | None = None  # of_x(x) is read in place of x
    b_of_x: Callable[[Tensor], Tensor] | None = None  # b_of_x(x) is read in place of the second tensor behind x


# --- slopes in a region -----------------------------------------------------------------------------------------------


class Reversal(NamedTuple):
    """Stands in a `Slope` for a factor times grad: -grad * min(1, distance of x from the range / (width * (max - min)))."""

    width: float


class Slope(NamedTuple):
    """grad times one factor where grad > 0, and times another where grad < 0.

    Equal factors hold for every grad. If they differ, a grad that is 0 or NaN stays as it is. A factor of 0 gives 0, for an infinite grad
    too.
    """

    positive: float | Reversal
    negative: float | Reversal


class Constant(NamedTuple):
    """A gradient that does not depend on grad."""

    value: float


class Symbol(float):
    """A number that has the name of a parameter: it shows where a row uses the parameter. Arithmetic makes a plain number of it."""

    name: str

    def __new__(cls, name: str) -> Symbol:
        symbol = super().__new__(cls, 0.5)  # any value: only the name is read
        symbol.name = name
        return symbol


Side = Slope | Constant
Sides = tuple[Side, Side]  # what x gets below the range, and above it
ALL, NOTHING = Slope(1.0, 1.0), Slope(0.0, 0.0)
INWARD: Sides = Slope(0.0, 1.0), Slope(1.0, 0.0)
SHARES = {"closed": 1.0, "open": 0.0, "half": 0.5}  # by edge: the share of grad that x gets exactly at a bound


def edge_reads_grad(edge: object) -> bool:
    """Does x get, at a bound, a share of grad that depends on the sign of grad?"""
    return isinstance(edge, str) and edge not in SHARES


def slope_times(side: Side, grad: Tensor) -> Tensor:
    """What x gets of grad in a region with this slope; in half precision rounded once."""
    return where_slope(torch.ones_like(grad, dtype=torch.bool), side, grad, grad)


def where_slope(mask: Tensor, side: Side, grad: Tensor, other: Tensor) -> Tensor:
    """The slope times grad where the mask is set, else `other`. If the factors differ, a factor of 1 leaves `other` as it is."""
    if isinstance(side, Constant):
        return torch.where(mask, side.value, other)
    if side.positive == side.negative:
        return torch.where(mask, _product(side.positive, grad), other)
    if side.positive != 1.0:
        other = torch.where(mask & (grad > 0), _product(side.positive, grad), other)
    return other if side.negative == 1.0 else torch.where(mask & (grad < 0), _product(side.negative, grad), other)


def _product(factor: float | Reversal, grad: Tensor) -> Tensor | float:
    assert not isinstance(factor, Reversal)
    if factor in (0.0, 1.0):
        return grad if factor else 0.0
    return (factor * (grad.float() if grad.dtype.itemsize == 2 else grad)).to(grad.dtype)


def read_sides(written: object) -> Sides:
    """Parse what a user wrote: for each side a pair of factors, or a number. Raises ValueError for anything else."""
    if not (isinstance(written, (tuple, list)) and len(written) == 2):
        raise ValueError(f"two sides, below and above, not {written!r}")
    return _parse_side(written[0]), _parse_side(written[1])


def _parse_side(written: object) -> Side:
    is_pair = isinstance(written, (tuple, list)) and not isinstance(written, Constant)
    numbers: list[float] = [*written] if isinstance(written, (tuple, list)) else [written]  # type: ignore[list-item]
    if not all(isinstance(number, (int, float)) and math.isfinite(number) for number in numbers):
        raise ValueError(f"finite numbers, not {written!r}")
    if is_pair and len(numbers) != 2:
        raise ValueError(f"a pair of factors, for grad > 0 and for grad < 0, not {written!r}")
    numbers = [number if isinstance(number, Symbol) else float(number) for number in numbers]
    return Slope(*numbers) if is_pair else Constant(*numbers)


# --- between two bounds, of which each may be a tensor ----------------------------------------------------------------


class Split(NamedTuple):
    """What x, its min and its max get of grad in a region: factors for every grad, or for x one of the slopes above."""

    x: Side | float = 0.0
    min: float = 0.0
    max: float = 0.0


class Pieces(NamedTuple):
    """A split of grad for every region of x and its two bounds; an absent bound counts as an infinity.

    below, at_min, inside, at_max, above: min < max.
    *_point: min and max are equal.
    *_crossed: min > max; x is below, at or above max.
    below_nan, above_nan, with_nan: a bound is NaN; x is below the other bound, above it, or neither (x may be NaN).
    nan, nan_crossed: x is NaN, and no bound is.
    """

    below: Split
    at_min: Split
    inside: Split
    at_max: Split
    above: Split
    below_point: Split
    at_point: Split
    above_point: Split
    below_crossed: Split
    at_crossed: Split
    above_crossed: Split
    below_nan: Split
    above_nan: Split
    with_nan: Split
    nan: Split
    nan_crossed: Split


REGIONS = Pieces._fields
ALL_TO_X, ALL_TO_MIN, ALL_TO_MAX, TO_NOBODY = Split(x=1.0), Split(min=1.0), Split(max=1.0), Split()


def pieces_of_sides(sides: Sides, edge: object, maximize: bool = False) -> Pieces:
    """The pieces of a rule with these sides and this edge. The bounds get the true gradient; with maximize x gets -rule(-grad).

    If the edge reads grad and x is at both bounds at once, no slope says what x gets: such calls are left to the formula.
    """
    share = SHARES.get(edge) if isinstance(edge, str) else None
    # The one edge that reads grad is "inward".
    at_min, at_max = INWARD if share is None else (Slope(share, share), Slope(share, share))
    x = (sides[0], sides[1], at_min, at_max)
    below, above, at_min, at_max = map(_ascent, x) if maximize else x
    rest = 0.0 if share is None else 1.0 - share
    return Pieces(*[ALL_TO_X] * len(REGIONS))._replace(
        below=Split(below, min=1.0),
        at_min=Split(at_min, min=rest),
        at_max=Split(at_max, max=rest),
        above=Split(above, max=1.0),
        below_point=Split(below, min=1.0),
        at_point=Split(NOTHING if share is None else at_min, min=rest),
        above_point=Split(above, max=1.0),
        below_crossed=Split(below, max=1.0),
        at_crossed=Split(at_max, max=rest),
        above_crossed=Split(above, max=1.0),
    )


def _ascent(side: Side) -> Side:
    """The side for maximize: what x gets of grad is -side(-grad)."""
    return Slope(side.negative, side.positive) if isinstance(side, Slope) else Constant(-side.value)


def pieces_of_numbers(share: float, has_min: bool, has_max: bool) -> Pieces:
    """x gets all of grad inside, this share of grad at a bound, and nothing elsewhere, not even where x is NaN."""
    at = Split(share)
    return Pieces(*[TO_NOBODY] * len(REGIONS))._replace(
        at_min=at if has_min else ALL_TO_X, inside=ALL_TO_X, at_max=at if has_max else ALL_TO_X, at_point=at
    )


def mirror(pieces: Pieces) -> Pieces:
    """The pieces for a max alone, from those for a min alone."""
    splits = Pieces(*[Split(split.x, split.max, split.min) for split in pieces])
    return splits._replace(
        below=splits.above,
        at_min=splits.at_max,
        at_max=splits.at_min,
        above=splits.below,
        below_point=splits.above_point,
        above_point=splits.below_point,
    )


def replace_edge(pieces: Pieces, share: float) -> Pieces:
    """x at a bound gets this share, and the bound the rest; if both bounds are equal, min gets it. Crossed bounds stay as they are."""
    rest = 1.0 - share
    return pieces._replace(at_min=Split(share, rest), at_max=Split(share, 0.0, rest), at_point=Split(share, rest))
