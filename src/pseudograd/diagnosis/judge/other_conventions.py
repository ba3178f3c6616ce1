"""Of each family of functions with a kink, the known convention that differs most from what the installed torch does there."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ... import formula
from ...rewrite.conventions import call_of, prepared
from ...torch_table.conventions import FAMILIES, KINKED, pins, text_of
from ...torch_table.eras import ERAS, OPEN_ERA, installed_era
from ...torch_table.forms import SPELLINGS
from ..count import pools

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
    """Another convention of a family: whose, its text, and what of grad each one that is known gives to x at the kink."""

    whose: str
    convention: str
    passes: dict[str, float]


def within(family: str, calling: object) -> str | None:
    """The call of torch that runs the function inside, where no pin of the family reaches it."""
    if family == pools.FAMILY or any(one.family == family for one in KINKED.get(calling, ())):
        return None
    spelling = SPELLINGS.get(calling)
    if spelling is not None and spelling.form.write is not None and pins(spelling.form, (family,)):
        return None
    return getattr(calling, "__name__", None) or "code that no mode sees"


@lru_cache(maxsize=64)
def other_of(family: str) -> Other | None:
    """Of what is known the convention that differs most from that of the installed torch; None where all agree."""
    if family == pools.FAMILY:
        return Other(pools.LAST, pools.LAST, {})
    row, era = FAMILIES[family], installed_era()
    here = row.of_torch(era)
    known = {**{name: row.of_torch(name) for name in ERAS}, **row.others, **row.alike}
    form = next(one.spelling.form for some in KINKED.values() for one in some if one.family == family)
    if form.op.startswith("written"):
        some = [(name, text_of(one)) for name, one in known.items() if one not in (here, OPEN_ERA)]
        return Other(*some[0], {}) if some else None
    passes = {name: _passes(family, form, text_of(one)) for name, one in known.items()}
    if math.isnan(passes[era]):  # a singular point
        return None
    most = max(passes, key=lambda name: abs(passes[name] - passes[era]))
    return None if passes[most] == passes[era] else Other(most, text_of(known[most]), passes)


def _passes(family: str, form: Any, convention: str) -> float:
    """What of grad x gets at the kink."""
    prepared({family: convention})
    x = torch.full((1,), 3.0 if family == "hardsigmoid" else 0.0)
    name, inputs = form.arrange(x, *_BESIDE.get(family, ()))
    call = call_of(convention, name, inputs)
    assert call is not None, "the table has it"
    wants = tuple(isinstance(one, Tensor) for one in inputs)
    (to_x, *_) = formula.pull(torch.ones(1), list(inputs), wants, call)
    return float("nan") if to_x is None else float(to_x)
