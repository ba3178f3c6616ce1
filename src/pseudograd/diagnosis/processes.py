"""One report about several processes, made from the part of each process."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ..listen.program.follow import Part
from ..wording import shortened
from .context import Readable
from .records import FIELDS, Finding, Report, Site, Starved, Structural

Records = list[tuple[Part, Any]]  # records, each with its process
PROCESSES_SHOWN = 8


class ProgramReport(Readable):
    """The report about a program with all its processes.

    known: findings that a baseline has; `findings` does not have them.
    """

    processes: list[dict[str, object]]  # name, rank, backward passes and findings of each process
    unseen: list[str]  # processes that ended without a report
    known: Sequence[Finding] = ()

    def __init__(self, values: Mapping[str, object]) -> None:
        vars(self).update(values)


def fields_of(report: Report) -> dict[str, object]:
    """The fields of a report by name: plain records, which another process can read."""
    return {name: getattr(report, name) for name in FIELDS}


def merge(parts: Sequence[Part], unseen: Sequence[Part], empty: Report) -> ProgramReport:
    """One report of all processes that had a backward. empty: the report if none had one."""
    active = [part for part in parts if part.content["backwards"]]
    values = _merge_fields(active) if len(active) > 1 else active[0].content if active else fields_of(empty)
    processes = [
        {
            **{"name": str(part), "process": part.process, "rank": part.rank, "is_main": part.is_main},
            "backwards": part.content["backwards"],
            "findings": [f"{finding.code} {finding.where}" for finding in part.content["findings"]],
        }
        for part in active
    ]
    return ProgramReport({**values, "processes": processes, "unseen": [str(part) for part in unseen]})


def _merge_fields(parts: Sequence[Part]) -> dict[str, object]:
    contents = [part.content for part in parts]
    first = contents[0]
    # Processes whose parameters have the same names train one model; else a parameter is named with its process.
    are_replicas = len({frozenset(content["parameters"]) for content in contents}) == 1
    fields = {name: _join([content[name] for content in contents]) for name in FIELDS}
    site_key = ("op", "where", "user_where", "expression", "module")
    fields["sites"] = [_sum_sites([site for _, site in group]) for group in _group(parts, "sites", *site_key)]
    cut_key = ("kind", "where", "user_where", "expression")
    fields["structural"] = [_merge_cuts([cut for _, cut in group]) for group in _group(parts, "structural", *cut_key)]
    finding_key = ("code", "where", "expression")
    fields["findings"] = [_merge_findings(group, len(parts)) for group in _group(parts, "findings", *finding_key)]
    starved: list[Starved] = []
    for group in _group(parts, "starved", "parameter"):
        is_in_all = len(group) == len(parts) and are_replicas
        starved += [group[0][1]] if is_in_all else _name_parameters(group)
    fields["starved"] = starved
    for name in ("partly", "norms", "stalled", "history", "sensitivity"):
        is_common = are_replicas and (name != "partly" or all(content[name] == first[name] for content in contents))
        records = [(part, record) for part in parts for record in part.content[name]]
        fields[name] = list(first[name]) if is_common else _name_parameters(records)
    for field in ("parameters", "idle") if not are_replicas else ():
        fields[field] = [f"{part}: {name}" for part in parts for name in part.content[field]]
    fields["whatif"] = {
        question: _name_parameters(
            [(part, change) for part in parts for change in part.content["whatif"].get(question, ())]
        )
        for question in dict.fromkeys(question for content in contents for question in content["whatif"])
    }
    return fields


def _name_parameters(records: Records) -> list[Any]:
    """Records of several processes, each with its process in the name of its parameter."""
    return [
        dataclasses.replace(record, parameter=f"{part}: {record.parameter or 'all parameters'}")
        for part, record in records
    ]


def _group(parts: Sequence[Part], name: str, *fields: str) -> list[Records]:
    """The records in the field `name` of each report, with their processes. Records whose `fields` have equal values are one group."""
    groups: dict[object, Records] = {}
    for part in parts:
        for record in part.content[name]:
            groups.setdefault(tuple(getattr(record, field) for field in fields), []).append((part, record))
    return list(groups.values())


def _join(values: Sequence[Any]) -> object:
    """A field of all processes: the sum of its counts, or the different items of its lists."""
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


def _merge_findings(group: Sequence[tuple[Part, Finding]], processes: int) -> Finding:
    """Merge the same finding of several processes. The result has the numbers of the process with the largest share."""
    part, most = max(group, key=lambda pair: pair[1].share)
    who = [str(part) for part, _ in group]
    if len(set(who)) < processes:
        says = f"in {shortened(list(dict.fromkeys(who)), PROCESSES_SHOWN)} alone"
    elif any(finding.evidence != most.evidence for _, finding in group):
        says = f"the numbers are those of {part}"
    else:
        says = f"in each of {processes} processes alike"
    return dataclasses.replace(most, also=(says, *most.also))


def _sum_sites(sites: Sequence[Site]) -> Site:
    """The counts of one op at one line, over all processes."""
    names = "calls elements arrived cut cut_magnitude nonfinite magnitude elsewhere recoverable at_bound below above"
    sums: dict[str, Any] = {}
    for name in names.split():
        counts = [count for site in sites if (count := getattr(site, name)) is not None]
        sums[name] = sum(counts) if counts else None
    sides = {side: sum(site.sides.get(side, 0) for site in sites) for side in sites[0].sides}
    return dataclasses.replace(sites[0], **sums, sides=sides)


def _merge_cuts(cuts: Sequence[Structural]) -> Structural:
    answers = [cut.reaches_loss for cut in cuts]
    return dataclasses.replace(
        cuts[0],
        calls=sum(cut.calls for cut in cuts),
        reaches_loss=next(answer for answer in (True, None, False) if answer in answers),
        parameters=tuple(dict.fromkeys(name for cut in cuts for name in cut.parameters)),
    )
