"""For each family of functions with a kink: the known convention that differs most from what the installed torch does there."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ... import formula
from ...rewrite.conventions import call_of, prepared
from ...torch_table.conventions import FAMILIES, KINKED, pins, text_of
from ...torch_table.eras import ERAS, OPEN_ERA, installed_era
from ...torch_table.forms import SPELLINGS, Form
from . import pools

# With x = 0 (or 3): the arguments that make it a kink, where x alone does not.
_BESIDE = {
    "clamp": (0.0, 1.0),
    "hardtanh": (0.0, 1.0),
    "leaky_relu": (0.01,),
    "elu": (1.0,),
    "celu": (1.0,),
    **{name: (torch.zeros(1),) for name in ("maximum", "minimum", "fmax", "fmin", "hypot")},
}


class Other(NamedTuple):
    """Another convention of a family: whose, its text, and what share of grad each known convention gives to x at the kink."""

    whose: str
    convention: str
    passes: dict[str, float]


def within(family: str, calling: object) -> str | None:
    """The call of torch that runs the function inside, where no pin of the family reaches it."""
    if family == pools.FAMILY or any(kinked.family == family for kinked in KINKED.get(calling, ())):
        return None
    spelling = SPELLINGS.get(calling)
    if spelling is not None and spelling.form.write is not None and pins(spelling.form, (family,)):
        return None
    return getattr(calling, "__name__", None) or "code that no mode sees"


@lru_cache(maxsize=64)
def other_of(family: str) -> Other | None:
    """None where all known conventions agree."""
    if family == pools.FAMILY:
        return Other(pools.LAST, pools.LAST, {})
    row, era = FAMILIES[family], installed_era()
    known = {**{name: row.of_torch(name) for name in ERAS}, **row.others, **row.alike}
    form = next(kinked.spelling.form for rows in KINKED.values() for kinked in rows if kinked.family == family)
    if form.op.startswith("written"):
        others = [(name, text_of(rule)) for name, rule in known.items() if rule not in (row.of_torch(era), OPEN_ERA)]
        return Other(*others[0], {}) if others else None
    passes = {name: _share_at_kink(family, form, text_of(rule)) for name, rule in known.items()}
    if math.isnan(passes[era]):  # a singular point
        return None
    most = max(passes, key=lambda name: abs(passes[name] - passes[era]))
    return None if passes[most] == passes[era] else Other(most, text_of(known[most]), passes)


def _share_at_kink(family: str, form: Form, convention: str) -> float:
    """What share of grad x gets at the kink."""
    prepared({family: convention})
    x = torch.full((1,), 3.0 if family == "hardsigmoid" else 0.0)
    arranged = form.arrange(x, *_BESIDE.get(family, ()))
    assert arranged is not None, "x alone is enough"
    name, inputs = arranged
    call = call_of(convention, name, inputs)
    assert call is not None, "the table has it"
    wants = tuple(isinstance(value, Tensor) for value in inputs)
    grad_x = formula.pull(torch.ones(1), list(inputs), wants, call)[0]
    return float("nan") if grad_x is None else float(grad_x)
