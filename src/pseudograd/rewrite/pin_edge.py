"""pin_edge: what torch's own functions do exactly at a bound, a kink or a tie, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..arguments import as_number
from ..errors import must, unknown_name
from ..geometry import SHARES
from ..torch_table.conventions import FRAMEWORKS, OWN, WITH_NAN, Convention, Family, gives_grad_to_nan, text_of
from ..torch_table.eras import ERAS, OPEN_ERA, Version, era_named, installed_era, installed_version
from ..torch_table.forms import FAMILIES
from ..torch_table.records import EDGE
from . import edges
from .context import Rewriting
from .mode import Replacement
from .pins import prepare

ATAN2_SINCE: Version = (2, 10)  # before it torch gave NaN for atan2(0, 0)


def pin_edge(edge: str | None = None, *, nan: bool = False, **families: float | str) -> Rewriting:
    """Fix what torch does where a function has no slope, so that a program trains as on another torch, or in another framework.

    Forward:  torch's values, bit for bit.
    Backward: torch's, but at the points that are named. An edge is about clamp, clip, clamp_min, clamp_max (in place too), fmin and fmax.
        Versions of torch are about what changed between them: these, and which of equal entries quantile and nanquantile take. A pin to
        "torch>=2.14" on an older one leaves those two, and its report says so; of NaN it means fmax and fmin of 2.15. A framework is about
        all of `families`: also maximum, minimum and relu. Saves what torch saves, or, of an edge and 4096 elements or more on CPU, one to
        three bits of each in their place; for the last nine families more. Linear in grad; forward mode and second derivatives have the
        same slope.

    Args:
        edge: "closed" (x gets grad), "open" (0) or "half" (0.5 * grad), the rest going to a tensor bound; torch's versions, as
            "torch<=2.13", "torch>=2.14" or "torch==2.12": exactly what they compute, number and tensor bounds apart, NaN and crossed
            bounds included. They must do the same, so be 2.13 and older or 2.14 and newer. Or "jax" (0.10) or "tensorflow" (2.21).
        nan: also where the framework has NaN or infinity and torch a number: the norm of zeros, std of a constant, atan2(0, 0), 0 to the
            power 0, xlogy(0, 0).
        families: one convention each, which counts before that of `edge`. A number is the slope at the kink, or of a tie what the first
            one gets: abs, relu, relu6, hardtanh, hardsigmoid, leaky_relu, elu, celu, selu, hypot; clamp, maximum, minimum, fmax, fmin.
            Or whose convention it is, as in abs="jax": these, and max (over a dimension), sort, median, quantile, norm, sqrt, std, atan2,
            pow, xlogy; so named, its NaN is meant, too.
    Returns: a context and decorator for the current thread, as `override`; the innermost context decides, so that inside an override the
        pin decides for what it names, also where that is what the installed torch does.
    Raises: ValueError for an unknown edge, framework, version or family, a slope that is not finite, or if nothing is given; TypeError for
        a slope that is no number.
    Example:
        >>> x = torch.tensor([0.0, 0.5], requires_grad=True)
        >>> with pin_edge("torch<=2.13", abs=1):
        ...     (torch.clamp(x, 0, 1) + x.abs()).sum().backward()
        >>> x.grad
        tensor([2., 2.])
    Source: torch's derivatives.yaml, versions 2.13 and 2.15; JAX 0.10 and TensorFlow 2.21 as measured.
    """
    if edge is None and not families:
        known = (*SHARES, *ERAS, *FRAMEWORKS)
        raise unknown_name("pin_edge", "edge", known, edge, "Or name a family, as in abs=1")
    if edge is not None and not isinstance(edge, str):
        raise unknown_name("pin_edge", "edge", (*SHARES, *ERAS, *FRAMEWORKS), edge)
    if nan and edge not in FRAMEWORKS:
        raise ValueError(must("pin_edge", "nan", "come with a framework", edge, f"These are {_listed(FRAMEWORKS)}"))
    label = f"pin_edge({', '.join(_shown(edge, nan, families))})"
    own = {name: _convention(name, value) for name, value in families.items()}
    if edge in FRAMEWORKS:
        return Rewriting(label, {}, kinks=prepare({**_of_framework(edge, nan), **own}))  # type: ignore[arg-type]
    if edge is None:
        return Rewriting(label, {}, kinks=prepare(own))
    asked = edge if isinstance(edge, str) and edge in SHARES else era_named(edge)
    if asked is None:
        raise unknown_name("pin_edge", "edge", (*SHARES, *ERAS, *FRAMEWORKS), edge)
    era = installed_era()
    replacement = Replacement(edges.rule_named(asked, era))
    kinks = prepare({**(_of_era(asked, era) if asked in ERAS else {}), **own})
    return Rewriting(label, {EDGE: replacement}, is_torchs_own=asked == era, kinks=kinks)


def _of_era(asked: str, installed: str) -> dict[str, str]:
    """What eras differ in besides the edges of clamps."""
    found = {"quantile": asked} if asked != installed else {}
    if installed_version() < ATAN2_SINCE:
        found["atan2"] = "0.0"
    if asked == OPEN_ERA and gives_grad_to_nan():
        found.update({name: text_of(FAMILIES[name].torch_convention(asked)) for name in WITH_NAN})
    return found


def _of_framework(framework: str, nan: bool) -> dict[str, str]:
    found = {}
    for name, family in FAMILIES.items():
        convention = family.singular.get(framework) if nan else None
        if convention is None:
            convention = family.others.get(framework)
        if convention is not None:
            found[name] = text_of(convention)
    return found


def _convention(name: str, value: object) -> str:
    """The text of what is asked for one family."""
    family = FAMILIES.get(name)
    if family is None:
        raise unknown_name("pin_edge", "family", FAMILIES, name)
    if isinstance(value, str):
        return text_of(_named(family, value))
    number = as_number(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError(must("pin_edge", name, "be a number or the name of a framework or torch version", value))
    if not family.takes:
        known = f"name whose convention is meant: {_listed(_known(family))}"
        raise ValueError(
            must("pin_edge", name, known, value, "One number does not say which of the tied entries gets it")
        )
    if not math.isfinite(number):
        raise ValueError(must("pin_edge", name, "be finite", value))
    return text_of(float(number))


def _known(family: Family) -> list[str]:
    return [*ERAS, *dict.fromkeys((*family.others, *family.singular))]


def _named(family: Family, name: str) -> Convention:
    if name in FRAMEWORKS:
        found = family.singular.get(name, family.others.get(name))
        if found is None:
            remedy = "Its convention is not known, or it has no such function"
            raise ValueError(must("pin_edge", family.name, f"be one of {_listed(_known(family))}", name, remedy))
        return found
    era = era_named(name)
    if era is None:
        raise unknown_name("pin_edge", family.name, _known(family), name)
    found = family.torch_convention(era)
    if family.name == "quantile" and era == installed_era():
        return OWN
    return found


def _shown(edge: object, nan: bool, families: dict[str, float | str]) -> Iterable[str]:
    if edge is not None:
        yield repr(edge)
    if nan:
        yield "nan=True"
    for name, value in families.items():
        yield f"{name}={value!r}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
