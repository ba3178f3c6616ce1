"""One report of several processes: the parts that they hand over, put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ..listen.program.follow import Part
from .context import Readable
from .ranks import Difference, differences, listed
from .records import FIELDS, Finding, Report, Site, Starved, Structural

Record = TypeVar("Record")


class ProgramReport(Readable):
    """The report about a program with all its processes.

    processes: name, rank, backward passes and findings of each process. unseen: processes that ended without a report. differences: what
    one rank has and another rank lacks. known: findings that a baseline holds; they are not among `findings`.
    """

    processes: list[dict[str, object]]
    unseen: list[str]
    differences: list[Difference]
    known: tuple[Finding, ...] = ()

    def __init__(self, values: Mapping[str, object]) -> None:
        vars(self).update(values)

    def drop_known(self, known: tuple[Finding, ...]) -> ProgramReport:
        """The same report with these findings moved to `known`."""
        new = [finding for finding in self.findings if not any(finding is other for other in known)]
        return ProgramReport({**vars(self), "findings": new, "known": known})


def fields_of(report: Report) -> dict[str, Any]:
    """Its fields by name: plain records, which another process can read."""
    return {name: getattr(report, name) for name in FIELDS}


def merge(parts: Sequence[Part], unseen: Sequence[Part], nothing: Report) -> ProgramReport:
    """One report of all processes that had a backward; where they differ it says which. nothing: a report without a backward."""
    active = [part for part in parts if part.content["backwards"]]
    values = _merge_fields(active) if len(active) > 1 else active[0].content if active else fields_of(nothing)
    processes = [
        {
            **{"name": str(part), "process": part.process, "rank": part.rank, "is_main": part.is_main},
            "backwards": part.content["backwards"],
            "findings": [f"{finding.code} {finding.where}" for finding in part.content["findings"]],
        }
        for part in active
    ]
    unseen_names = [str(part) for part in unseen]
    return ProgramReport({**values, "differences": differences(parts), "processes": processes, "unseen": unseen_names})


def _merge_fields(parts: Sequence[Part]) -> dict[str, object]:
    contents = [part.content for part in parts]
    first = contents[0]
    # Processes whose parameters have the same names train one model; else a parameter is named with its process.
    are_replicas = len({frozenset(content["parameters"]) for content in contents}) == 1
    fields = {name: _join([content[name] for content in contents]) for name in FIELDS}
    fields["sites"] = [_sum_sites(sites) for sites in _grouped(contents, "sites", _site_key)]
    fields["structural"] = [_merge_cuts(cuts) for cuts in _grouped(contents, "structural", _cut_key)]
    fields["findings"] = _merge_findings(parts)
    fields["starved"] = _merge_starved(parts, are_replicas)
    for name in ("partly", "norms", "stalled", "history", "sensitivity"):
        is_common = are_replicas and (name != "partly" or all(content[name] == first[name] for content in contents))
        fields[name] = (
            list(first[name]) if is_common else _name_parameters((part, part.content[name]) for part in parts)
        )
    if not are_replicas:
        fields["parameters"] = [f"{part}: {name}" for part in parts for name in part.content["parameters"]]
    fields["whatif"] = {
        question: _name_parameters((part, part.content["whatif"].get(question, ())) for part in parts)
        for question in dict.fromkeys(question for content in contents for question in content["whatif"])
    }
    return fields


def _name_parameters(rows: Iterable[tuple[Part, Iterable[Any]]]) -> list[Any]:
    """Records of several processes, each with its process in the name of its parameter."""
    return [
        dataclasses.replace(record, parameter=f"{part}: {record.parameter or 'all parameters'}")
        for part, records in rows
        for record in records
    ]


def _grouped(contents: Iterable[Any], name: str, key: Callable[[Record], object]) -> list[list[Record]]:
    groups: dict[object, list[Record]] = {}
    for content in contents:
        for record in content[name]:
            groups.setdefault(key(record), []).append(record)
    return list(groups.values())


def _merge_starved(parts: Sequence[Part], are_replicas: bool) -> list[Starved]:
    """Once, if a parameter of one model starves in every process; else by process."""
    by_name: dict[str, list[tuple[Part, list[Starved]]]] = {}
    for part in parts:
        for record in part.content["starved"]:
            by_name.setdefault(record.parameter, []).append((part, [record]))
    starved: list[Starved] = []
    for rows in by_name.values():
        starved += rows[0][1] if len(rows) == len(parts) and are_replicas else _name_parameters(rows)
    return starved


def _join(values: Sequence[Any]) -> object:
    """For fields of which no process has more to say than another."""
    first = values[0]
    if isinstance(first, int):
        return sum(values)
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _join([value[key] for value in values if key in value]) for key in keys}
    different: list[object] = []
    for item in (item for value in values for item in value):
        if item not in different:
            different.append(item)
    return different


def _merge_findings(parts: Sequence[Part]) -> list[Finding]:
    """Findings of one line are one, with the numbers of the process where its share is largest."""
    by_line: dict[object, list[tuple[Part, Finding]]] = {}
    for part in parts:
        for finding in part.content["findings"]:
            by_line.setdefault((finding.code, finding.where, finding.expression), []).append((part, finding))
    findings = []
    for rows in by_line.values():
        part, most = max(rows, key=lambda row: row[1].share)
        who = [str(part) for part, _ in rows]
        if len(set(who)) < len(parts):
            says = f"in {listed(who)} alone"
        elif any(finding.evidence != most.evidence for _, finding in rows):
            says = f"the numbers are those of {part}"
        else:
            says = f"in each of {len(parts)} processes alike"
        findings.append(dataclasses.replace(most, also=(says, *most.also)))
    return findings


def _site_key(site: Site) -> object:
    return site.op, site.where, site.user_where, site.expression, site.module


def _sum_sites(sites: Sequence[Site]) -> Site:
    """The counts of one op at one line, over all processes."""
    names = "calls", "elements", "arrived", "cut", "cut_magnitude", "nonfinite", "magnitude", "elsewhere"
    sums: dict[str, Any] = {name: sum(getattr(site, name) for site in sites) for name in names}
    for name in ("recoverable", "at_bound", "below", "above"):
        counts = [count for site in sites if (count := getattr(site, name)) is not None]
        sums[name] = sum(counts) if counts else None
    sides = {side: sum(site.sides.get(side, 0) for site in sites) for side in sites[0].sides}
    return dataclasses.replace(sites[0], **sums, sides=sides)


def _cut_key(cut: Structural) -> object:
    return cut.kind, cut.where, cut.user_where, cut.expression


def _merge_cuts(cuts: Sequence[Structural]) -> Structural:
    reaches = [cut.reaches_loss for cut in cuts]
    return dataclasses.replace(
        cuts[0],
        calls=sum(cut.calls for cut in cuts),
        reaches_loss=True if True in reaches else None if None in reaches else False,
        parameters=tuple(dict.fromkeys(name for cut in cuts for name in cut.parameters)),
    )
