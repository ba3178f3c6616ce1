"""pin_edge: choose the gradient of torch's own functions at a bound, a kink or a tie, and change nothing else."""

from __future__ import annotations

import math

from ..arguments import as_number
from ..errors import must, unknown_name
from ..geometry import SHARES
from ..torch_table.conventions import FRAMEWORKS, OWN, WITH_NAN, Convention, Family, gives_grad_to_nan, text_of
from ..torch_table.eras import ERAS, OPEN_ERA, era_named, installed_era
from ..torch_table.forms import FAMILIES
from ..torch_table.records import EDGE
from . import edges
from .context import Rewriting
from .mode import Replacement
from .pins import prepare

_EDGES = (*SHARES, *ERAS, *FRAMEWORKS)


def pin_edge(edge: str | None = None, **families: float | str) -> Rewriting:
    """Choose the gradient where a function has no slope, so that a program trains as on another torch, or in another framework.

    Forward:  torch's values, bit for bit.
    Backward: torch's gradients, except at the points that the arguments name. "closed", "open" and "half" act on clamp, clip, clamp_min,
        clamp_max (in place too), fmin and fmax. An edge that names versions of torch acts also on quantile and nanquantile: 2.14 changed
        which of equal entries gets the gradient there. A pin to "torch>=2.14" on an older torch cannot change these two, and the report
        says so. On torch 2.14 it gives fmax and fmin of a NaN the gradient of 2.15. A framework acts on all `families`.
        Linear in grad; forward mode and second derivatives have the same slope. Saves what torch saves; for a tensor of 4096 elements or
        more on CPU or CUDA, one to three bits for each element instead. Functions that pseudograd computes, such as sort, save more.

    Args:
        edge: "closed" (x gets grad), "open" (0) or "half" (0.5 * grad); a tensor bound gets the rest. Or versions of torch, such as
            "torch<=2.13", "torch>=2.14" or "torch==2.12": the gradients of these versions, also for tensors as bounds, for NaN and
            for min > max. The text must mean only versions up to 2.13, or only versions from 2.14 on. Or a framework: "jax" (0.10) or
            "tensorflow" (2.21).
        families: a convention for a family of functions, such as abs=1 or sort="jax", which overrules `edge`. docs/override.md lists the
            families. A number is the slope at the kink, or the share of the first of two tied inputs. A name is that of a framework or of
            versions of torch. Some families take only names.
    Returns: a context and decorator for the current thread, as `override`. The innermost context decides: inside an override, the pin
        decides at the points that it names, even where it names what the installed torch does.
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
        raise unknown_name("pin_edge", "edge", _EDGES, edge, "Or name a family, as in abs=1")
    if edge is not None and not isinstance(edge, str):
        raise unknown_name("pin_edge", "edge", _EDGES, edge)
    arguments = [] if edge is None else [repr(edge)]
    label = f"pin_edge({', '.join([*arguments, *(f'{name}={value!r}' for name, value in families.items())])})"
    own = {name: _parse_convention(name, value) for name, value in families.items()}
    if edge is None:
        return Rewriting(label, {}, conventions=prepare(own))
    if edge in FRAMEWORKS:
        return Rewriting(label, {}, conventions=prepare({**_framework_conventions(edge), **own}))
    named = edge if edge in SHARES else era_named(edge)
    if named is None:
        raise unknown_name("pin_edge", "edge", _EDGES, edge)
    era = installed_era()
    conventions = prepare({**(_era_conventions(named, era) if named in ERAS else {}), **own})
    replacement = Replacement(edges.rule_named(named, era))
    return Rewriting(label, {EDGE: replacement}, is_torchs_own=named == era, conventions=conventions)


def _era_conventions(era: str, installed: str) -> dict[str, str]:
    """The conventions of an era, besides the edges of clamps, that differ from those of the installed torch."""
    conventions = {"quantile": era} if era != installed else {}
    if era == OPEN_ERA and gives_grad_to_nan():
        conventions.update({name: text_of(FAMILIES[name].torch_convention(era)) for name in WITH_NAN})
    return conventions


def _framework_conventions(framework: str) -> dict[str, str]:
    return {name: text_of(family.others[framework]) for name, family in FAMILIES.items() if framework in family.others}


def _parse_convention(name: str, value: object) -> str:
    """The text of the convention that a user gives a family."""
    family = FAMILIES.get(name)
    if family is None:
        raise unknown_name("pin_edge", "family", FAMILIES, name)
    names = [*ERAS, *family.others]
    if isinstance(value, str):
        return text_of(_find_convention(family, value, names))
    number = as_number(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError(must("pin_edge", name, "be a number or the name of a framework or torch version", value))
    if not family.number:
        remedy = "One number does not say which of the tied entries gets it"
        raise ValueError(must("pin_edge", name, f"be one of {', '.join(names)}", value, remedy))
    if not math.isfinite(number):
        raise ValueError(must("pin_edge", name, "be finite", value))
    return text_of(float(number))


def _find_convention(family: Family, name: str, names: list[str]) -> Convention:
    if name in FRAMEWORKS:
        convention = family.others.get(name)
        if convention is None:
            remedy = "Its convention is not known, or it has no such function"
            raise ValueError(must("pin_edge", family.name, f"be one of {', '.join(names)}", name, remedy))
        return convention
    era = era_named(name)
    if era is None:
        raise unknown_name("pin_edge", family.name, names, name)
    convention = family.torch_convention(era)
    # Under the installed era, torch's own quantile has its convention.
    is_quantile = not family.number and convention in ERAS
    return OWN if is_quantile and era == installed_era() else convention
