"""For each family of functions with a kink: the known convention that differs most from that of the installed torch."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from .. import formula
from ..torch_table.conventions import text_of
from ..torch_table.eras import ERAS, installed_era
from ..torch_table.forms import FAMILIES, KINKED, SPELLINGS, Kinked, is_pinned_inside
from .pins import call_of, prepare


class OtherConvention(NamedTuple):
    """Another convention of a family, and whose it is. passes: the share of grad that x gets at the kink, by known convention."""

    whose: str
    convention: str
    passes: dict[str, float]


def within(family: str, calling: object) -> str | None:
    """The name of the function `calling`, if a pin of the family does not reach the functions that it runs; None if it does."""
    if any(kinked.family == family for kinked in KINKED.get(calling, ())):
        return None
    spelling = SPELLINGS.get(calling)
    if spelling is not None and spelling.form.write is not None and is_pinned_inside(spelling.form, (family,)):
        return None
    return getattr(calling, "__name__", None) or "code that no mode sees"


@lru_cache(maxsize=64)
def other_of(family: str) -> OtherConvention | None:
    """The known convention of the family that differs most from that of the installed torch; None if all are the same."""
    row, era = FAMILIES[family], installed_era()
    known = {**{name: row.torch_convention(name) for name in ERAS}, **row.others, **row.alike}
    kinked = next(kinked for functions in KINKED.values() for kinked in functions if kinked.family == family)
    passes = {name: _part_of_x(kinked, text_of(convention)) for name, convention in known.items()}
    if math.isnan(passes[era]):  # at a singular point
        return None
    most = max(passes, key=lambda name: abs(passes[name] - passes[era]))
    return None if passes[most] == passes[era] else OtherConvention(most, text_of(known[most]), passes)


def _part_of_x(kinked: Kinked, convention: str) -> float:
    prepare({kinked.family: convention})
    x, *others = kinked.kink.example
    arranged = kinked.spelling.arrange(torch.full((1,), x), *others)
    assert arranged is not None, "the example can be pinned"
    name, inputs = arranged
    call = call_of(convention, name, inputs)
    assert call is not None, "the table has the convention"
    wants = tuple(isinstance(value, Tensor) for value in inputs)
    (to_x, *_) = formula.pull(torch.ones(1), list(inputs), wants, call)
    return float("nan") if to_x is None else float(to_x)
