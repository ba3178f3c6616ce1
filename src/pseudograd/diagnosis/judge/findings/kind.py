"""What a row of this folder is, and what it is found in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pseudograd_notices.code import Code

from ....listen.frames import Place, named
from ...count.tally import Tally
from ...count.values import Values
from ...records import Finding, Partly, Site, Starved
from ..deliberate import Deliberate
from ..sensitivity import Sensitivity
from ..stalled import Stalls

# They cut on purpose: a factor of 0, a mask, a choice, a place that was not chosen or is overwritten.
_ON_PURPOSE = (
    *(
        "mul",
        "where",
        "maskedFill",
        "index",
        "gather",
        "nativeDropout",
        "maxPool",
        "max",
        "min",
        "amax",
        "amin",
        "sort",
    ),
    *("topk", "Copy", "fill", "zero", "scatter", "masked", "put"),
)


@dataclass(frozen=True)
class Evidence:
    """All that findings are made from."""

    sites: Sequence[Site]
    starved: Sequence[Starved]
    values: Sequence[Values]
    tallies: Sequence[Tally]
    leaves: Any
    deliberate: Deliberate
    stalls: Stalls
    partly: Sequence[Partly] = ()
    sensitivity: Sequence[Sensitivity] = ()

    @cached_property
    def with_narrow_windows(self) -> set[str]:
        """The thresholds of jumprelu that starve because its window is too narrow, which says all of it."""
        sets = [some for tally in self.tallies for some, one in tally.windows.items() if one.is_narrow]
        return {leaf.name for some in sets for leaf in self.leaves.named(some) if not some & (some - 1)}

    @property
    def suspects(self) -> list[Site]:
        """Where a gradient arrived and may have been cut by mistake: no guard, and no op that cuts on purpose."""
        return [site for site in self.sites if site.arrived and not site.is_guard and not _is_on_purpose(site)]


def _is_on_purpose(site: Site) -> bool:
    """What starves behind it is told there."""
    return site.family is None and site.op.startswith(_ON_PURPOSE)


@dataclass(frozen=True)
class Kind:
    """One kind of finding: a row.

    code: its name, which `--fail-on` takes. number: the same for machines; it is never given to another kind. order: of what is found at
    one line, the kind with the smallest is told, and the others stand behind it. find: from the evidence to findings, made by the methods
    below; at a deliberate place too, where they are counted and not told. blame: the same from parameters that starve, for what cuts
    them off. meaning, next_step: for whoever reads the code, in docs, page and JSON. details: more of the meaning, for docs. is_alone: it
    is of a whole network and never stands behind what is found at its line. protects: it is told so that what it finds is left alone.
    bad, good: programs that show it and that do not.
    places: where `--fail-on` looks, with shares, if it is more than the findings.
    """

    code: str
    number: str
    order: int
    find: Callable[[Evidence], Iterable[Finding]]
    meaning: str
    next_step: str
    details: str = ""
    is_alone: bool = False
    protects: bool = False
    blame: Callable[[Sequence[Starved]], Iterable[Finding]] | None = None
    places: Callable[[Sequence[Site]], Iterable[tuple[Site, float]]] | None = None
    bad: str = ""
    good: str = ""

    @property
    def as_code(self) -> Code:
        """Its row in the one table of codes, which `lint` shares."""
        why = f"{self.details}." if self.details else ""
        return Code(self.number, self.code, self.meaning, why, self.next_step, self.bad, self.good, from_source=False)

    def finding(self, where: str, expression: str, evidence: str, cause: str, next_step: str, **more: Any) -> Finding:
        """Of this kind. more: share, module, issue and is_muted of the record."""
        return Finding(self.code, where, expression, evidence, cause, next_step, number=self.number, **more)

    def at_site(self, site: Site, evidence: str, cause: str, next_step: str, share: float, **more: object) -> Finding:
        """At an op."""
        more = {"module": site.module, "is_muted": site.is_deliberate, **more}
        return self.finding(site.where, site.expression, evidence, cause, next_step, share=share, **more)

    def at(self, place: Place, evidence: str, cause: str, next_step: str, **more: object) -> Finding:
        """At a call."""
        return self.finding(named(place.call), expression_at(place), evidence, cause, next_step, **more)


def expression_at(place: Place) -> str:
    """The source of the call; nothing where nobody saw it."""
    return "" if place.call is None else place.call.expression


def percent(share: float) -> str:
    """A share as a person reads it; only all is 100 %, and only nothing 0 %."""
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    return f"{min(max(100 * share, 0.1), 99.9):.1f} %"
