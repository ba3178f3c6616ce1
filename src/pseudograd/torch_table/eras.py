"""What torch's own clamps do exactly at a bound, as one record for each era. torch 2.14 changed it without an error.

The formulas are those of torch's derivatives.yaml: 2.13 for "torch<=2.13", 2.15 for "torch>=2.14". They also say what else differs between
the eras: NaN in x or in a tensor bound, and crossed bounds.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..errors import must
from ..geometry import ALL_TO_MAX, ALL_TO_MIN, ALL_TO_X, SHARES, TO_NOBODY, Pieces, Split
from ..record import Record
from .private import constant_result

Version = tuple[int, int]
Three = tuple[Tensor | None, Tensor | None, Tensor | None]


class Slopes(NamedTuple):
    """The shares of grad at a bound: the share of x, and the share of a bound that is a tensor (None for a number)."""

    x: float
    bound: float | None = None


class Era(Record):
    """The versions of torch, from `since` on, that do the same at a bound.

    of_tensors(grad, x, min, max): the gradients of torch.clamp with tensor bounds.
    pieces_of_bounds, pieces_of_min_alone: these gradients as data, for two bounds and for a min alone.
    """

    name: str
    since: Version
    edge: str  # our name for what x gets at a bound that is a number
    share_in_fmax: float  # the share of grad that x gets in fmin and fmax at a tie; the other input gets the rest
    of_tensors: Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Three]
    pieces_of_bounds: Pieces
    pieces_of_min_alone: Pieces

    @property
    def rule(self) -> str:
        """Our rule and edge that compute the same with number bounds, as `compare` writes them."""
        return f"zero/{self.edge}"


def _pull_until_2_13(grad: Tensor, x: Tensor, min: Tensor | None, max: Tensor | None) -> Three:
    if max is None:
        assert min is not None, "one of the two is a bound"
        return torch.where(x >= min, grad, 0.0), torch.where(x < min, grad, 0.0), None
    if min is None:
        return torch.where(x <= max, grad, 0.0), None, torch.where(x > max, grad, 0.0)
    return (
        torch.where((x >= min) & (x <= max), grad, 0.0),
        torch.where((min < max) & (x < min), grad, 0.0),
        torch.where((x > max) | (max < min), grad, 0.0),
    )


def _pull_since_2_14(grad: Tensor, x: Tensor, min: Tensor | None, max: Tensor | None) -> Three:
    half = grad / 2
    if max is None or min is None:
        bound = min if max is None else max
        assert bound is not None, "one of the two is a bound"
        is_outside, is_inside = (x < bound, x > bound) if max is None else (x > bound, x < bound)
        share = torch.where(x == bound, half, grad)
        to_x, to_bound = torch.where(is_outside, 0.0, share), torch.where(is_inside, 0.0, share)
        return (to_x, to_bound, None) if max is None else (to_x, None, to_bound)
    apart, ordered = min < max, min <= max
    split = apart & ((x == min) | (x == max))
    return (
        torch.where((x < min) | (x > max), 0.0, torch.where(split, half, grad)),
        torch.where(ordered & (x < min), grad, torch.where(apart & (x == min), half, 0.0)),
        torch.where((max < min) | (ordered & (x > max)), grad, torch.where(apart & (x == max), half, 0.0)),
    )


def pieces_of_min(beyond: Split, at: Split, within: Split, nan: Split, bound_nan: Split) -> Pieces:
    """The pieces for a min alone: x beyond it, at it, within it; x is NaN; the bound is NaN, whatever x is."""
    everywhere = Pieces(*[within] * len(Pieces._fields))
    return everywhere._replace(below=beyond, at_min=at, below_point=beyond, at_point=at, nan=nan, with_nan=bound_nan)


# By the regions of `Pieces`, which explains their names.
_UNTIL_2_13 = Pieces(
    below=ALL_TO_MIN,
    at_min=ALL_TO_X,
    inside=ALL_TO_X,
    at_max=ALL_TO_X,
    above=ALL_TO_MAX,
    below_point=TO_NOBODY,
    at_point=ALL_TO_X,
    above_point=ALL_TO_MAX,
    below_crossed=ALL_TO_MAX,
    at_crossed=ALL_TO_MAX,
    above_crossed=ALL_TO_MAX,
    below_nan=TO_NOBODY,
    above_nan=ALL_TO_MAX,
    with_nan=TO_NOBODY,
    nan=TO_NOBODY,
    nan_crossed=ALL_TO_MAX,
)
_SINCE_2_14 = _UNTIL_2_13._replace(
    at_min=Split(0.5, min=0.5),
    at_max=Split(0.5, max=0.5),
    below_point=ALL_TO_MIN,
    above_nan=TO_NOBODY,
    with_nan=ALL_TO_X,
    nan=ALL_TO_X,
    nan_crossed=Split(1.0, max=1.0),
)
_TO_BOTH = Split(1.0, min=1.0)
_MIN_UNTIL_2_13 = pieces_of_min(ALL_TO_MIN, ALL_TO_X, ALL_TO_X, nan=TO_NOBODY, bound_nan=TO_NOBODY)
_MIN_SINCE_2_14 = pieces_of_min(ALL_TO_MIN, Split(0.5, min=0.5), ALL_TO_X, nan=_TO_BOTH, bound_nan=_TO_BOTH)

CLOSED_ERA, OPEN_ERA = "torch<=2.13", "torch>=2.14"
# The versions of torch that the suite runs on; Makefile reads this line. Comments on what one version needs name it as "torch 2.8".
SUPPORTED = tuple("2.8.0 2.10.0 2.13.0 2.14.1 2.15.0".split())  # noqa: SIM905  one line
FIRST, LAST = (2, 8), (2, 15)  # the versions that were measured
ERAS: dict[str, Era] = {  # from the oldest on
    era.name: era
    for era in (
        Era(CLOSED_ERA, FIRST, "closed", 1.0, _pull_until_2_13, _UNTIL_2_13, _MIN_UNTIL_2_13),
        Era(OPEN_ERA, (2, 14), "open", 0.5, _pull_since_2_14, _SINCE_2_14, _MIN_SINCE_2_14),
    )
}


# --- which era? -------------------------------------------------------------------------------------------------------


def _parse_version(version: str) -> Version:
    major, minor = (int(part) for part in version.split("+")[0].split(".")[:2])
    return major, minor


def era_of(version: str) -> str:
    """The name of the era of a torch version such as "2.13.0+cpu": the last one that had begun; the first for older versions."""
    begun = [era.name for era in ERAS.values() if era.since <= _parse_version(version)]
    return begun[-1] if begun else next(iter(ERAS))


def installed_version() -> Version:
    return _parse_version(torch.__version__)


_VERSIONS = r"torch\s*(?P<relation><=|>=|==|<|>)\s*(?P<version>\d+\.\d+)(?P<patch>\.\d+)?"
_RELATIONS: dict[str, Callable[[Version, Version], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


def era_named(text: object, where: str = "pin_edge", argument: str = "edge") -> str | None:
    """The era that "torch<=2.13", "torch==2.12" or the like means; None for a text of another form.

    Raises ValueError for a version that was never measured, and where the versions that are meant belong to several eras.
    """
    if not isinstance(text, str):
        return None
    if text in ERAS:
        return text
    match = re.fullmatch(_VERSIONS, text.strip())
    if match is None:
        return None
    measured = {f"{FIRST[0]}.{minor}": (FIRST[0], minor) for minor in range(FIRST[1], LAST[1] + 1)}
    relation = match["relation"]
    if relation in ("<", ">") and match["patch"] not in (None, ".0"):
        relation += "="
    has_relation, version = _RELATIONS[relation], measured.get(match["version"])
    eras = {era_of(name) for name, other in measured.items() if version is not None and has_relation(other, version)}
    if not eras:
        known = f"name a version from {next(iter(measured))} to {[*measured][-1]}, which were measured"
        raise ValueError(must(where, argument, known, text, f"The eras are {', '.join(map(repr, ERAS))}"))
    if len(eras) > 1:
        between = " and ".join(repr(name) for name in ERAS if name in eras)
        example = f"or one version as in 'torch=={match['version']}'"
        remedy = f"Its versions belong to {between}: name one of these, {example}"
        raise ValueError(must(where, argument, "name versions that do the same", text, remedy))
    return eras.pop()


def measure(f: Callable[[Tensor, Tensor], Tensor]) -> Slopes:
    """The slopes of f(x, bound) where both are 0, under the modes that are entered here."""
    with torch.inference_mode(False), torch.enable_grad():
        x, bound = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
        grad_x, grad_bound = torch.autograd.grad(f(x, bound).sum(), (x, bound), allow_unused=True)
    return Slopes(float(grad_x), None if grad_bound is None else float(grad_bound))


Measured = TypeVar("Measured")


def outside_every_mode(measurement: Callable[[], Measured]) -> Measured:
    """The result of measurement() in a new thread, in which no mode, transform or default device is entered."""
    with ThreadPoolExecutor(max_workers=1) as own_thread:
        return own_thread.submit(measurement).result()


def _clamp_node() -> Any:
    return torch.clamp(torch.zeros(1, requires_grad=True), min=0.0)


@constant_result
@functools.cache
def installed_era() -> str:
    """The era whose gradient at a number bound is that of the installed torch. If several eras have it, the era of torch's version.

    It is measured outside every mode, by a call of the node: a listener would count a backward.
    """
    share = outside_every_mode(lambda: float(_clamp_node().grad_fn(torch.ones(1))))
    version_era = era_of(torch.__version__)
    behaving = [name for name, era in ERAS.items() if SHARES[era.edge] == share]
    if version_era in behaving or not behaving:
        return version_era
    return behaving[0]
