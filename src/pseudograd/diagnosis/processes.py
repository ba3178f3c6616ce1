"""What a diagnosis found, without the program: parts that processes hand over, and several of them as one."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from ..listen.program.follow import Part
from .context import Diagnosis
from .count.differing import Difference, differences, listed
from .records import Finding, Site, Starved, Structural, plain


def values_of(diagnosis: Diagnosis) -> dict[str, Any]:
    """All that it says, by name: its public properties. Plain records, which another process can read."""
    names = [name for name, value in vars(Diagnosis).items() if isinstance(value, property) and name[0] != "_"]
    return {name: getattr(diagnosis, name) for name in names}


class Found:
    """A diagnosis that has only its results: what text, page and JSON read. processes: whose they are; unseen: whose they are not;
    differences: what one rank has and another has not.
    """

    findings: list[Finding]
    processes: list[dict[str, Any]]
    unseen: list[str]
    differences: list[Difference]
    known: tuple[Finding, ...] = ()  # findings that a baseline held

    def __init__(
        self,
        values: dict[str, object],
        parts: Sequence[Part],
        unseen: Sequence[Part],
        differing: Sequence[Difference] = (),
    ) -> None:
        vars(self).update(values)
        self.differences = list(differing)
        self.processes = [
            {
                "name": str(part),
                "process": part.process,
                "rank": part.rank,
                "is_main": part.is_main,
                "backwards": part.content["backwards"],
                "findings": [f"{one.code} {one.where}" for one in part.content["findings"]],
            }
            for part in parts
        ]
        self.unseen = [str(part) for part in unseen]

    def without_known(self, findings: list[Finding]) -> Found:
        """The same with these findings alone: a baseline knows the others."""
        other = copy.copy(self)
        other.known = tuple(one for one in self.findings if not any(one is left for left in findings))
        other.findings = findings
        return other

    def to_json(self) -> dict[str, Any]:
        return {
            **Diagnosis.to_json(self),  # type: ignore[arg-type]
            "processes": self.processes,
            "differences": [plain(one) for one in self.differences],
            "unseen": self.unseen,
        }

    __str__ = Diagnosis.__str__
    _repr_html_ = Diagnosis._repr_html_
    metrics = Diagnosis.metrics
    write_html = Diagnosis.write_html


def merged(parts: Sequence[Part], unseen: Sequence[Part], nothing: Diagnosis) -> Any:
    """One diagnosis of all processes that had a backward; where they differ it says which. nothing: one that saw none."""
    differing = differences(parts)
    parts = [part for part in parts if part.content["backwards"]]
    values = _together(parts) if len(parts) > 1 else parts[0].content if parts else values_of(nothing)
    return Found(values, parts, unseen, differing)


def _together(parts: Sequence[Part]) -> dict[str, object]:
    all_values = [part.content for part in parts]
    found = {name: _joined([values[name] for values in all_values]) for name in all_values[0]}
    found["sites"] = _summed([one for values in all_values for one in values["sites"]])
    found["structural"] = _cuts([one for values in all_values for one in values["structural"]])
    found["findings"] = _findings(parts)
    found["starved"] = _starved(parts)
    found["partly"] = _by_parameter(parts, "partly")
    found["norms"] = parts[0].content["norms"] if _are_replicas(parts) else _by_parameter(parts, "norms")
    if not _are_replicas(parts):
        found["parameters"] = [_named(part, name) for part in parts for name in part.content["parameters"]]
    found["stalled"] = parts[0].content["stalled"] if _are_replicas(parts) else _by_parameter(parts, "stalled")
    found["history"] = parts[0].content["history"] if _are_replicas(parts) else _by_parameter(parts, "history")
    found["sensitivity"] = _sensitivities(parts)
    found["whatif"] = {
        name: [
            dataclasses.replace(row, parameter=_named(part, row.parameter))
            for part in parts
            for row in part.content["whatif"].get(name, ())
        ]
        for name in dict.fromkeys(name for values in all_values for name in values["whatif"])
    }
    return found


def _named(part: Part, name: str) -> str:
    return f"{part}: {name}"


def _are_replicas(parts: Sequence[Part]) -> bool:
    """Do all train parameters of the same names? Then they are those of one model."""
    return len({frozenset(part.content["parameters"]) for part in parts}) == 1


def _starved(parts: Sequence[Part]) -> list[Starved]:
    """Once, where a parameter of one model starves in every process; else by process."""
    by_name: dict[str, list[tuple[Part, Starved]]] = {}
    for part in parts:
        for one in part.content["starved"]:
            by_name.setdefault(one.parameter, []).append((part, one))
    found = []
    for same in by_name.values():
        if len(same) == len(parts) and _are_replicas(parts):
            found.append(same[0][1])
        else:
            found += [dataclasses.replace(one, parameter=_named(part, one.parameter)) for part, one in same]
    return found


def _by_parameter(parts: Sequence[Part], kind: str) -> list[object]:
    """Once, where every process says the same of a parameter of one model; else by process."""
    if _are_replicas(parts) and all(part.content[kind] == parts[0].content[kind] for part in parts):
        return list(parts[0].content[kind])
    return [
        dataclasses.replace(one, parameter=_named(part, one.parameter)) for part in parts for one in part.content[kind]
    ]


def _sensitivities(parts: Sequence[Part]) -> list[object]:
    """Of replicas that of the first process: the others' gradients are of other batches. Else by process."""
    if _are_replicas(parts):
        return list(parts[0].content["sensitivity"])
    return [
        dataclasses.replace(one, parameter=_named(part, one.parameter or "all parameters"))
        for part in parts
        for one in part.content["sensitivity"]
    ]


def _joined(values: list[Any]) -> object:
    """Of what no process has more to say than another."""
    first = values[0]
    if isinstance(first, bool) or first is None:
        return first
    if isinstance(first, (int, float)):
        return sum(values)
    if isinstance(first, dict):
        return {
            key: _joined([value[key] for value in values if key in value])
            for key in dict.fromkeys(k for v in values for k in v)
        }
    if isinstance(first, (list, tuple)):
        return type(first)(_different(one for value in values for one in value))
    return first


def _different(some: Iterable[object]) -> list[object]:
    found: list[object] = []
    for one in some:
        if one not in found:
            found.append(one)
    return found


def _findings(parts: Sequence[Part]) -> list[Finding]:
    """What several say of one line stands once, with the numbers of that where it is most."""
    by_line: dict[object, list[tuple[Part, Finding]]] = {}
    for part in parts:
        for one in part.content["findings"]:
            by_line.setdefault((one.code, one.where, one.expression), []).append((part, one))
    found = []
    for same in by_line.values():
        part, most = max(same, key=lambda pair: pair[1].share)
        who = [str(one) for one, _ in same]
        if len(set(who)) < len(parts):
            most = dataclasses.replace(most, also=(f"in {listed(who)} alone", *most.also))
        elif any(one.evidence != most.evidence for _, one in same):
            most = dataclasses.replace(most, also=(f"the numbers are those of {part}", *most.also))
        else:
            most = dataclasses.replace(most, also=(f"in each of {len(parts)} processes alike", *most.also))
        found.append(most)
    return found


def _summed(sites: Sequence[Site]) -> list[Site]:
    """The counts of one op at one place, over all processes."""
    by_place: dict[object, list[Site]] = {}
    for site in sites:
        by_place.setdefault((site.op, site.where, site.user_where, site.expression, site.module), []).append(site)
    return [_sum(same) for same in by_place.values()]


_NO_SUMS = "order", "upstream", "is_deliberate"


def _sum(same: Sequence[Site]) -> Site:
    changes: dict[str, Any] = {}
    for one in dataclasses.fields(Site):
        values = [value for value in (getattr(site, one.name) for site in same) if value is not None]
        if values and isinstance(values[0], (int, float)) and one.name not in _NO_SUMS:
            changes[one.name] = sum(values)
    changes["sides"] = {side: sum(site.sides.get(side, 0) for site in same) for side in same[0].sides}
    return dataclasses.replace(same[0], **changes)


def _cuts(cuts: Sequence[Structural]) -> list[Structural]:
    by_place: dict[object, list[Structural]] = {}
    for cut in cuts:
        by_place.setdefault((cut.kind, cut.where, cut.user_where, cut.expression), []).append(cut)
    return [
        dataclasses.replace(
            same[0],
            calls=sum(cut.calls for cut in same),
            reaches_loss=next(
                (answer for answer in (True, None) if any(cut.reaches_loss is answer for cut in same)), False
            ),
            parameters=tuple(dict.fromkeys(name for cut in same for name in cut.parameters)),
        )
        for same in by_place.values()
    ]
