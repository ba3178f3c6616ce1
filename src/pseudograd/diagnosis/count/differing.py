"""What one rank of a job has and another has not: findings, places, starving parameters, shares that are cut, backward passes.

Ranks of one training see other batches, so their shares are never quite equal: two are said to differ where they are `LEAST` apart, and
further than chance puts them. Where ranks agree nothing is said, and processes that are no ranks of a job are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...listen.program.follow import Part
from ...wording import percent, shortened
from ..records import Site

LEAST = 0.2  # between the largest and the smallest share
_DEVIATIONS = 6.0  # of a difference of two shares: elements of one batch are alike, so this is no exact test
_SHOWN = 8  # ranks by name
_WIDTH = 60  # of a call

FINDING, STARVED, SHARE, PLACE, BACKWARDS, PARAMETER = "finding", "starved", "share", "place", "backwards", "parameter"
Key = tuple[str, str, str]  # name, where, expression
_LABELS = {
    FINDING: "finding",
    STARVED: "starves",
    SHARE: "share that is cut",
    PLACE: "gradient arrives",
    BACKWARDS: "backward passes",
    PARAMETER: "parameters",
}


@dataclass(frozen=True)
class Difference:
    """kind: "finding", "starved", "share", "place", "backwards" or "parameter". name: of the code, the parameter or the op. where,
    expression: the call. ranks: what each rank has of it: whether it is there, the share that is cut, or a number.
    """

    kind: str
    name: str
    where: str
    expression: str
    ranks: dict[str, float | int | bool]

    @property
    def told(self) -> str:
        """Which rank has what."""
        if self.kind == SHARE:
            return self._shares()
        if not all(isinstance(value, bool) for value in self.ranks.values()):
            counts = [f"{value:,} in {name}" for name, value in self.ranks.items()]
            return shortened(counts, _SHOWN)
        has, lacks = ([name for name, there in self.ranks.items() if there is wanted] for wanted in (True, False))
        return f"in {listed(has)} alone" if len(has) <= len(lacks) else f"in all but {listed(lacks)}"

    def _shares(self) -> str:
        by_size = sorted(self.ranks, key=lambda name: self.ranks[name])
        between = len(by_size) - 2 if len(by_size) > _SHOWN else 0
        named = [by_size[0], by_size[-1]] if between else list(self.ranks)
        told = ", ".join(f"{percent(self.ranks[name])} in {name}" for name in named)
        return f"{told}, {between} more between" if between else told


def lines(found: Sequence[Difference]) -> list[tuple[str, str]]:
    """Each as a label and a sentence; what is said of several parameters alike stands once."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for one in found:
        key = _LABELS[one.kind], one.where, one.expression, one.told
        groups.setdefault(key, []).append(one.name)
    return [(label, _sentence(names, *rest)) for (label, *rest), names in groups.items()]


def _sentence(names: Sequence[str], where: str, expression: str, told: str) -> str:
    call = expression if len(expression) <= _WIDTH else f"{expression[: _WIDTH - 3]}..."
    subject = " ".join(part for part in (listed(names), where, call and f"`{call}`") if part)
    return f"{subject}: {told}" if subject else told


def listed(names: Sequence[str]) -> str:
    return shortened(list(dict.fromkeys(names)), _SHOWN)


def differences(parts: Iterable[Part]) -> list[Difference]:
    """Of the ranks among the parts. Findings first, as they say what to do."""
    ranks = _by_rank(parts)
    if len(ranks) < 2:
        return []
    counts = {name: _backwards(some) for name, some in ranks.items()}
    passes = list(_different(BACKWARDS, [(("", "", ""), counts)]))
    seen = {name: some for name, some in ranks.items() if counts[name]}
    if len(seen) < 2:
        return passes
    parameters = {name: {(one, "", ""): one for one in _all(some, "parameters")} for name, some in seen.items()}
    if not set.intersection(*map(set, parameters.values())):  # as in a pipeline: each trains its own
        return [Difference(PARAMETER, "", "", "", {name: len(some) for name, some in parameters.items()}), *passes]
    findings = {
        name: {(one.code, one.where, one.expression): one for one in _all(some, "findings")}
        for name, some in seen.items()
    }
    starved = {name: {(one.parameter, "", ""): one for one in _all(some, "starved")} for name, some in seen.items()}
    sites = {name: _of_places(_all(some, "sites")) for name, some in seen.items()}
    return [
        *_different(FINDING, _presence(findings)),
        *_different(STARVED, _presence(starved, parameters)),
        *_shares(sites),
        *_different(PLACE, _presence(sites)),
        *_different(PARAMETER, _presence(parameters)),
        *passes,
    ]


def _by_rank(parts: Iterable[Part]) -> dict[str, list[Part]]:
    """A rank may have children of its own, which are counted with it."""
    found: dict[str, list[Part]] = {}
    for part in parts:
        if part.rank is not None:
            found.setdefault(str(part), []).append(part)
    return found


def _backwards(parts: Sequence[Part]) -> int:
    return sum(part.content["backwards"] for part in parts)


def _all(parts: Sequence[Part], name: str) -> list[Any]:
    return [one for part in parts for one in part.content[name]]


def _of_places(sites: Sequence[Site]) -> dict[Key, list[Site]]:
    found: dict[Key, list[Site]] = {}
    for site in sites:
        found.setdefault((site.op, site.where, site.expression), []).append(site)
    return found


def _presence(
    ranks: Mapping[str, Mapping[Key, object]], among: Mapping[str, Mapping[Key, object]] | None = None
) -> Iterator[tuple[Key, dict[str, bool]]]:
    """Of each thing that some rank has: which. among: of the ranks that could have it."""
    for key in dict.fromkeys(key for some in ranks.values() for key in some):
        yield key, {name: key in some for name, some in ranks.items() if among is None or key in among[name]}


def _different(kind: str, rows: Iterable[tuple[Key, Mapping[str, Any]]]) -> Iterator[Difference]:
    for key, values in rows:
        if len(set(values.values())) > 1:
            yield Difference(kind, *key, dict(values))


def _shares(ranks: Mapping[str, Mapping[Key, list[Site]]]) -> Iterator[Difference]:
    """Of what arrives at a place, how much is cut there: on the ranks at which something arrives."""
    for key in dict.fromkeys(key for some in ranks.values() for key in some):
        counts: dict[str, tuple[int, int]] = {}
        for name, some in ranks.items():
            arrived, cut = (sum(getattr(site, what) for site in some.get(key, ())) for what in ("arrived", "cut"))
            if arrived:
                counts[name] = cut, arrived
        if len(counts) > 1 and _are_apart(list(counts.values())):
            yield Difference(SHARE, *key, {name: cut / arrived for name, (cut, arrived) in counts.items()})


def _are_apart(counts: Sequence[tuple[int, int]]) -> bool:
    """The largest and the smallest, by what is common and by chance."""
    by_share = sorted(counts, key=lambda one: one[0] / one[1])
    (low_cut, low_of), (high_cut, high_of) = by_share[0], by_share[-1]
    apart = high_cut / high_of - low_cut / low_of
    whole = (low_cut + high_cut) / (low_of + high_of)
    deviation = math.sqrt(whole * (1 - whole) * (1 / low_of + 1 / high_of))
    return apart >= LEAST and apart > _DEVIATIONS * deviation
