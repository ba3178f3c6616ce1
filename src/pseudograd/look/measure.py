"""Chooses and measures the points of an audit: it locates kinks and jumps exactly, and divides the rest into regions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from ..testing.measure.behaviour import gradient_of
from ..testing.measure.numeric import (
    STEEP,
    Breaks,
    breaks,
    jumps_of,
    resolution_of,
    rounding_of,
    short_decimal,
    simplest,
    slope_of,
    smallest_distance,
    values,
)
from .audit_record import Curves, Region, Side

Function = Callable[[Tensor], Tensor]
Pair = tuple[float, float]
_KINDS = ("exact", "flat", "cut", "pseudo", "biased", "undefined", "kink", "jump")
_SLOPE_TOLERANCE = 1e-5  # relative: two slopes that differ by less are equal
_LARGEST_Y = 2.0**500
_USUAL_POWERS = 20  # x and y between 2**-20 and 2**20 are measured in units of 1
_ROUNDS, _GAPS_PER_ROUND = 10, 24  # `_refine` halves at most so many gaps in a round
_MOST_ROUND_NUMBERS = 256  # a narrow range far from 0 would have more; none of them is tried then
_STEEP_CHANGE = 0.02  # as a share of the size of the gradient, from one point to the next


class Break(NamedTuple):
    """A kink or a jump of the values, at x. left, right: the derivative on each side."""

    x: float
    left: float
    right: float
    is_jump: bool


class End(NamedTuple):
    """The x at which the value and both gradients stop being finite, or start."""

    x: float
    has_finite: bool  # are they finite at x itself?
    undefined: float  # x if they are not finite there, else the number next to x at which they are not


class Measured(NamedTuple):
    """The points, and at each point the value, the derivative with its error, and the slope for both signs of grad."""

    x: Tensor
    y: Tensor
    slope: Tensor
    error: Tensor
    positive: Tensor
    negative: Tensor
    breaks: tuple[Break, ...]  # the kinks and jumps among the points
    pairs: tuple[Pair, ...]  # pairs of neighbouring numbers between which the gradient jumps and the value does not
    ends: tuple[End, ...] = ()  # the points at which value and gradient stop being finite, or start
    noise: Tensor | float = 0.0  # the change of a slope that rounding can explain

    @property
    def is_break(self) -> Tensor:
        return torch.isin(self.x, torch.tensor([each.x for each in self.breaks], dtype=self.x.dtype))

    @property
    def curves(self) -> Curves:
        slope = torch.where(self.is_break, torch.nan, self.slope)
        return Curves(self.x, self.y, slope, self.positive, self.negative)


def measure(f: Function, low: float, high: float, points: int, at: Iterable[float]) -> Measured:
    """Measure f at evenly spaced points, at its kinks and jumps, on both sides of each jump of its gradient, and between all of these.

    at: further points.
    """
    # The grid has evenly spaced points, the points in `at`, and the points where a value or gradient stops being finite.
    special = [value for value in (*at, 0.0, *_round_numbers(low, high)) if low <= value <= high]
    grid = torch.linspace(low, high, points, dtype=torch.float64)
    gradients: list[Function] = [lambda x: gradient_of(f, x, 1.0), lambda x: -gradient_of(f, x, -1.0)]
    eps, *eps_of_gradients = (resolution_of(g, grid) for g in (f, *gradients))
    near = smallest_distance(eps, low, high)
    grid = torch.cat([_drop_near(grid, special, near), torch.tensor(special, dtype=grid.dtype)]).unique()
    jumps = [
        pair for g, g_eps in zip(gradients, eps_of_gradients, strict=True) for pair in _gradient_jumps(g, grid, g_eps)
    ]
    ends = _find_ends(lambda x: (values(f, x) + gradients[0](x) + gradients[1](x)).isfinite().double(), grid)
    undefined = torch.tensor([end.undefined for end in ends], dtype=grid.dtype)
    grid = torch.cat([_drop_near(grid, [end.x for end in ends], near), undefined]).unique()
    # The kinks and jumps, and more points around them.
    units = unit_x, unit_y = _units(f, grid)
    steepness = unit_y / unit_x
    starts, after, left, right, *kinds = breaks(_in_units(f, units), grid / unit_x, eps)
    brackets = Breaks(starts * unit_x, after * unit_x, left * steepness, right * steepness, *kinds)
    at_ends = [end.x for end in ends]
    located = _locate(f, brackets, [*special, *at_ends], [*jumps, *zip(at_ends, at_ends, strict=True)], near, eps)
    known = [*(each.x for each in located), *at_ends]
    pairs = tuple(sorted({pair for pair in jumps if all(abs(pair[0] - at) > 4 * near for at in known)}))
    x = _refine(f, _join_points(grid, located, pairs, near), jumps, near)
    # The derivative.
    has_value = values(f, undefined).isfinite().tolist()
    ends_of_values = [end.x for end, has in zip(ends, has_value, strict=True) if not has]
    step = _steps(x, [*(each.x for each in located), *ends_of_values], eps**0.25 * (high - low), near)
    slope, error = (part * steepness for part in slope_of(_in_units(f, units), x / unit_x, step / unit_x, eps))
    noises = [rounding_of(g, x, g_eps) for g, g_eps in zip(gradients, eps_of_gradients, strict=True)]
    at_jumps = torch.tensor([end for pair in pairs for end in (*pair, simplest(*pair))], dtype=x.dtype)
    noise = torch.stack(noises).amax(0).where(~torch.isin(x, at_jumps), 0.0)
    y = values(f, x)
    slope = slope.where(y.isfinite(), torch.nan)
    m = Measured(x, y, slope, error, gradients[0](x), gradients[1](x), located, pairs, ends, noise)
    return m._replace(error=_largest_error_around(m))


def _in_units(f: Function, units: Pair) -> Function:
    return lambda x: values(f, x * units[0]) / units[1]


def _steps(x: Tensor, kinks: Iterable[float], largest: float, near: float) -> Tensor:
    """The step of the difference at each x: small enough to stay on one side of every kink."""
    step = torch.full_like(x, largest)
    gaps = torch.cat([x[:1] - near, x, x[-1:] + near]).diff()
    step = torch.minimum(step, torch.maximum(gaps[:-1], gaps[1:]).clamp(min=8 * near) / 2)
    for kink in kinks:
        distance = (x - kink).abs()
        step = torch.where(distance > 0, torch.minimum(step, distance / 3), step)
    return step


def _round_numbers(low: float, high: float) -> list[float]:
    """A few numbers with one or two digits, as programs write them. linspace may miss them by a rounding."""
    unit = 10.0 ** math.floor(math.log10(high - low)) / 20
    first, last = math.ceil(low / unit), math.floor(high / unit)
    return [float(f"{k * unit:.12g}") for k in range(first, last + 1)] if last - first < _MOST_ROUND_NUMBERS else []


def _drop_near(grid: Tensor, numbers: Iterable[float], distance: float) -> Tensor:
    """The points of the grid that are further than `distance` from each of the numbers."""
    for number in numbers:
        grid = grid[(grid - number).abs() > distance]
    return grid


def _find_ends(is_finite: Function, grid: Tensor) -> tuple[End, ...]:
    """The ends of the parts of the range where `is_finite` is 1."""
    ends = []
    lows, highs = jumps_of(is_finite, grid)
    for low, high in zip(lows.tolist(), highs.tolist(), strict=True):
        x = short_decimal(low, high, grid.abs().max().item())
        at_x, at_low, _ = is_finite(torch.tensor([x, low, high], dtype=grid.dtype)).bool().tolist()
        undefined = x if not at_x else high if at_low else low
        ends.append(End(x, at_x, undefined))
    return tuple(ends)


def _largest_error_around(m: Measured) -> Tensor:
    """The largest error of each point and its two neighbours. The error at a point compares two estimates, which may agree by chance."""
    known = m.error.where(~m.is_break & m.error.isfinite(), 0.0)
    around = torch.cat([known[:1], known, known[-1:]]).unfold(0, 3, 1).amax(1)
    return torch.maximum(m.error, around)


def _units(f: Function, grid: Tensor) -> Pair:
    """The units of x and y: 1 for numbers of usual size, else a power of two, so that tiny values count and huge values do not overflow."""
    y = values(f, grid).abs()
    largest = y[y.isfinite()].max().item() if y.isfinite().any() else 0.0
    exponents = [math.frexp(size)[1] for size in (grid.abs().max().item(), largest)]
    unit_x, unit_y = (1.0 if abs(power) <= _USUAL_POWERS else math.ldexp(1.0, power) for power in exponents)
    unit_y = unit_y if largest else unit_x
    # A unit of the size of the largest y would hide a small y. So it is used only where the unit 1 is worse.
    is_needed = unit_y < 1.0 or unit_y > _LARGEST_Y
    return unit_x, unit_y if is_needed else 1.0


def _refine(f: Function, x: Tensor, jumps: list[Pair], near: float) -> Tensor:
    """Add points where the gradient changes much between two neighbours and does not jump, so that no peak between them is missed."""
    jump_ends = torch.tensor([end for pair in jumps for end in pair], dtype=x.dtype).unique()
    for _ in range(_ROUNDS):
        slopes = torch.stack([gradient_of(f, x, 1.0), gradient_of(f, x, -1.0)])
        slopes = torch.where(slopes.isfinite(), slopes, 0.0)
        size = (slopes.amax(1) - slopes.amin(1)).clamp(min=torch.finfo(x.dtype).tiny)
        change = (slopes.diff(dim=1).abs() / size.unsqueeze(1)).amax(0)
        gaps = x.diff()
        has_jump = torch.searchsorted(jump_ends, x[:-1]) != torch.searchsorted(jump_ends, x[1:], right=True)
        steep = (change > _STEEP_CHANGE) & (gaps > 8 * near) & ~has_jump
        if not steep.any():
            break
        steepest = change.where(steep, 0.0).topk(min(_GAPS_PER_ROUND, int(steep.sum()))).indices
        x = torch.cat([x, x[steepest] + gaps[steepest] / 2]).unique()
    return x


def _gradient_jumps(gradient: Function, grid: Tensor, eps: float) -> list[Pair]:
    """Pairs of numbers between which the gradient jumps. A round number, as programs write it, is one of the two or lies between them."""
    pairs = []
    lows, highs = jumps_of(gradient, grid, eps)
    for low, high in zip(lows.tolist(), highs.tolist(), strict=True):
        number = short_decimal(low, high, grid.abs().max().item())
        low, high = min(low, math.nextafter(number, -math.inf)), max(high, math.nextafter(number, math.inf))
        at_low, at_number, at_high = gradient(torch.tensor([low, number, high], dtype=torch.float64)).tolist()
        tolerance = STEEP * abs(at_high - at_low)
        if abs(at_number - at_low) <= tolerance:
            low = number
        elif abs(at_number - at_high) <= tolerance:
            high = number
        pairs.append((low, high))
    return pairs


def _locate(
    f: Function, brackets: Breaks, special: list[float], jumps: list[Pair], near: float, eps: float
) -> tuple[Break, ...]:
    """One x for each bracket: a jump of the gradient inside it, or the point where the two sides meet.

    A function that is flat on one side may be a clamp, whose value there is the bound. An x that equals this value up to rounding is
    replaced by it.
    """
    located: list[Break] = []
    for low, high, left, right, is_jump, is_cusp in zip(*(part.tolist() for part in brackets), strict=True):
        room = near if is_jump else 3 * near
        jumps_inside = [simplest(*pair) for pair in jumps if low - room <= pair[0] and pair[1] <= high + room]
        middle = low + (high - low) / 2
        if jumps_inside:
            x = min(jumps_inside, key=lambda x: abs(x - middle))
        elif is_jump or is_cusp:
            known = [x for x in special if low - near <= x <= high + near]
            x = known[0] if known else short_decimal(low, high, 1.0)
        else:
            x = _meeting_point(f, low - near, high + near, left, right, special, eps)
        beside = torch.tensor([low - near, high + near], dtype=torch.float64)
        for y, slope in zip(values(f, beside).tolist(), (left, right), strict=True):
            if abs(slope) < _SLOPE_TOLERANCE and abs(y - x) <= 4 * torch.finfo(torch.float64).eps * abs(x):
                x = y
                break
        if not located or x - located[-1].x > 4 * near:
            located.append(Break(x, left, right, is_jump))
    return tuple(located)


def _meeting_point(
    f: Function, low: float, high: float, left: float, right: float, special: list[float], eps: float
) -> float:
    """The x where the lines through the values at low and high meet, or a known or round number that is equal to it within rounding."""
    ends = torch.tensor([low, high], dtype=torch.float64)
    at_low, at_high = values(f, ends).tolist()
    x = low + (at_high - at_low - right * (high - low)) / (left - right)
    size = max(abs(low), abs(high), (abs(at_low) + abs(at_high)) / abs(left - right))
    room = 8 * eps * size
    flat = [y for y, slope in ((at_low, left), (at_high, right)) if abs(slope) < _SLOPE_TOLERANCE]
    known = [number for number in (*special, *flat) if abs(number - x) <= room]
    return known[0] if known else short_decimal(x - room, x + room, 0.0)


def _join_points(grid: Tensor, located: tuple[Break, ...], pairs: tuple[Pair, ...], near: float) -> Tensor:
    """The breaks; both numbers of each pair and the simplest number between them; three points in every wide gap; and the points of the
    grid that are not beside a break or a pair.
    """
    ends = sorted({each.x for each in located} | {x for a, b in pairs for x in (a, b, simplest(a, b))})
    for low, high in pairs:
        grid = grid[(grid < low - 2 * near) | (grid > high + 2 * near)]
    all_ends = torch.tensor([grid[0].item(), *ends, grid[-1].item()], dtype=grid.dtype)
    gaps = all_ends[1:] - all_ends[:-1]
    grid = _drop_near(grid, [each.x for each in located], 2 * near)
    wide = gaps > 16 * near
    between = [all_ends[:-1][wide] + share * gaps[wide] for share in (0.25, 0.5, 0.75)]
    return torch.cat([grid, torch.tensor(ends, dtype=grid.dtype), *between]).unique()


def regions_of(m: Measured) -> tuple[Region, ...]:
    """The regions: neighbouring points that have the same kind for each sign of grad. A kink or jump of the values is a region by itself.

    A jump of the gradient ends a region, even between points of the same kinds.
    """
    x, is_break, has_value = m.x.tolist(), m.is_break.tolist(), m.y.isfinite().tolist()
    by_sign = (_drop_lone_points(_kinds(m, slopes), is_break) for slopes in (m.positive, m.negative))
    kinds = list(zip(*by_sign, strict=True))
    after_jump = {x for pair in m.pairs for x in (simplest(*pair), pair[1]) if x != pair[0]}
    starts = [0]
    for i in range(1, len(x)):
        is_beside_break = is_break[i] or is_break[i - 1]
        has_changed = kinds[i] != kinds[i - 1] or has_value[i] != has_value[i - 1]
        if is_beside_break or has_changed or x[i] in after_jump:
            starts.append(i)
    sides_of_break = {each.x: (each.left, each.right) for each in m.breaks}
    regions = []
    for start, end in zip(starts, [*starts[1:], len(x)], strict=True):
        low, has_low, is_low_exact = _find_end(m, x, is_break, start, start - 1, kinds[start][0])
        high, has_high, is_high_exact = _find_end(m, x, is_break, end - 1, end, kinds[start][0])
        ranges = [
            (slopes[start:end].min().item(), slopes[start:end].max().item())
            for slopes in (m.slope, m.positive, m.negative)
        ]
        slope = sides_of_break[x[start]] if is_break[start] else ranges[0]
        positive, negative = (Side(kind, *ends) for kind, ends in zip(kinds[start], ranges[1:], strict=True))
        regions.append(Region(low, high, has_low, has_high, slope, positive, negative, is_low_exact, is_high_exact))
    return tuple(regions)


def _kinds(m: Measured, slopes: Tensor) -> list[str]:
    """The kind of each point for one sign of grad, as `audit` explains the kinds. A slope as small as the error of the derivative counts
    as 0. If a point fits several lines below, the last of these lines gives its kind.
    """
    difference, size = (slopes - m.slope).abs(), torch.maximum(slopes.abs(), m.slope.abs())
    is_flat = m.slope.abs() <= 2 * m.error
    kinds = torch.full_like(slopes, _KINDS.index("biased"), dtype=torch.long)
    kinds[slopes == 0] = _KINDS.index("cut")
    kinds[is_flat] = _KINDS.index("pseudo")
    kinds[difference <= _SLOPE_TOLERANCE * size + 2 * m.error + 4 * m.noise] = _KINDS.index("exact")
    kinds[is_flat & (slopes.abs() <= 2 * m.error)] = _KINDS.index("flat")
    kinds[~(m.y.isfinite() & m.slope.isfinite() & slopes.isfinite())] = _KINDS.index("undefined")
    for each in m.breaks:
        kinds[m.x == each.x] = _KINDS.index("jump" if each.is_jump else "kink")
    return [_KINDS[kind] for kind in kinds.tolist()]


# By the kind of a curve: the kinds that a single point may have where this curve crosses another one, or crosses 0.
_KINDS_AT_CROSSING = {"exact": ("flat",), "biased": ("exact", "flat", "cut", "pseudo")}


def _drop_lone_points(kinds: list[str], is_break: list[bool]) -> list[str]:
    """Give a single point at which curves cross the kind of its neighbour."""
    result = list(kinds)
    for i, kind in enumerate(kinds):
        beside = [kinds[k] for k in (i - 1, i + 1) if 0 <= k < len(kinds) and not is_break[k]]
        if not is_break[i] and kind not in beside:
            result[i] = next((other for other in beside if kind in _KINDS_AT_CROSSING.get(other, ())), kind)
    return result


def _find_end(
    m: Measured, x: list[float], is_break: list[bool], inner: int, outer: int, kind: str
) -> tuple[float, bool, bool]:
    """The end of a region; is the end part of the region; is the end exact?

    An end is exact at a break, at a jump of the gradient, and where value or gradient becomes infinite or NaN. Other ends are points.
    inner, outer: the index of the last point in the region, and of the next point outside.
    """
    if is_break[inner] or not 0 <= outer < len(x):
        return x[inner], True, True
    if is_break[outer]:
        return x[outer], False, True
    low, high = sorted((x[inner], x[outer]))
    for end in m.ends:
        if low <= end.x <= high:
            is_inside = x[inner] == end.x or (x[outer] != end.x and end.has_finite == (kind != "undefined"))
            return end.x, is_inside, True
    if (low, high) in m.pairs:
        between = simplest(low, high)
        return between, between == x[inner], True
    return x[max(inner, outer)], inner > outer, False


def shares_of(regions: Iterable[Region]) -> dict[str, dict[str, float]]:
    """The share of each kind in the total length of the regions, for both signs of grad."""
    shares: dict[str, dict[str, float]] = {"grad > 0": {}, "grad < 0": {}}
    regions = list(regions)
    length = sum(region.high - region.low for region in regions)
    for region in regions:
        if region.high > region.low:
            for sign, side in zip(shares, (region.positive, region.negative), strict=True):
                shares[sign][side.kind] = shares[sign].get(side.kind, 0.0) + (region.high - region.low) / length
    return shares
