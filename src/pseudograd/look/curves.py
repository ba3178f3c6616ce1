"""The curves of `plot`: functions with a label, and their lines, which are broken at jumps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import must
from ..ops.bounds import CLAMP
from ..parse_rule import parsed
from ..rule import BOUNDED, Edge, Op, Picture, RuleObject, make_call
from ..testing.measure.behaviour import count_talk
from ..testing.measure.numeric import jumps_of, resolution_of, short_decimal
from .gradient import FIX_RANDOM, checked_function, gradient, in_dtype, name_of, on_copy
from .palette import colour

Function = Callable[[Tensor], Tensor]
_DISTANCE_TO_JUMP = 1e-9  # from a jump to the nearest points, as a share of the range
_SMALLEST_JUMP = 1e-6
_POINTS = 801
_SMALL_PIECES = 60  # from this number of pieces on, each is a small part of the picture
_FEWEST_POINTS, _FEWEST_IN_SMALL_PIECE = 201, 9  # of a piece
Points = tuple[tuple[float, float], ...]


class Curve(NamedTuple):
    """A function of x to draw."""

    label: str
    f: Function
    y: str  # the text for its value in the legend
    colour: str
    jumps: tuple[float, ...] = ()  # the x where its slope may jump
    inside: tuple[float | None, float | None] | None = None  # the range of a clamp


class Grid(NamedTuple):
    """The x to draw at: pieces, and the jumps between them."""

    pieces: list[Tensor]
    jumps: list[float]


class Line(NamedTuple):
    """The points of a function; y is NaN at jumps."""

    x: Tensor
    y: Tensor
    dots: Points = ()  # the values exactly at jumps
    rings: Points = ()  # the limits beside jumps, if they differ from these values


def curve_of(drawable: object, op: Op, picture: Picture, edge: Edge | None, maximize: bool, position: int) -> Curve:
    """The curve of a rule of `op`, or of a function."""
    if isinstance(drawable, (str, RuleObject)):
        return _curve_of_rule(drawable, op, picture, edge, maximize)
    label = name_of(drawable)
    drawable = checked_function("plot", "f_or_rules", drawable, "rules or functions")
    drawable = on_copy(in_dtype(drawable, torch.float64), torch.float64)
    if edge is not None or maximize:
        argument, got = ("edge", edge) if edge is not None else ("maximize", maximize)
        raise ValueError(must("plot", argument, f"be left out for {label}", got, "Only rules have one"))
    if op is not CLAMP or not picture.others or not _takes(drawable, picture.others):
        return Curve(label, drawable, f"y = {label}(x)", colour(label, position))
    text, bounds = f"y = {label}({_arguments(picture.others)})", picture.others
    return Curve(label, lambda x: drawable(x, *bounds), text, colour(label, position), picture.bounds, bounds)


def _takes(f: Function, bounds: tuple[object, ...]) -> bool:
    """Does f take the bounds after x? Also true if f takes neither these nor x alone: then f raises its own error later."""
    x = torch.zeros(2, dtype=torch.float64)
    try:
        f(x, *bounds)
    except TypeError:
        try:
            f(x)
        except Exception:
            return True
        return False
    except Exception:
        return True
    return True


def _curve_of_rule(rule: str | RuleObject, op: Op, picture: Picture, edge: Edge | None, maximize: bool) -> Curve:
    """`edge` is for a rule whose name has none. Raises the errors of unknown rules and edges, before anything is drawn."""
    label, own_edge, chosen = str(rule), "", edge
    if isinstance(rule, str):
        text, _, own_edge = rule.partition("/")
        rule, _ = parsed(op, text, "plot: f_or_rules")
    if own_edge:  # an unknown edge stays a text, for the error of make_call
        chosen = next((known for known in op.edges if str(known) == own_edge), own_edge)
    chosen = op.default_edge if chosen is None else chosen
    call = make_call(op, rule, chosen, maximize)
    if maximize and not op.takes_maximize:
        raise ValueError(must("plot", "maximize", f"be left out for {op.name}", maximize))
    options: dict[str, object] = {"rule": rule} if len(op.rules) > 1 else {}
    options |= {"edge": chosen} if op.edges else {}
    options |= {"maximize": True} if maximize else {}
    inputs = picture.inputs_of or (lambda x: (x, *picture.others))
    y = "y" if picture.inputs_of else f"y = {op.name}({_arguments(picture.others) if op is CLAMP else 'x'})"
    if edge is not None and not own_edge and not call.rule.ignores_edge:
        label = f"{label}/{edge}"
    jumps = (*picture.bounds, *call.rule.jumps(**call.parameters))
    inside = picture.others if op.inputs == BOUNDED else None
    return Curve(label, lambda x: op.public(*inputs(x), **options), y, colour(label), jumps, inside)


def _arguments(bounds: tuple[object, ...]) -> str:
    low, high = bounds
    if low is None:
        return f"x, max={high:g}"
    return f"x, min={low:g}" if high is None else f"x, {low:g}, {high:g}"


def check_element_wise(argument: str, name: str, f: Function, x: Tensor) -> None:
    """Raise an error if f mixes the elements of x, draws random numbers, or returns another shape."""
    y, again = f(x), f(x)
    if not isinstance(y, Tensor) or y.shape != x.shape:
        is_sum = isinstance(y, Tensor) and not y.shape
        remedy = "Leave out .sum() or .mean(): plot draws one value for each x" if is_sum else None
        raise ValueError(must("plot", argument, "be element-wise, one value for each element of its input", y, remedy))
    if not y.is_floating_point():
        raise TypeError(must("plot", argument, "return floating-point numbers", y))
    grad = torch.linspace(-1, 2, len(x), dtype=y.dtype)
    slopes, slopes_again = (gradient(f, x, grad) for _ in range(2))
    talk = count_talk(f, x, grad)
    for what, first, second, depends in (
        ("value", y, again, talk.of_values),
        ("gradient", slopes, slopes_again, talk.of_gradients),
    ):
        if not torch.equal(first.nan_to_num(), second.nan_to_num()):
            raise ValueError(must("plot", argument, f"return the same {what}s for the same x", name, FIX_RANDOM))
        if depends.any():
            remedy = f"Its {what} at one x differs with the other x it is given"
            raise ValueError(must("plot", argument, "be element-wise", name, remedy))


def gradient_of(f: Function, grad: float) -> Function:
    return lambda x: gradient(f, x, grad)


def line_of(f: Function, grid: Grid, with_dots: tuple[float, ...] = ()) -> Line:
    """The line of f over the grid, with a dot where f jumps. with_dots: jumps that get a dot even if f is continuous there."""
    values = [f(piece).detach().to(torch.float64) for piece in grid.pieces]
    gap = torch.full((1,), torch.nan, dtype=torch.float64)
    x, y = [grid.pieces[0]], [values[0]]
    dots: Points = ()
    rings: Points = ()
    for jump, piece, value in zip(grid.jumps, grid.pieces[1:], values[1:], strict=True):
        exactly = f(torch.tensor([jump], dtype=torch.float64)).item()
        limits = dict.fromkeys((y[-1][-1].item(), value[0].item()))
        beside = [limit for limit in limits if not abs(limit - exactly) < _SMALLEST_JUMP * max(1.0, abs(exactly))]
        rings += tuple((jump, limit) for limit in beside)
        dots += ((jump, exactly),) if beside or jump in with_dots else ()
        x += [gap, piece] if beside else [piece]
        y += [gap, value] if beside else [value]
    return Line(torch.cat(x), torch.cat(y), dots, rings)


def number_names(curves: list[Curve]) -> list[Curve]:
    """Put a number behind each label that several curves have."""
    labels = [curve.label for curve in curves]
    counts = [labels[: i + 1].count(label) for i, label in enumerate(labels)]
    return [
        curve._replace(label=f"{curve.label} ({count})") if labels.count(curve.label) > 1 else curve
        for curve, count in zip(curves, counts, strict=True)
    ]


def jumps_in(functions: Iterable[Function], low: float, high: float) -> set[float]:
    """The x at which any of the functions jumps, as a short decimal if there is one."""
    x = torch.linspace(low, high, _POINTS, dtype=torch.float64)
    jumps: set[float] = set()
    for f in functions:
        eps = resolution_of(f, x)
        pairs = jumps_of(lambda at: f(at).detach().double(), x, eps)  # noqa: B023, used at once
        lefts, rights = (part.tolist() for part in pairs)
        jumps |= {short_decimal(left, right, high - low) for left, right in zip(lefts, rights, strict=True)}
    return jumps


def grid_of(picture: Picture, curves: list[Curve], more: Iterable[float] = ()) -> Grid:
    """The x to draw at: the pieces between the jumps, which end just beside them."""
    known = {*picture.bounds, *picture.jumps, *more, *(jump for curve in curves for jump in curve.jumps)}
    inner = sorted(jump for jump in known if picture.low < jump < picture.high)
    off = _DISTANCE_TO_JUMP * (picture.high - picture.low)
    starts = [picture.low, *(jump + off for jump in inner)]
    ends = [*(jump - off for jump in inner), picture.high]
    fewest = _FEWEST_POINTS if len(starts) < _SMALL_PIECES else _FEWEST_IN_SMALL_PIECE
    points = max(fewest, _POINTS // len(starts))
    pieces = [torch.linspace(a, b, points, dtype=torch.float64) for a, b in zip(starts, ends, strict=True)]
    return Grid(pieces, inner)
