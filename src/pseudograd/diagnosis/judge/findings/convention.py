"""So much of an update is convention: what torch happens to do at a kink, where another torch or framework does otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ....torch_table.conventions import FAMILIES, FRAMEWORKS, text_of
from ....torch_table.eras import ERAS, installed_era
from ....wording import shortened
from ...count.pools import FAMILY as POOL
from ...records import Finding
from ..other_conventions import Other, other_of
from ..sensitivity import HIGH, Sensitivity
from .kind import Evidence, Kind, percent

DECIDES = 0.5  # of the update, in the median of the later steps
_STILL = 1e-3  # of its norm: a parameter that came no further does not move
_LEAST = 5  # steps: with fewer nobody can say how it goes on
_BY_ERA = ("clamp", "fmax", "fmin", "quantile")


def verdict(whole: Sensitivity, leaves: Sequence[Sensitivity]) -> str:
    """ "decides": it stays high, in the update or on a parameter that does not move, or the other convention would not let one begin to
    move; "falls" where it was high and is not; "some" between; "unknown" after few steps; nothing where it is below a tenth.
    """
    if max(one.peak for one in (whole, *leaves)) < HIGH:
        return ""
    if whole.level >= DECIDES or _stuck(leaves) or _stopped(leaves):
        return "decides" if len(whole.steps) >= _LEAST or _stopped(leaves) else "unknown"
    if len(whole.steps) < _LEAST:
        return "unknown"
    return "some" if whole.level >= HIGH or any(one.level >= DECIDES for one in leaves) else "falls"


def _stuck(leaves: Sequence[Sensitivity]) -> list[str]:
    return [one.parameter or "" for one in leaves if one.level >= DECIDES and one.moved < _STILL]


def _stopped(leaves: Sequence[Sensitivity]) -> list[str]:
    return [one.parameter or "" for one in leaves if one.stops]


def by_line(some: Sequence[Sensitivity]) -> dict[tuple[str, str], list[Sensitivity]]:
    """Of each family and line what it is as a whole, then its parameters."""
    found: dict[tuple[str, str], list[Sensitivity]] = {}
    for one in some:
        if one.where is not None:
            found.setdefault((one.family, one.where), []).append(one)
    return found


def _find(evidence: Evidence) -> Iterator[Finding]:
    for whole, *leaves in by_line(evidence.sensitivity).values():
        leaves = [one for one in leaves if not evidence.deliberate.parameter(one.parameter or "")]
        said, other = verdict(whole, leaves), other_of(whole.family)
        if said and other is not None:
            yield KIND.finding(
                whole.where or "?",
                whole.expression,
                f"{_amount(said, whole, leaves)} at line {(whole.where or '?').rpartition(':')[2]}: {disagree(whole.family, other)}. "
                f"{_matters(said, whole, leaves, other)}",
                f"{percent(max(whole.at_kink))} of what enters {whole.family} stands exactly at a kink or a tie, where it has no slope",
                _next(said, whole, other),
                share=min(whole.level, 1.0) if said in ("decides", "some") else 0.0,
                is_muted=whole.is_muted,
            )


def _amount(said: str, whole: Sensitivity, leaves: Sequence[Sensitivity]) -> str:
    def share(one: Sensitivity) -> float:
        return one.level if said in ("decides", "some") and one.level >= HIGH else one.peak

    of, one = "this update", whole
    if share(whole) < HIGH:
        one = max(leaves, key=share, default=whole)
        of = f"the update of {one.parameter}"
    if share(one) <= 1:
        return f"{percent(share(one))} of {of} is convention"
    times = "" if not math.isfinite(share(one)) else f" (another one changes it by {share(one):,.2g} times its size)"
    return f"All of {of} is convention{times}"


_NAMES = {era: era.replace("torch<=", "torch up to ").replace("torch>=", "torch since ") for era in ERAS}
_NAMES |= {"jax": "JAX", "tensorflow": "TensorFlow"}


def disagree(family: str, other: Other) -> str:
    """Who does what at the kink."""
    if family == POOL:
        return "torch, JAX and TensorFlow give all to the first of equal entries, and the last has as good a claim"
    whose = _NAMES.get(other.whose, other.whose)
    if not other.passes:
        return f"torch and {whose} disagree on which of equal entries gets the gradient"
    groups: dict[float, list[str]] = {}
    for name, share in other.passes.items():
        groups.setdefault(share, []).append(_NAMES.get(name, name))
    every = {_NAMES[era] for era in ERAS}
    for names in groups.values():
        if every <= set(names):
            names[:] = ["torch", *(name for name in names if name not in every)]
    who = [" / ".join(names) for names in groups.values()]
    times = [f"{share:g}" for share in groups]
    return f"{_and(who)} disagree there, which multiply a gradient by {_and(times)}"


def _and(some: Sequence[str]) -> str:
    return f"{', '.join(some[:-1])} and {some[-1]}"


def _matters(said: str, whole: Sensitivity, leaves: Sequence[Sensitivity], other: Other) -> str:
    if said == "unknown":
        count = len(whole.steps)
        return f"{count} {'step is' if count == 1 else 'steps are'} too few to say whether it matters"
    if said == "falls":
        return f"It does not decide this training: later it is mostly {percent(whole.level)}"
    if said == "some":
        return "It hardly matters here: what it is about moves by the rest of the update"
    whose, stuck, stopped = _NAMES.get(other.whose, other.whose), _stuck(leaves), _stopped(leaves)
    if stuck or not stopped:
        where = f", and {shortened(stuck)} {'does' if len(stuck) == 1 else 'do'} not move" if stuck else ""
        return f"It decides this training: it stays high{where}"
    return (
        f"It decides this training: as in {whose}, {shortened(stopped)} would get nothing, and would not begin to move"
    )


def _next(said: str, whole: Sensitivity, other: Other) -> str:
    family = whole.family
    if family == POOL:
        return "x.unfold(2, 2, 2).unfold(3, 2, 2).amax((-2, -1))  # for a pool of 2: equal entries share the gradient"
    if whole.within is not None:
        return (
            f"Write this call out in torch's own functions: pin_edge does not reach the {family} inside {whole.within}, which torch runs "
            "as one call."
        )
    if said == "decides":
        whose = _NAMES.get(other.whose, other.whose)
        return f"with pseudograd.pin_edge({_named(family, other.whose, other.convention)}): ...  # around the training: as {whose}"
    era = installed_era()
    return f"with pseudograd.pin_edge({_named(family, era, text_of(FAMILIES[family].of_torch(era)))}): ...  # keeps it so on every torch"


def _named(family: str, whose: str, convention: str) -> str:
    if family in _BY_ERA and whose in ERAS:
        return repr(whose)
    if whose in ERAS or whose in FRAMEWORKS:
        return f"{family}={whose!r}"
    return f"{family}={float(convention)!r}"


KIND = Kind(
    code="convention",
    number="PG210",
    order=55,
    find=_find,
    meaning="a tenth or more of an update is what torch happens to do at a kink or a tie, where another torch, JAX or TensorFlow does "
    "otherwise; asked with `sensitivity`",
    next_step="`pin_edge`, or another start",
    details="It says whether that decides the training: by how it goes over the steps, and by whether the parameters move",
    is_alone=True,
    bad="""\
import torch
from pseudograd import diagnose

p = torch.nn.Parameter(torch.tensor([0.0, 1.0, 2.0, -1.0]))
with diagnose(sensitivity=True) as d:
    for step in range(5):
        (p + torch.relu(p)).sum().backward()  # PG210
""",
    good="""\
import torch
from pseudograd import diagnose

p = torch.nn.Parameter(torch.tensor([0.1, 1.0, 2.0, -1.0]))
with diagnose(sensitivity=True) as d:
    for step in range(5):
        (p + torch.relu(p)).sum().backward()
""",
)
